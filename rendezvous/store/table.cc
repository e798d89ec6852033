#include "rendezvous/store/table.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tools/base/check.h"
#include "tools/base/status_macros.h"

namespace convene::rendezvous {

absl::Status Table::Charge(size_t bytes_before, size_t bytes_after) {
  const size_t bytes = bytes_ - bytes_before + bytes_after;
  if (bytes > bytes_max_ && bytes_after > bytes_before) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the store holds ", bytes_, " bytes and may hold ", bytes_max_,
                     "; delete keys that are no longer needed, or serve fewer jobs with it"));
  }
  bytes_ = bytes;
  return absl::OkStatus();
}

absl::Status Table::Set(const std::string& key, std::string value, Woken* woken) {
  const auto [entry, inserted] = entries_.try_emplace(key);
  const size_t before = inserted ? 0 : CostOf(key, *entry->second);
  const absl::Status charged = Charge(before, CostOf(key, value));
  if (!charged.ok()) {
    if (inserted) entries_.erase(entry);
    return charged;
  }
  entry->second = std::make_shared<std::string>(std::move(value));
  if (inserted) WakeLine(&key_waiters_, key, woken);
  return absl::OkStatus();
}

absl::StatusOr<Value> Table::CompareSet(const std::string& key, std::string expected,
                                        std::string desired, Woken* woken) {
  const auto entry = entries_.find(key);
  if (entry == entries_.end()) {
    if (!expected.empty()) return std::make_shared<const std::string>(std::move(expected));
  } else if (*entry->second != expected) {
    return entry->second;
  }
  CONVENE_RETURN_IF_ERROR(Set(key, std::move(desired), woken));
  return Get(key);
}

Value Table::Get(const std::string& key) const {
  const auto entry = entries_.find(key);
  return entry == entries_.end() ? nullptr : entry->second;
}

absl::StatusOr<int64_t> Table::Add(const std::string& key, int64_t delta, Woken* woken) {
  int64_t number = 0;
  const auto entry = entries_.find(key);
  if (entry != entries_.end()) {
    // PyTorch's server reads the number by std::stoll, too.
    const char* const text = entry->second->c_str();
    char* end = nullptr;
    errno = 0;
    number = std::strtoll(text, &end, 10);
    if (end == text || errno == ERANGE) {
      return absl::FailedPreconditionError(
          absl::StrCat("cannot add to key \"", key.substr(0, 80), "\": its value ",
                       end == text ? "begins with no number" : "is a number beyond 64 bits"));
    }
  }
  number = static_cast<int64_t>(static_cast<uint64_t>(number) + static_cast<uint64_t>(delta));
  CONVENE_RETURN_IF_ERROR(Set(key, absl::StrCat(number), woken));
  return number;
}

absl::Status Table::Append(const std::string& key, const std::string& suffix, Woken* woken) {
  const auto entry = entries_.find(key);
  if (entry == entries_.end()) return Set(key, suffix, woken);
  CONVENE_RETURN_IF_ERROR(Charge(0, suffix.size()));
  if (entry->second.use_count() > 1) {  // a reply still reads the old value
    entry->second = std::make_shared<std::string>(*entry->second);
  }
  entry->second->append(suffix);
  return absl::OkStatus();
}

bool Table::Delete(const std::string& key) {
  const auto entry = entries_.find(key);
  if (entry == entries_.end()) return false;
  bytes_ -= CostOf(key, *entry->second);
  entries_.erase(entry);
  return true;
}

void Table::DropIf(const std::function<bool(absl::string_view key)>& is_over) {
  absl::erase_if(entries_, [&](const auto& entry) {
    if (!is_over(entry.first)) return false;
    bytes_ -= CostOf(entry.first, *entry.second);
    return true;
  });
  absl::erase_if(queues_, [&](const auto& queue) {
    if (!is_over(queue.first)) return false;
    for (const Value& item : queue.second.items) bytes_ -= CostOf(queue.first, *item);
    return true;
  });
}

bool Table::Exists(const std::string& key) const {
  return entries_.contains(key) || queues_.contains(key);
}

bool Table::ExistAll(const std::vector<std::string>& keys) const {
  return std::all_of(keys.begin(), keys.end(), [this](const auto& key) { return Exists(key); });
}

std::vector<std::string> Table::Keys() const {
  std::vector<std::string> keys;
  keys.reserve(entries_.size());
  for (const auto& [key, value] : entries_) keys.push_back(key);
  return keys;
}

absl::Status Table::QueuePush(const std::string& key, std::string item, Woken* woken) {
  CONVENE_RETURN_IF_ERROR(Charge(0, CostOf(key, item)));
  queues_[key].items.push_back(std::make_shared<const std::string>(std::move(item)));
  OfferItems(key, woken);
  return absl::OkStatus();
}

