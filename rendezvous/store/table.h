// PURE. The job's keys, queues and barriers, and the connections that wait for them: no sockets, no
// wire.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/node_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "rendezvous/store/budget.h"
#include "tools/base/clock.h"

namespace convene::rendezvous {

// A client that may wait. The caller never uses a number again.
using ConnectionId = uint64_t;

// A key's value. Shared with replies that are still being written.
using Value = std::shared_ptr<const std::string>;

inline constexpr size_t kKeyBytesMax = 8 << 10;
inline constexpr size_t kValueBytesMax = 8 << 20;
inline constexpr size_t kKeysPerRequestMax = 131072;
// The bytes that an entry, a queued item, a waiting connection or a line of them takes beside its
// key and value, about.
inline constexpr size_t kEntryBytes = 224;
// The bytes that a connection's place in one line takes.
inline constexpr size_t kPlaceBytes = 64;
// PyTorch's client sends its pop as soon as it has the answer to its wait.
inline constexpr absl::Duration kReservation = absl::Seconds(1);

// Not thread-safe: the store's threads share it under one lock (store_thread.h).
//
// A key exists while it has a value or a queue of that name has an item. A wait ends when each of
// its keys has existed at some moment since it began. `woken` gets the connections whose wait or
// barrier ended by the call, each once; the caller owes each one reply. A connection has at most
// one wait or barrier. REQUIRES where one begins: !IsWaiting(id), and its reservation was released.
//
// A wait for exactly one key that a queue satisfies reserves one item for that connection until its
// next request, for kReservation at most: "wait, then pop" by several consumers gives each item to
// one of them and no consumer comes away empty, and a client that only looks takes no item away.
//
// Each key is of a run (Spaces::RunOf), which may hold a share of the budget (budget.h). A value
// counts until its last reader has let it go, on whatever thread. The table outlives its values.
//
// Errors: ResourceExhausted when the run may hold no more; nothing is changed then.
class Table {
 public:
  using Woken = std::vector<ConnectionId>;

  explicit Table(size_t bytes_max = size_t{4} << 30) : budget_(bytes_max) {}

  // The calls that follow happen at `now`, which never goes back. Ends the reservations that are
  // over by then.
  void AdvanceTo(MonotonicTime now, Woken* woken);
  // When the next reservation is over; InfiniteFuture: there is none.
  MonotonicTime reservations_end() const;

  absl::Status Set(const std::string& key, std::string value, Woken* woken);
  // Returns the value afterwards: `desired` when it was stored (present and equal to `expected`, or
  // absent and `expected` empty), the current value when it differs, and `expected` itself when the
  // key is absent and stays so.
  absl::StatusOr<Value> CompareSet(const std::string& key, std::string expected,
                                   std::string desired, Woken* woken);
  // nullptr when the key has no value.
  Value Get(const std::string& key) const;
  // The decimal number that the value at `key` begins with ("7x" is 7; absent: 0) plus `delta`,
  // stored and returned; a sum beyond 64 bits wraps round. FailedPrecondition when the value begins
  // with no number, or with one beyond 64 bits.
  absl::StatusOr<int64_t> Add(const std::string& key, int64_t delta, Woken* woken);
  absl::Status Append(const std::string& key, const std::string& suffix, Woken* woken);
  bool Delete(const std::string& key);
  bool ExistAll(const std::vector<std::string>& keys) const;
  // Keys with a value; queues are not among them.
  size_t size() const { return entries_.size(); }
  // Valid until the next call that is not const.
  std::vector<absl::string_view> Keys() const;
  // Also for what connections hold beside the table (its own lock).
  Budget& budget() { return budget_; }
  const Budget& budget() const { return budget_; }
  // Whether a key or a queue of this space (Spaces::SpaceOf) exists, or is still being read.
  bool Holds(absl::string_view space) const;
  // Drops each key, and each queue, for which `is_over` is true. REQUIRES: no connection waits for
  // them.
  void DropIf(const std::function<bool(absl::string_view key)>& is_over);

