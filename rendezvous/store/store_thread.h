// One of the store's threads, and the state that they share.
//
//   bytes ─► epoll ─► parse ─► [lock: read mail; answer what is whole] ─► send
//                                  └─► waits it ended elsewhere ─► that thread's mail and doorbell
//
// Each connection belongs to one thread for its whole life. The kernel's share of a request
// (receive, send, wake the client) is many times the table's, so the threads divide the former and
// take turns at the latter.
#pragma once

#include <sys/epoll.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "rendezvous/store/conversation.h"
#include "rendezvous/store/send_queue.h"
#include "rendezvous/store/spaces.h"
#include "rendezvous/store/table.h"
#include "rendezvous/store/wire.h"
#include "tools/base/mutex.h"
#include "tools/base/thread.h"
#include "tools/base/unique_fd.h"

namespace convene::rendezvous {

// The mail of one thread. `doorbell` is rung after something came in.
struct ThreadMail {
  UniqueFd doorbell;            // an eventfd; constant once the threads run
  Table::Woken woken;           // its connections whose wait another thread ended
  std::vector<UniqueFd> fresh;  // connections that are its own from now on
  bool stop = false;
};

// The mail is under the table's lock, and a thread reads its mail each time before it uses the
// table: so no answer (the one to CANCEL_WAIT above all) can overtake a wake-up that was due
// before.
struct SharedTable {
  SharedTable(size_t bytes_max, absl::Duration forget_after)
      : table(bytes_max), spaces(forget_after) {}

  Mutex mutex;
  Table table ABSL_GUARDED_BY(mutex);
  Spaces spaces ABSL_GUARDED_BY(mutex);
  std::vector<ThreadMail> mail ABSL_GUARDED_BY(mutex);  // one for each thread; its size is constant
  size_t connections ABSL_GUARDED_BY(mutex) = 0;
};

void RingDoorbell(int doorbell);

class StoreThread {
 public:
  // Serves from now on. `mail[index]` of `shared` is its own. The thread watches a valid
  // `listener`; accepted connections go to all threads in turn. ResourceExhausted when the system
  // has no thread left.
  static absl::StatusOr<std::unique_ptr<StoreThread>> Start(size_t index, UniqueFd listener,
                                                            UniqueFd epoll, SharedTable* shared);
  // REQUIRES: its mail says stop. Joins, and closes its connections.
  ~StoreThread();

 private:
  StoreThread(size_t index, UniqueFd listener, UniqueFd epoll, SharedTable* shared);

  struct Connection {
    UniqueFd fd;
    Conversation conversation;
    RequestParser parser;
    SendQueue send_queue;
    std::string held_input;  // received, but not to be looked at before the send queue has drained
    uint32_t interest = EPOLLIN;
  };

  void Loop();
  int AwaitEvents(epoll_event* events);
  absl::Status Watch(int operation, int fd, uint32_t events, ConnectionId id);
  bool AnswerDoorbell();
  void Accept();
  void SetAcceptPaused(bool paused);
  void Welcome(UniqueFd fd);
  Connection* Find(ConnectionId id);

  void Serve(Connection* connection, uint32_t events);
  void Read(Connection* connection);
  void Process(Connection* connection, absl::string_view input);
  absl::Status AnswerSome(Connection* connection, absl::string_view* input);
  void Close(Connection* connection, const absl::Status& breach);
  void Flush(Connection* connection);
  void FlushWoken();
  void ReadMail() ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared_->mutex);
  void ForgetUnused() ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared_->mutex);
  void PostWoken() ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared_->mutex);

  // Constant.
  const size_t index_;
  const UniqueFd listener_;  // may be invalid
  const UniqueFd epoll_;
  SharedTable* const shared_;
  std::vector<int> doorbells_;  // of all threads

  // Used by the thread alone.
  absl::flat_hash_map<ConnectionId, std::unique_ptr<Connection>> connections_;
  ConnectionId next_id_;  // its remainder by the number of threads is always index_
  std::string scratch_;
  Table::Woken woken_;                // by the call at hand
  std::vector<ConnectionId> unsent_;  // connections here that were woken and not yet flushed
  std::vector<bool> has_new_mail_;    // threads whose doorbell is due
  size_t next_host_ = 0;              // the thread that gets the next accepted connection
  bool looks_before_sleep_ = false;   // events came soon after the thread had run out of them
  bool accept_paused_ = false;
  bool told_of_exhaustion_ = false;

  Thread thread_;
};

}  // namespace convene::rendezvous
