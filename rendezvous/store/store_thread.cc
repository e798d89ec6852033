#include "rendezvous/store/store_thread.h"

#include <sched.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rendezvous/net/connect.h"
#include "spdlog/spdlog.h"
#include "tools/base/check.h"
#include "tools/base/clock.h"
#include "tools/base/status_macros.h"

namespace convene::rendezvous {
namespace {

// While this much waits for a connection that does not read its answers, nothing is read from it.
constexpr size_t kUnsentBytesMax = 1 << 20;
constexpr size_t kReadBytes = 64 << 10;
// Each connection may hold this much beside the table without being charged for it: a usual
// request.
constexpr size_t kFreeBytes = 8 << 10;
// The most requests that one connection has answered before another thread may use the table.
constexpr int kRequestsPerTurn = 64;
// How long a thread looks for events before it sleeps, while they keep coming that soon. It takes a
// sleeper's wake-up, often the longest part of a round trip, out of a client's series of requests
// (tests/bench/store_bench.py). One series costs at most one such time in vain.
constexpr absl::Duration kLookBeforeSleep = absl::Microseconds(50);

}  // namespace

StoreThread::StoreThread(size_t index, SharedTable* shared)
    : index_(index), shared_(shared), next_id_(index), scratch_(kReadBytes, '\0') {
  {
    MutexLock lock(&shared_->mutex);
    budget_ = &shared_->table.budget();
    for (const ThreadMail& mail : shared_->mail) doorbells_.push_back(mail.doorbell.get());
  }
  has_new_mail_.resize(doorbells_.size());
}

absl::StatusOr<std::unique_ptr<StoreThread>> StoreThread::Start(size_t index, UniqueFd listener,
                                                                SharedTable* shared) {
  std::unique_ptr<StoreThread> store(new StoreThread(index, shared));
  CONVENE_RETURN_IF_ERROR(store->Begin(std::move(listener)));
  return store;
}

absl::Status StoreThread::Begin(UniqueFd listener) {
  CONVENE_RETURN_IF_ERROR(doorbells_[index_]->Attach(loop_, [this] {
    AnswerDoorbell();
    FlushWoken();
  }));
  if (listener.valid()) {
    CONVENE_ASSIGN_OR_RETURN(
        acceptor_, Acceptor::Start(loop_, std::move(listener), "the store", [this](UniqueFd fd) {
          PassOn(std::move(fd));
          FlushWoken();
        }));
  }
  CONVENE_ASSIGN_OR_RETURN(thread_,
                           Thread::Start(absl::StrCat("store", index_), [this] { Loop(); }));
  return absl::OkStatus();
}

StoreThread::~StoreThread() { thread_.Join(); }

void StoreThread::Loop() {
  while (!stops_) {
    AwaitEvents();
    loop_.Serve();
    EndReservations();
  }
}

void StoreThread::AwaitEvents() {
  if (loop_.Wait(MonotonicTime())) return;
  const MonotonicTime idle_since = Clock::Real().Now();
  while (looks_before_sleep_) {
    sched_yield();  // a client may need this very processor
    if (loop_.Wait(MonotonicTime())) return;
    looks_before_sleep_ = Clock::Real().Now() - idle_since < kLookBeforeSleep;
  }
  loop_.Wait(reservations_end_);
  looks_before_sleep_ = Clock::Real().Now() - idle_since < kLookBeforeSleep;
}

void StoreThread::AnswerDoorbell() {
  std::vector<UniqueFd> fresh;
  bool is_shut = false;
  {
    MutexLock lock(&shared_->mutex);
    stops_ = shared_->mail[index_].stop;
    if (stops_) return;
    ReadMail();
    fresh.swap(shared_->mail[index_].fresh);
    is_shut = shared_->is_shut;
  }
  if (!is_shut) {
    for (auto& [number, fd] : std::exchange(at_the_door_, {})) {
      loop_.Forget(fd.get());
      Receive(std::move(fd));
    }
  }
  for (UniqueFd& fd : fresh) Receive(std::move(fd));
}

// Gives an accepted connection to the thread whose turn it is.
void StoreThread::PassOn(UniqueFd fd) {
  const size_t host = std::exchange(next_host_, (next_host_ + 1) % doorbells_.size());
  if (host == index_) return Receive(std::move(fd));
  MutexLock lock(&shared_->mutex);
  shared_->mail[host].fresh.push_back(std::move(fd));
  has_new_mail_[host] = true;
}

void StoreThread::Receive(UniqueFd fd) {
  const std::string from = OtherHost(fd.get());
  bool is_admitted = IsOfThisMachine(fd.get());
  {
    MutexLock lock(&shared_->mutex);
    if (shared_->is_shut) return KeepAtDoor(std::move(fd));
    is_admitted |= shared_->clients.empty() || shared_->clients.contains(from);
  }
  if (is_admitted) return Welcome(std::move(fd));
  complaints_.Warn(
      Clock::Real().Now(),
      absl::StrCat("the store closes the connection of ", PeerName(fd.get()),
                   ": no node of this epoch has this address. If it belongs to the run, start the "
                   "commands of all its nodes with --open-store"));
}

// It waits with its bytes unread, until Admit() or its end.
void StoreThread::KeepAtDoor(UniqueFd fd) {
  if (at_the_door_.size() >= shared_->most_strangers) {
    const auto& [oldest, stranger] = *at_the_door_.begin();
    complaints_.Warn(Clock::Real().Now(),
                     absl::StrCat("the store closes the connection of ", PeerName(stranger.get()),
                                  ": too many wait for an epoch to begin, and it is the oldest"));
    EndAtDoor(oldest);
  }
  const uint64_t number = next_at_door_++;
  const absl::Status watched =
      loop_.Add(fd.get(), EPOLLRDHUP, [this, number](uint32_t) { EndAtDoor(number); });
  if (!watched.ok()) return complaints_.Warn(Clock::Real().Now(), watched.message());
  at_the_door_.emplace(number, std::move(fd));
}

void StoreThread::EndAtDoor(uint64_t number) {
  const auto stranger = at_the_door_.find(number);
  loop_.Forget(stranger->second.get());
  at_the_door_.erase(stranger);
}

// The first event also tells of bytes that came earlier.
void StoreThread::Welcome(UniqueFd fd) {
  const ConnectionId id = std::exchange(next_id_, next_id_ + doorbells_.size());
  auto connection = std::make_unique<Connection>();
  connection->fd = std::move(fd);
  connection->conversation.id = id;
  absl::Status ready = PrepareConnection(connection->fd.get());
  if (ready.ok()) {
    ready = loop_.Add(connection->fd.get(), connection->interest,
                      [this, raw = connection.get()](uint32_t events) {
                        Serve(raw, events);
                        FlushWoken();
                      });
  }
  if (!ready.ok()) {
    spdlog::error("the store drops a new connection: {}", ready.ToString());
    return;
  }
  connections_.emplace(id, std::move(connection));
  if (silent_.size() >= shared_->most_strangers) EndOldestSilent();
  silent_.insert(id);
  MutexLock lock(&shared_->mutex);
  ++shared_->connections;
  ForgetUnused();
}

// No time ends a client that connects early and speaks late, only the number of others.
void StoreThread::EndOldestSilent() {
  const ConnectionId id = *silent_.begin();
  Connection* const oldest = Find(id);
  Read(oldest);  // its VALIDATE may be there and wait for this busy thread
  if (!silent_.contains(id)) return;
  Close(oldest, absl::ResourceExhaustedError(
                    "too many connections have not said VALIDATE, and it is the oldest"));
}

// nullptr when it was closed meanwhile.
StoreThread::Connection* StoreThread::Find(ConnectionId id) {
  const auto found = connections_.find(id);
  return found == connections_.end() ? nullptr : found->second.get();
}

void StoreThread::Serve(Connection* connection, uint32_t events) {
  const ConnectionId id = connection->conversation.id;
  if (events & EPOLLOUT) {
    Flush(connection);
    (void)Recharge(connection);  // it holds less
    if (!connection->held_input.empty() && connection->send_queue.bytes() < kUnsentBytesMax) {
      const std::string input = std::exchange(connection->held_input, "");
      Process(connection, input);
      if (Find(id) == nullptr) return;
    }
  }
  if (connection->interest & EPOLLIN) {
    if (events & ~EPOLLOUT) Read(connection);
  } else if (events & (EPOLLHUP | EPOLLERR)) {
    Close(connection, absl::OkStatus());  // it will never take the answers that hold it up
  }
}

void StoreThread::Read(Connection* connection) {
  const ssize_t count = recv(connection->fd.get(), scratch_.data(), scratch_.size(), 0);
  if (count > 0) {
    Process(connection, absl::string_view(scratch_.data(), static_cast<size_t>(count)));
  } else if (count == 0 || (errno != EAGAIN && errno != EINTR)) {
    Close(connection, absl::OkStatus());
  }
}

// Answers the requests in `input`; may close the connection.
void StoreThread::Process(Connection* connection, absl::string_view input) {
  while (!input.empty()) {
    if (connection->send_queue.bytes() >= kUnsentBytesMax) {
      Flush(connection);
      if (connection->send_queue.bytes() >= kUnsentBytesMax) {
        connection->held_input.assign(input.data(), input.size());
        break;
      }
    }
    const absl::Status answered = AnswerSome(connection, &input);
    if (!answered.ok()) return Close(connection, answered);
    if (!silent_.empty() && connection->conversation.validated) {
      silent_.erase(connection->conversation.id);
    }
  }
  Flush(connection);
  const absl::Status charged = Recharge(connection);
  if (!charged.ok()) Close(connection, charged);
}

// Sets the connection's charge to what it holds. The run of the request pays.
absl::Status StoreThread::Recharge(Connection* connection) {
  const size_t bytes = connection->parser.held_bytes() + connection->send_queue.held_bytes() +
                       connection->held_input.size();
  Budget::Charge& charge = connection->under_way;
  if (bytes <= kFreeBytes) {
    charge = {};
    return absl::OkStatus();
  }
  if (charge.bytes() == 0) charge = budget_->Open(Spaces::RunOf(connection->parser.first_key()));
  return charge.Resize(bytes);
}

// Answers requests from the front of `*input`: all whole ones, but at most one turn's.
absl::Status StoreThread::AnswerSome(Connection* connection, absl::string_view* input) {
  CONVENE_ASSIGN_OR_RETURN(bool complete, connection->parser.Next(input));
  if (!complete) return absl::OkStatus();
  connection->under_way = {};  // its bytes go into the table now
  MutexLock lock(&shared_->mutex);
  BeginTurn();
  for (int i = 1; complete; ++i) {
    shared_->spaces.Use(connection->conversation.id, connection->parser.request().keys);
    const absl::Status answered = Answer(connection->parser.request(), &connection->conversation,
                                         &shared_->table, &connection->send_queue, &woken_);
    PostWoken();
    CONVENE_RETURN_IF_ERROR(answered);
    connection->parser.Forget();
    if (i == kRequestsPerTurn || connection->send_queue.bytes() >= kUnsentBytesMax) break;
    CONVENE_ASSIGN_OR_RETURN(complete, connection->parser.Next(input));
  }
  EndTurn();
  return absl::OkStatus();
}

// `breach` is not OK when the peer broke the protocol.
void StoreThread::Close(Connection* connection, const absl::Status& breach) {
  if (!breach.ok()) {
    complaints_.Warn(Clock::Real().Now(),
                     absl::StrCat("the store closes the connection of ",
                                  PeerName(connection->fd.get()), ": ", breach.message()));
  }
  {
    MutexLock lock(&shared_->mutex);
    BeginTurn();
    Depart(connection->conversation, &shared_->table, &woken_);
    PostWoken();
    --shared_->connections;
    shared_->spaces.Leave(connection->conversation.id, Clock::Real().Now(),
                          [this](const std::string& space) ABSL_EXCLUSIVE_LOCKS_REQUIRED(
                              shared_->mutex) { return shared_->table.Holds(space); });
    EndTurn();
  }
  silent_.erase(connection->conversation.id);
  loop_.Forget(connection->fd.get());
  connections_.erase(connection->conversation.id);
}

// Called whenever a client comes: the table grows at no other time.
void StoreThread::ForgetUnused() {
  if (!shared_->spaces.Forget(Clock::Real().Now())) return;
  const size_t before = budget_->bytes();
  shared_->table.DropIf([this](absl::string_view key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(
                            shared_->mutex) { return shared_->spaces.IsForgotten(key); });
  spdlog::info("the store dropped {} bytes of keys of jobs that are long over",
               before - budget_->bytes());
}

// Where the one client that an item was kept for did not take it, nobody else may have a request.
void StoreThread::EndReservations() {
  if (reservations_end_ == MonotonicTime::InfiniteFuture()) return;
  if (Clock::Real().Now() < reservations_end_) return;
  {
    MutexLock lock(&shared_->mutex);
    BeginTurn();
    EndTurn();
  }
  FlushWoken();
}

void StoreThread::BeginTurn() {
  ReadMail();
  shared_->table.AdvanceTo(Clock::Real().Now(), &woken_);
  PostWoken();
}

void StoreThread::EndTurn() { reservations_end_ = shared_->table.reservations_end(); }

void StoreThread::ReadMail() {
  Table::Woken& woken = shared_->mail[index_].woken;
  for (const ConnectionId id : woken) {
    Connection* const connection = Find(id);
    CONVENE_CHECK(connection != nullptr);  // it reads its mail before it departs
    AnswerWoken(&connection->send_queue);
    unsent_.push_back(id);
  }
  woken.clear();
}

void StoreThread::PostWoken() {
  if (woken_.empty()) return;
  for (const ConnectionId id : woken_) {
    const size_t host = id % doorbells_.size();
    shared_->mail[host].woken.push_back(id);
    if (host != index_) has_new_mail_[host] = true;
  }
  woken_.clear();
  ReadMail();
}

// Rings the other threads first, so that they send at the same time as this one.
void StoreThread::FlushWoken() {
  for (size_t host = 0; host < doorbells_.size(); ++host) {
    if (has_new_mail_[host]) doorbells_[host]->Ring();
    has_new_mail_[host] = false;
  }
  for (const ConnectionId id : unsent_) {
    if (Connection* connection = Find(id)) Flush(connection);
  }
  unsent_.clear();
}

// Sends what the socket takes, and asks for the events that the state calls for. A broken
// connection stays: its event comes next.
void StoreThread::Flush(Connection* connection) {
  connection->send_queue.SendTo(connection->fd.get());
  // Held input waits for room in the send queue, which this very call may have made.
  const bool held = !connection->held_input.empty();
  uint32_t interest = held ? 0u : EPOLLIN;
  if (held || !connection->send_queue.empty()) interest |= EPOLLOUT;
  if (interest == connection->interest) return;
  connection->interest = interest;
  loop_.Change(connection->fd.get(), interest);
}

}  // namespace convene::rendezvous
