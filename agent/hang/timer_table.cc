#include "agent/hang/timer_table.h"

#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <limits>

namespace convene::agent {
namespace {

using google::protobuf::Struct;

// A whole number of `object` from 0 to `most`.
std::optional<int64_t> NumberOf(const Struct& object, const char* key, double most) {
  const auto found = object.fields().find(key);
  if (found == object.fields().end() || !found->second.has_number_value()) return std::nullopt;
  const double number = found->second.number_value();
  if (!(number >= 0 && number <= most)) return std::nullopt;
  return static_cast<int64_t>(number);
}

}  // namespace

std::optional<TimerRequest> ParseTimerRequest(const std::string& json) {
  Struct object;
  if (!google::protobuf::util::JsonStringToMessage(json, &object).ok()) return std::nullopt;
  const auto scope = object.fields().find("scope_id");
  const auto expiration = object.fields().find("expiration_time");
  const auto pid = NumberOf(object, "pid", std::numeric_limits<int32_t>::max());
  if (scope == object.fields().end() || !scope->second.has_string_value() ||
      expiration == object.fields().end() || !expiration->second.has_number_value() ||
      !pid.has_value() || *pid == 0) {
    return std::nullopt;
  }
  TimerRequest request;
  request.pid = *pid;
  request.scope = scope->second.string_value();
  const double seconds = expiration->second.number_value();
  if (seconds >= 0) request.expires = absl::UnixEpoch() + absl::Seconds(seconds);
  // A negative signal means none, as 0 does.
  request.signal = static_cast<int>(NumberOf(object, "signal", 64).value_or(0));
  return request;
}

bool TimerTable::Apply(const TimerRequest& request, absl::Time wall_now, MonotonicTime now) {
  const std::pair<int64_t, std::string> key(request.pid, request.scope);
  if (!request.expires.has_value()) {
    timers_.erase(key);
    return true;
  }
  if (timers_.size() >= kMostTimers && timers_.count(key) == 0) return false;
  timers_[key] = {now + (*request.expires - wall_now), request.signal};
  return true;
}

void TimerTable::Forget(int64_t pid) {
  timers_.erase(timers_.lower_bound({pid, ""}), timers_.lower_bound({pid + 1, ""}));
}

std::vector<TimerTable::Expired> TimerTable::TakeExpired(MonotonicTime now) {
  std::map<int64_t, std::pair<MonotonicTime, Expired>> firsts;
  for (const auto& [key, timer] : timers_) {
    if (timer.due > now) continue;
    const Expired expired = {key.first, key.second, now - timer.due, timer.signal};
    const auto [first, is_new] = firsts.try_emplace(key.first, timer.due, expired);
    if (is_new) continue;
    const bool has_signal = timer.signal > 0, had_signal = first->second.second.signal > 0;
    if (has_signal != had_signal ? has_signal : timer.due < first->second.first) {
      first->second = {timer.due, expired};
    }
  }
  std::vector<Expired> all;
  for (auto& [pid, first] : firsts) {
    Forget(pid);
    all.push_back(std::move(first.second));
  }
  return all;
}

MonotonicTime TimerTable::next_due() const {
  MonotonicTime next = MonotonicTime::InfiniteFuture();
  for (const auto& [key, timer] : timers_) next = std::min(next, timer.due);
  return next;
}

}  // namespace convene::agent