  absl::Status QueuePush(const std::string& key, std::string item, Woken* woken);
  struct Popped {
    size_t length_before = 0;  // 0: nothing to pop that is not reserved for another
    Value item;                // nullptr when length_before is 0
  };
  Popped QueuePop(ConnectionId id, const std::string& key, Woken* woken);
  size_t QueueLength(const std::string& key) const;

  // True when all keys exist; false when `id` now waits for the missing ones.
  absl::StatusOr<bool> Wait(ConnectionId id, const std::vector<std::string>& keys);
  // Adds 1 to the number at `key`. True when that reaches `world_size`: everyone in the barrier is
  // woken. False: `id` now waits in it. FailedPrecondition as for Add. The number is never reset: a
  // key serves one barrier.
  absl::StatusOr<bool> Barrier(ConnectionId id, const std::string& key, int64_t world_size,
                               Woken* woken);
  bool IsWaiting(ConnectionId id) const { return pending_.contains(id); }
  // Connections in a wait or a barrier.
  size_t waiting() const { return pending_.size(); }
  // Connections that an item is kept for.
  size_t reserved() const { return reservations_.size(); }
  // Keys and barriers for which a connection stands in line.
  size_t lines() const { return key_lines_.size() + barrier_lines_.size(); }
  // Ends the wait or barrier of `id` without an answer (cancel or disconnect), in time linear in
  // its keys.
  void CancelWait(ConnectionId id);
  // Gives the item that a wait reserved for `id` to the next in line.
  void ReleaseReservation(ConnectionId id, Woken* woken);

 private:
  struct Held {
    std::string bytes;
    Budget::Charge charge;
  };
  struct Queue {
    std::list<Value> items;  // not a deque, which takes 600 bytes for its first item
    size_t reserved = 0;     // <= items.size()
  };
  struct Waiter {
    ConnectionId id;
    size_t index;  // into Pending::places
  };
  struct Line {
    std::list<Waiter> waiters;
    Budget::Charge charge;
  };
  using Lines = absl::node_hash_map<std::string, Line>;
  // Where a connection stands in line for one key.
  struct Place {
    Lines::value_type* line = nullptr;  // nullptr: the key has come
    std::list<Waiter>::iterator position;
  };
  struct Pending {
    Lines* lines = nullptr;  // &key_lines_ or &barrier_lines_
    Budget::Charge charge;
    std::vector<Place> places;
    size_t missing = 0;
    bool reserves =
        false;  // the wait is for one key: an item that ends it is kept for this connection
  };

  struct Reservation {
    ConnectionId id;
    std::string queue;
    MonotonicTime end;
  };

  bool Exists(const std::string& key) const;
  void Reserve(ConnectionId id, const std::string& key, Queue* queue);
  absl::StatusOr<std::shared_ptr<Held>> Hold(const std::string& key, std::string value);
  static Value AsValue(const std::shared_ptr<Held>& held) { return Value(held, &held->bytes); }
  absl::StatusOr<Pending*> StandInLine(ConnectionId id, Lines* lines,
                                       const std::vector<std::string>& keys);
  void Arrived(const Waiter& waiter, Woken* woken);
  void WakeLine(Lines* lines, const std::string& key, Woken* woken);
  // Hands the queue's free items to the connections that wait for it, first come first served.
  void OfferItems(const std::string& key, Woken* woken);
  Value TakeFront(absl::flat_hash_map<std::string, Queue>::iterator queue);

  Budget budget_;  // first: it outlives the rest
  absl::flat_hash_map<std::string, std::shared_ptr<Held>> entries_;
  absl::flat_hash_map<std::string, Queue> queues_;  // never an empty one
  Lines key_lines_;  // of keys that do not exist, or of queues that are all reserved
  Lines barrier_lines_;
  absl::flat_hash_map<ConnectionId, Pending> pending_;
  MonotonicTime now_;
  std::list<Reservation> reservations_;  // in the order of their ends
  absl::flat_hash_map<ConnectionId, std::list<Reservation>::iterator> reservation_of_;
};

}  // namespace convene::rendezvous
