// One of the store's threads, and the state that they share.
//
//   bytes ─► epoll ─► parse ─► [lock: read mail; answer what is whole] ─► send
//                                  └─► waits it ended elsewhere ─► that thread's mail and doorbell
//
// Each connection belongs to one thread for its whole life. The kernel's share of a request
// (receive, send, wake the client) is many times the table's, so the threads divide the former and
// take turns at the latter.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "rendezvous/net/acceptor.h"
#include "rendezvous/net/complaints.h"
#include "rendezvous/net/send_queue.h"
#include "rendezvous/store/budget.h"
#include "rendezvous/store/conversation.h"
#include "rendezvous/store/spaces.h"
#include "rendezvous/store/table.h"
#include "rendezvous/store/wire.h"
#include "tools/base/doorbell.h"
#include "tools/base/event_loop.h"
#include "tools/base/mutex.h"
#include "tools/base/thread.h"
#include "tools/base/unique_fd.h"

namespace convene::rendezvous {

// The mail of one thread. `doorbell` is rung after something came in.
struct ThreadMail {
  std::unique_ptr<const Doorbell> doorbell = std::make_unique<Doorbell>();
  Table::Woken woken;           // its connections whose wait another thread ended
  std::vector<UniqueFd> fresh;  // connections that are its own from now on
  bool stop = false;
};

// The mail is under the table's lock, and a thread reads its mail each time before it uses the
// table: so no answer (the one to CANCEL_WAIT above all) can overtake a wake-up that was due
// before.
struct SharedTable {
  SharedTable(size_t bytes_max, absl::Duration forget_after, bool shut, size_t strangers_max)
      : most_strangers(strangers_max), table(bytes_max), spaces(forget_after), is_shut(shut) {}

  const size_t most_strangers;  // of one thread

  Mutex mutex;
  Table table ABSL_GUARDED_BY(mutex);
  Spaces spaces ABSL_GUARDED_BY(mutex);
  std::vector<ThreadMail> mail ABSL_GUARDED_BY(mutex);  // one for each thread; its size is constant
  size_t connections ABSL_GUARDED_BY(mutex) = 0;
  bool is_shut ABSL_GUARDED_BY(mutex);  // Admit() was not called yet
  // StoreServer::Admit's addresses.
  absl::flat_hash_set<std::string> clients ABSL_GUARDED_BY(mutex);
};

class StoreThread {
 public:
  // Serves from now on. `mail[index]` of `shared` is its own. A valid `listener` is this thread's
  // to watch; what it accepts goes to all threads in turn. ResourceExhausted when the system has no
  // thread or descriptor left.
  static absl::StatusOr<std::unique_ptr<StoreThread>> Start(size_t index, UniqueFd listener,
                                                            SharedTable* shared);
  // REQUIRES: its mail says stop. Joins, and closes its connections.
  ~StoreThread();

 private:
  StoreThread(size_t index, SharedTable* shared);

  struct Connection {
    UniqueFd fd;
    Conversation conversation;
    RequestParser parser;
    SendQueue send_queue;
    std::string held_input;  // received, but not to be looked at before the send queue has drained
    // A request that is not whole, an answer that is not read: what is not in the table (any more).
    Budget::Charge under_way;
    uint32_t interest = EPOLLIN;
  };

  absl::Status Begin(UniqueFd listener);
  void Loop();
  void AwaitEvents();
  void AnswerDoorbell();
  void PassOn(UniqueFd fd);
  // Serves it, or closes it as a stranger's, or lets it wait until that is known.
  void Receive(UniqueFd fd);
  void KeepAtDoor(UniqueFd fd);
  void EndAtDoor(uint64_t number);
  void Welcome(UniqueFd fd);
  void EndOldestSilent();
  Connection* Find(ConnectionId id);

  void Serve(Connection* connection, uint32_t events);
  void Read(Connection* connection);
  void Process(Connection* connection, absl::string_view input);
  absl::Status Recharge(Connection* connection);
  absl::Status AnswerSome(Connection* connection, absl::string_view* input);
  void Close(Connection* connection, const absl::Status& breach);
  void Flush(Connection* connection);
  void FlushWoken();
  void EndReservations();
  // Before and after each use of the table: time and mail come first.
  void BeginTurn() ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared_->mutex);
  void EndTurn() ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared_->mutex);
  void ReadMail() ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared_->mutex);
  void ForgetUnused() ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared_->mutex);
  void PostWoken() ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared_->mutex);

  // Constant.
  const size_t index_;
  SharedTable* const shared_;
  Budget* budget_ = nullptr;                // the table's
  std::vector<const Doorbell*> doorbells_;  // of all threads

  // Of the thread alone.
  EventLoop loop_;
  std::unique_ptr<Acceptor> acceptor_;  // null without a listener
  bool stops_ = false;
  absl::flat_hash_map<ConnectionId, std::unique_ptr<Connection>> connections_;
  // Both the oldest first, each at most `most_strangers`: connections until Admit(), and those of
  // the above that have not said VALIDATE.
  std::map<uint64_t, UniqueFd> at_the_door_;
  std::set<ConnectionId> silent_;
  uint64_t next_at_door_ = 0;
  ConnectionId next_id_;  // its remainder by the number of threads is always index_
  std::string scratch_;
  Table::Woken woken_;                // by the call at hand
  std::vector<ConnectionId> unsent_;  // connections here that were woken and not yet flushed
  std::vector<bool> has_new_mail_;    // threads whose doorbell is due
  size_t next_host_ = 0;              // the thread that gets the next accepted connection
  Complaints complaints_;
  // No thread's reservation lasts longer than until the time at which it looks again.
  MonotonicTime reservations_end_ = MonotonicTime::InfiniteFuture();
  bool looks_before_sleep_ = false;  // events came soon after the thread had run out of them

  Thread thread_;
};

}  // namespace convene::rendezvous
