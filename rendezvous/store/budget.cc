#include "rendezvous/store/budget.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tools/base/check.h"
#include "tools/base/status_macros.h"
#include "tools/base/text.h"

namespace convene::rendezvous {
namespace {

constexpr size_t kLongestName = 100;

// A run's own record takes its name twice, and about this much beside.
constexpr size_t kRunBytes = 256;

size_t RecordBytes(absl::string_view run) { return kRunBytes + 2 * run.size(); }

std::string Bytes(size_t bytes) { return HumanBytes(static_cast<double>(bytes)); }

}  // namespace

Budget::Budget(size_t bytes_max) : bytes_max_(bytes_max) {
  parts_[0].bytes_max = bytes_max / 4;
  parts_[1].bytes_max = bytes_max - bytes_max / 4;
}

Budget::~Budget() { CONVENE_CHECK(runs_.empty()); }

Budget::Charge Budget::Open(absl::string_view run) {
  MutexLock lock(&mutex_);
  auto found = runs_.find(run);
  if (found == runs_.end()) {
    auto fresh = std::make_unique<Run>();
    fresh->name = std::string(run);
    fresh->bytes[0] = RecordBytes(run);
    parts_[0].bytes += RecordBytes(run);
    found = runs_.emplace(fresh->name, std::move(fresh)).first;
  }
  Charge charge;
  charge.budget_ = this;
  charge.run_ = found->second.get();
  ++charge.run_->charges;
  return charge;
}

absl::StatusOr<Budget::Charge> Budget::Take(absl::string_view run, size_t bytes) {
  Charge charge = Open(run);
  CONVENE_RETURN_IF_ERROR(charge.Resize(bytes));
  return charge;
}

absl::Status Budget::Resize(Charge* charge, size_t bytes) {
  MutexLock lock(&mutex_);
  Run& run = *charge->run_;
  const bool grows = bytes > charge->bytes_;
  const bool is_large = charge->is_large_ ? bytes > 0 : bytes > kSmallBytes;
  Part& from = parts_[charge->is_large_];
  Part& to = parts_[is_large];
  // The part has to take this much beside the bytes that the charge has there already.
  const size_t more = &from == &to ? bytes - std::min(bytes, charge->bytes_) : bytes;
  if (grows) {
    const size_t free = to.bytes_max - std::min(to.bytes, to.bytes_max);
    if (more > free || run.bytes[is_large] + more > free - more) {
      ++refusals_;
      return Refusal(run, is_large, more);
    }
  }
  from.bytes -= charge->bytes_;
  run.bytes[charge->is_large_] -= charge->bytes_;
  to.bytes += bytes;
  run.bytes[is_large] += bytes;
  charge->bytes_ = bytes;
  charge->is_large_ = is_large;
  return absl::OkStatus();
}

absl::Status Budget::Refusal(const Run& run, bool is_large, size_t more) const {
  const Part& part = parts_[is_large];
  return absl::ResourceExhaustedError(absl::StrCat(
      "no room for ", Bytes(more), " more of ",
      run.name.empty() ? "keys without a prefix"
                       : absl::StrCat("\"", Utf8(run.name, kLongestName), "\""),
      ", which hold ", Bytes(run.bytes[is_large]), " in ", is_large ? "large" : "small",
      " values (", is_large ? "over" : "up to", " ", Bytes(kSmallBytes), "). The store has ",
      Bytes(part.bytes_max - std::min(part.bytes, part.bytes_max)), " of ", Bytes(part.bytes_max),
      " free for them, and one run may hold as much as is free. Delete keys that are no longer "
      "needed, or give the store more memory than ",
      Bytes(bytes_max_), " (--store-memory of the program that serves it)"));
}

void Budget::End(Charge* charge) {
  MutexLock lock(&mutex_);
  Run* const run = charge->run_;
  parts_[charge->is_large_].bytes -= charge->bytes_;
  run->bytes[charge->is_large_] -= charge->bytes_;
  if (--run->charges > 0) return;
  parts_[0].bytes -= RecordBytes(run->name);
  runs_.erase(runs_.find(run->name));
}

size_t Budget::bytes() const {
  MutexLock lock(&mutex_);
  return parts_[0].bytes + parts_[1].bytes;
}

bool Budget::Holds(absl::string_view run) const {
  MutexLock lock(&mutex_);
  return runs_.contains(run);
}

Budget::Counts Budget::counts(size_t runs_max) const {
  MutexLock lock(&mutex_);
  Counts counts;
  counts.bytes = parts_[0].bytes + parts_[1].bytes;
  counts.bytes_max = bytes_max_;
  counts.refusals = refusals_;
  std::vector<std::pair<size_t, const Run*>> runs;
  for (const auto& [name, run] : runs_) {
    const size_t bytes = run->bytes[0] + run->bytes[1];
    if (bytes > RecordBytes(name)) runs.emplace_back(bytes, run.get());
  }
  const size_t count = std::min(runs.size(), runs_max);
  std::partial_sort(runs.begin(), runs.begin() + static_cast<ptrdiff_t>(count), runs.end(),
                    [](const auto& a, const auto& b) { return a.first > b.first; });
  for (size_t i = 0; i < count; ++i) {
    counts.largest.push_back({runs[i].second->name, runs[i].first});
  }
  return counts;
}

Budget::Charge::Charge(Charge&& other) noexcept { Swap(&other); }

Budget::Charge& Budget::Charge::operator=(Charge&& other) noexcept {
  Charge old;
  Swap(&old);
  Swap(&other);
  return *this;
}

Budget::Charge::~Charge() {
  if (budget_ != nullptr) budget_->End(this);
}

absl::Status Budget::Charge::Resize(size_t bytes) {
  return bytes == bytes_ ? absl::OkStatus() : budget_->Resize(this, bytes);
}

void Budget::Charge::Swap(Charge* other) noexcept {
  std::swap(budget_, other->budget_);
  std::swap(run_, other->run_);
  std::swap(bytes_, other->bytes_);
  std::swap(is_large_, other->is_large_);
}

}  // namespace convene::rendezvous
