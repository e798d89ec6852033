#include "rendezvous/store/table.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rendezvous/store/spaces.h"
#include "tools/base/check.h"
#include "tools/base/status_macros.h"

namespace convene::rendezvous {

absl::StatusOr<std::shared_ptr<Table::Held>> Table::Hold(const std::string& key,
                                                         std::string value) {
  CONVENE_ASSIGN_OR_RETURN(
      Budget::Charge charge,
      budget_.Take(Spaces::RunOf(key), kEntryBytes + key.size() + value.size()));
  return std::make_shared<Held>(Held{std::move(value), std::move(charge)});
}

absl::Status Table::Set(const std::string& key, std::string value, Woken* woken) {
  const auto entry = entries_.find(key);
  if (entry != entries_.end() && entry->second.use_count() == 1) {
    // Nobody reads the old value, so the new one takes its place in the budget.
    Budget::Charge& charge = entry->second->charge;
    CONVENE_RETURN_IF_ERROR(charge.Resize(kEntryBytes + key.size() + value.size()));
    entry->second = std::make_shared<Held>(Held{std::move(value), std::move(charge)});
    return absl::OkStatus();
  }
  CONVENE_ASSIGN_OR_RETURN(std::shared_ptr<Held> held, Hold(key, std::move(value)));
  if (entry != entries_.end()) {
    entry->second = std::move(held);
    return absl::OkStatus();
  }
  entries_.emplace(key, std::move(held));
  WakeLine(&key_lines_, key, woken);
  return absl::OkStatus();
}

absl::StatusOr<Value> Table::CompareSet(const std::string& key, std::string expected,
                                        std::string desired, Woken* woken) {
  const auto entry = entries_.find(key);
  if (entry == entries_.end()) {
    if (!expected.empty()) return std::make_shared<const std::string>(std::move(expected));
  } else if (entry->second->bytes != expected) {
    return AsValue(entry->second);
  }
  CONVENE_RETURN_IF_ERROR(Set(key, std::move(desired), woken));
  return Get(key);
}

Value Table::Get(const std::string& key) const {
  const auto entry = entries_.find(key);
  return entry == entries_.end() ? nullptr : AsValue(entry->second);
}

absl::StatusOr<int64_t> Table::Add(const std::string& key, int64_t delta, Woken* woken) {
  int64_t number = 0;
  const auto entry = entries_.find(key);
  if (entry != entries_.end()) {
    // PyTorch's server reads the number by std::stoll, too.
    const char* const text = entry->second->bytes.c_str();
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
  Held& held = *entry->second;
  if (entry->second.use_count() > 1) {  // a reply still reads the old value
    return Set(key, absl::StrCat(held.bytes, suffix), woken);
  }
  CONVENE_RETURN_IF_ERROR(held.charge.Resize(held.charge.bytes() + suffix.size()));
  held.bytes.append(suffix);
  return absl::OkStatus();
}

bool Table::Delete(const std::string& key) {
  const auto entry = entries_.find(key);
  if (entry == entries_.end()) return false;
  entries_.erase(entry);
  return true;
}

void Table::DropIf(const std::function<bool(absl::string_view key)>& is_over) {
  const auto is_dropped = [&](const auto& entry) { return is_over(entry.first); };
  absl::erase_if(entries_, is_dropped);
  absl::erase_if(queues_, is_dropped);
}

bool Table::Holds(absl::string_view space) const {
  return Exists(std::string(space)) || budget_.Holds(space);
}

bool Table::Exists(const std::string& key) const {
  return entries_.contains(key) || queues_.contains(key);
}

bool Table::ExistAll(const std::vector<std::string>& keys) const {
  return std::all_of(keys.begin(), keys.end(), [this](const auto& key) { return Exists(key); });
}

std::vector<absl::string_view> Table::Keys() const {
  std::vector<absl::string_view> keys;
  keys.reserve(entries_.size());
  for (const auto& [key, value] : entries_) keys.push_back(key);
  return keys;
}

absl::Status Table::QueuePush(const std::string& key, std::string item, Woken* woken) {
  CONVENE_ASSIGN_OR_RETURN(const std::shared_ptr<Held> held, Hold(key, std::move(item)));
  queues_[key].items.push_back(AsValue(held));
  OfferItems(key, woken);
  return absl::OkStatus();
}

void Table::OfferItems(const std::string& key, Woken* woken) {
  const auto queue = queues_.find(key);
  const auto line = key_lines_.find(key);
  if (queue == queues_.end() || line == key_lines_.end()) return;
  std::list<Waiter>& waiters = line->second.waiters;
  while (!waiters.empty() && queue->second.items.size() > queue->second.reserved) {
    const Waiter waiter = waiters.front();
    waiters.pop_front();
    if (pending_.at(waiter.id).reserves) Reserve(waiter.id, key, &queue->second);
    Arrived(waiter, woken);
  }
  if (waiters.empty()) key_lines_.erase(line);
}

void Table::Reserve(ConnectionId id, const std::string& key, Queue* queue) {
  reservations_.push_back({id, key, now_ + kReservation});
  reservation_of_[id] = std::prev(reservations_.end());
  ++queue->reserved;
}

void Table::AdvanceTo(MonotonicTime now, Woken* woken) {
  now_ = now;
  while (reservations_end() <= now_) ReleaseReservation(reservations_.front().id, woken);
}

MonotonicTime Table::reservations_end() const {
  return reservations_.empty() ? MonotonicTime::InfiniteFuture() : reservations_.front().end;
}

Value Table::TakeFront(absl::flat_hash_map<std::string, Queue>::iterator queue) {
  Value item = std::move(queue->second.items.front());
  queue->second.items.pop_front();
  if (queue->second.items.empty()) queues_.erase(queue);
  return item;
}

Table::Popped Table::QueuePop(ConnectionId id, const std::string& key, Woken* woken) {
  const auto reservation = reservation_of_.find(id);
  const bool reserved = reservation != reservation_of_.end() && reservation->second->queue == key;
  if (!reserved) ReleaseReservation(id, woken);
  const auto queue = queues_.find(key);
  if (queue == queues_.end()) return {};
  if (reserved) {
    reservations_.erase(reservation->second);
    reservation_of_.erase(reservation);
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
  const auto reservation = reservation_of_.find(id);
  if (reservation == reservation_of_.end()) return;
  const std::string key = std::move(reservation->second->queue);
  reservations_.erase(reservation->second);
  reservation_of_.erase(reservation);
  --queues_.at(key).reserved;
  OfferItems(key, woken);
}

absl::StatusOr<bool> Table::Wait(ConnectionId id, const std::vector<std::string>& keys) {
  CONVENE_CHECK(!IsWaiting(id) && !reservation_of_.contains(id));
  if (keys.size() == 1 && !entries_.contains(keys[0])) {
    const auto queue = queues_.find(keys[0]);
    if (queue != queues_.end() && queue->second.items.size() > queue->second.reserved) {
      Reserve(id, keys[0], &queue->second);
      return true;
    }
    CONVENE_ASSIGN_OR_RETURN(Pending* const pending, StandInLine(id, &key_lines_, keys));
    pending->reserves = true;
    return false;
  }
  std::vector<std::string> missing;
  for (const std::string& key : keys) {
    if (!Exists(key)) missing.push_back(key);
  }
  if (missing.empty()) return true;
  CONVENE_RETURN_IF_ERROR(StandInLine(id, &key_lines_, missing).status());
  return false;
}

absl::StatusOr<bool> Table::Barrier(ConnectionId id, const std::string& key, int64_t world_size,
                                    Woken* woken) {
  CONVENE_CHECK(!IsWaiting(id));
  CONVENE_ASSIGN_OR_RETURN(const int64_t arrived, Add(key, 1, woken));
  if (arrived >= world_size) {
    WakeLine(&barrier_lines_, key, woken);
    return true;
  }
  CONVENE_RETURN_IF_ERROR(StandInLine(id, &barrier_lines_, {key}).status());
  return false;
}

absl::StatusOr<Table::Pending*> Table::StandInLine(ConnectionId id, Lines* lines,
                                                   const std::vector<std::string>& keys) {
  CONVENE_ASSIGN_OR_RETURN(
      Budget::Charge charge,
      budget_.Take(Spaces::RunOf(keys[0]), kEntryBytes + keys.size() * kPlaceBytes));
  Pending& pending = pending_[id];
  pending.lines = lines;
  pending.charge = std::move(charge);
  pending.missing = keys.size();
  pending.places.reserve(keys.size());
  for (const std::string& key : keys) {
    const auto [line, is_new] = lines->try_emplace(key);
    line->second.waiters.push_back({id, pending.places.size()});
    pending.places.push_back({&*line, std::prev(line->second.waiters.end())});
    if (!is_new) continue;
    absl::StatusOr<Budget::Charge> paid =
        budget_.Take(Spaces::RunOf(key), kEntryBytes + key.size());
    if (!paid.ok()) {
      CancelWait(id);
      return paid.status();
    }
    line->second.charge = *std::move(paid);
  }
  return &pending;
}

void Table::Arrived(const Waiter& waiter, Woken* woken) {
  const auto pending = pending_.find(waiter.id);
  CONVENE_CHECK(pending != pending_.end());
  pending->second.places[waiter.index].line = nullptr;
  if (--pending->second.missing > 0) return;
  woken->push_back(waiter.id);
  pending_.erase(pending);
}

void Table::WakeLine(Lines* lines, const std::string& key, Woken* woken) {
  if (lines->empty()) return;
  const auto line = lines->find(key);
  if (line == lines->end()) return;
  const std::list<Waiter> waiters = std::move(line->second.waiters);
  lines->erase(line);
  for (const Waiter& waiter : waiters) Arrived(waiter, woken);
}

void Table::CancelWait(ConnectionId id) {
  const auto pending = pending_.find(id);
  if (pending == pending_.end()) return;
  for (const Place& place : pending->second.places) {
    if (place.line == nullptr) continue;
    std::list<Waiter>& waiters = place.line->second.waiters;
    waiters.erase(place.position);
    if (waiters.empty()) pending->second.lines->erase(place.line->first);
  }
  pending_.erase(pending);
}

}  // namespace convene::rendezvous