void Table::OfferItems(const std::string& key, Woken* woken) {
  const auto queue = queues_.find(key);
  const auto line = key_waiters_.find(key);
  if (queue == queues_.end() || line == key_waiters_.end()) return;
  std::list<Waiter>& waiters = line->second;
  while (!waiters.empty() && queue->second.items.size() > queue->second.reserved) {
    const Waiter waiter = waiters.front();
    waiters.pop_front();
    if (pending_.at(waiter.id).reserves) {
      reservations_[waiter.id] = key;
      ++queue->second.reserved;
    }
    Arrived(waiter, woken);
  }
  if (waiters.empty()) key_waiters_.erase(line);
}

Value Table::TakeFront(absl::flat_hash_map<std::string, Queue>::iterator queue) {
  Value item = std::move(queue->second.items.front());
  queue->second.items.pop_front();
  bytes_ -= CostOf(queue->first, *item);
  if (queue->second.items.empty()) queues_.erase(queue);
  return item;
}

Table::Popped Table::QueuePop(ConnectionId id, const std::string& key, Woken* woken) {
  const auto reservation = reservations_.find(id);
  const bool reserved = reservation != reservations_.end() && reservation->second == key;
  if (!reserved) ReleaseReservation(id, woken);
  const auto queue = queues_.find(key);
  if (queue == queues_.end()) return {};
  if (reserved) {
    reservations_.erase(reservation);
    --queue->second.reserved;
  } else if (queue->second.items.size() == queue->second.reserved) {
    return {};
  }
  const size_t length_before = queue->second.items.size();
  return {length_before, TakeFront(queue)};
}

size_t Table::QueueLength(const std::string& key) const {
  const auto queue = queues_.find(key);
  return queue == queues_.end() ? 0 : queue->second.items.size();
}

void Table::ReleaseReservation(ConnectionId id, Woken* woken) {
  if (reservations_.empty()) return;
  const auto reservation = reservations_.find(id);
  if (reservation == reservations_.end()) return;
  const std::string key = std::move(reservation->second);
  reservations_.erase(reservation);
  --queues_.at(key).reserved;
  OfferItems(key, woken);
}

bool Table::Wait(ConnectionId id, const std::vector<std::string>& keys) {
  CONVENE_CHECK(!IsWaiting(id) && !reservations_.contains(id));
  if (keys.size() == 1 && !entries_.contains(keys[0])) {
    const auto queue = queues_.find(keys[0]);
    if (queue != queues_.end() && queue->second.items.size() > queue->second.reserved) {
      reservations_[id] = keys[0];
      ++queue->second.reserved;
      return true;
    }
    StandInLine(id, &key_waiters_, keys).reserves = true;
    return false;
  }
  std::vector<std::string> missing;
  for (const std::string& key : keys) {
    if (!Exists(key)) missing.push_back(key);
  }
  if (missing.empty()) return true;
  StandInLine(id, &key_waiters_, missing);
  return false;
}

absl::StatusOr<bool> Table::Barrier(ConnectionId id, const std::string& key, int64_t world_size,
                                    Woken* woken) {
  CONVENE_CHECK(!IsWaiting(id));
  CONVENE_ASSIGN_OR_RETURN(const int64_t arrived, Add(key, 1, woken));
  if (arrived >= world_size) {
    WakeLine(&barrier_waiters_, key, woken);
    return true;
  }
  StandInLine(id, &barrier_waiters_, {key});
  return false;
}

Table::Pending& Table::StandInLine(ConnectionId id, Waiters* lines,
                                   const std::vector<std::string>& keys) {
  Pending& pending = pending_[id];
  pending.lines = lines;
  pending.missing = keys.size();
  pending.places.reserve(keys.size());
  for (const std::string& key : keys) {
    std::list<Waiter>& line = (*lines)[key];
    line.push_back({id, pending.places.size()});
    pending.places.push_back({key, std::prev(line.end())});
  }
  return pending;
}

void Table::Arrived(const Waiter& waiter, Woken* woken) {
  const auto pending = pending_.find(waiter.id);
  CONVENE_CHECK(pending != pending_.end());
  pending->second.places[waiter.index].done = true;
  if (--pending->second.missing > 0) return;
  woken->push_back(waiter.id);
  pending_.erase(pending);
}

void Table::WakeLine(Waiters* lines, const std::string& key, Woken* woken) {
  if (lines->empty()) return;
  const auto line = lines->find(key);
  if (line == lines->end()) return;
  const std::list<Waiter> waiters = std::move(line->second);
  lines->erase(line);
  for (const Waiter& waiter : waiters) Arrived(waiter, woken);
}

void Table::CancelWait(ConnectionId id) {
  const auto pending = pending_.find(id);
  if (pending == pending_.end()) return;
  for (const Place& place : pending->second.places) {
    if (place.done) continue;
    const auto line = pending->second.lines->find(place.key);
    line->second.erase(place.position);
    if (line->second.empty()) pending->second.lines->erase(line);
  }
  pending_.erase(pending);
}

}  // namespace convene::rendezvous
