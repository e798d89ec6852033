#include "rendezvous/lock/tls_pump.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "rendezvous/lock/certificates.h"
#include "rendezvous/lock/expiry.h"
#include "rendezvous/lock/tls_pipe.h"
#include "rendezvous/net/complaints.h"
#include "rendezvous/net/connect.h"
#include "spdlog/spdlog.h"
#include "tools/base/clock.h"
#include "tools/base/doorbell.h"
#include "tools/base/event_loop.h"
#include "tools/base/mutex.h"
#include "tools/base/status_macros.h"
#include "tools/base/thread.h"

namespace convene::rendezvous {
namespace {

// The other machines have so long to take the last bytes when the pump ends.
constexpr absl::Duration kLastWords = absl::Seconds(1);

class TlsPumpImpl final : public TlsPump {
 public:
  TlsPumpImpl(Credentials credentials, std::string stamp, TlsContext context, TlsContext::Side side,
              const Options& options)
      : credentials_(std::move(credentials)),
        side_(side),
        options_(options),
        stamp_(std::move(stamp)),
        context_(std::move(context)) {}

  ~TlsPumpImpl() override {
    {
      MutexLock lock(&mutex_);
      ends_ = true;
    }
    doorbell_.Ring();
    if (thread_.joinable()) thread_.Join();
  }

  absl::Status Begin() {
    LookAtEnd();
    CONVENE_RETURN_IF_ERROR(doorbell_.Attach(loop_, [this] { TakeNew(); }));
    CONVENE_ASSIGN_OR_RETURN(thread_, Thread::Start("tls", [this] { Loop(); }));
    return absl::OkStatus();
  }

  void Open(UniqueFd socket, const std::string& server_name, OnOpened on_opened) override {
    {
      MutexLock lock(&mutex_);
      new_.push_back({std::move(socket), server_name, std::move(on_opened)});
    }
    doorbell_.Ring();
  }

  bool HasMemberAt(const std::string& machine) const override {
    MutexLock lock(&mutex_);
    return members_.count(machine) > 0;
  }

  absl::Time good_until() const override {
    MutexLock lock(&mutex_);
    return good_until_;
  }

 private:
  struct New {
    UniqueFd socket;
    std::string server_name;
    OnOpened on_opened;
  };
  struct Connection {
    UniqueFd socket;  // with the name: until the handshake begins
    std::string server_name;
    std::unique_ptr<TlsPipe> pipe;  // from then on
    bool is_due = false;            // its handshake can go on
    OnOpened on_opened;             // until it is open
    std::string host;               // the other end's address
    std::string machine;            // OtherMachine
    bool is_member = false;         // it counts in members_
    MonotonicTime deadline = MonotonicTime::InfiniteFuture();
    uint32_t watched_socket = 0;  // events
    uint32_t watched_plain = 0;
  };
  using Connections = std::map<uint64_t, Connection>;
  // The handshakes under way from one address.
  struct Arrivals {
    std::set<uint64_t> handshakes;  // in the order of age
    std::deque<uint64_t> due;       // of those, and of some that have ended
  };

  void Loop() {
    while (!Ends()) {
      loop_.RunOnce(!turns_.empty()      ? MonotonicTime()
                    : deadlines_.empty() ? look_at_end_at_
                                         : std::min(look_at_end_at_, deadlines_.begin()->first));
      ShakeSome();
      EndLate();
      // A new certificate may lie there for weeks before the next handshake.
      if (Clock::Real().Now() >= look_at_end_at_ && !ReadChanged()) LookAtEnd();
    }
    TakeNew();  // their callers wait
    while (!arrivals_.empty()) Stop(Oldest(arrivals_.begin()->second));
    SayFarewell();
    while (!connections_.empty()) Stop(connections_.begin());
  }

  void Stop(Connections::iterator at) { End(at, absl::UnavailableError("this process stops")); }

  // The last words of connections whose plain side is closed already.
  void SayFarewell() {
    const MonotonicTime deadline = Clock::Real().Now() + kLastWords;
    for (auto at = connections_.begin(); at != connections_.end();) {
      at->second.pipe->MarkReady(at->second.pipe->plain());
      Move(at++);
    }
    const auto has_words = [](const auto& each) { return each.second.pipe->has_last_words(); };
    while (std::any_of(connections_.begin(), connections_.end(), has_words) &&
           Clock::Real().Now() < deadline) {
      loop_.RunOnce(deadline);
    }
  }

  bool Ends() const {
    MutexLock lock(&mutex_);
    return ends_;
  }

  void TakeNew() {
    std::vector<New> taken;
    bool ends = false;
    {
      MutexLock lock(&mutex_);
      taken.swap(new_);
      ends = ends_;
    }
    for (New& one : taken) {
      if (ends) {
        one.on_opened(absl::UnavailableError("this process stops"));
      } else {
        Add(std::move(one));
      }
    }
  }

  // Looks before it reads, so a change while it reads is seen at the next handshake. True: new
  // certificates are used from now on.
  bool ReadChanged() {
    if (!credentials_.has_certificates()) return false;
    std::string stamp = StampOf(credentials_);
    const MonotonicTime now = Clock::Real().Now();
    const bool has_changed = stamp != stamp_;
    if (!has_changed && now < retry_at_) return false;
    stamp_ = std::move(stamp);
    absl::StatusOr<TlsContext> context = TlsContext::Make(credentials_, side_);
    if (!context.ok()) {
      retry_at_ = now + options_.retry_after;
      if (has_changed) {
        spdlog::warn("the certificates changed and are not right; those from before go on: {}",
                     std::string(context.status().message()));
      }
      return false;
    }
    retry_at_ = MonotonicTime::InfiniteFuture();
    context_ = *std::move(context);
    spdlog::info("the certificate in {} was read again", credentials_.tls_cert);
    LookAtEnd();
    return true;
  }

  // At the certificates' end.
  void LookAtEnd() {
    const ExpiryNews news = NewsOfExpiry(credentials_.tls_cert, context_.good_until(), WallNow());
    look_at_end_at_ = Clock::Real().Now() + news.next_look;
    if (!news.warning.empty()) spdlog::warn("{}", news.warning);
    MutexLock lock(&mutex_);
    good_until_ = context_.good_until();
  }

  void Add(New one) {
    if (handshakes_ >= options_.most_handshakes) {
      // The address with the most of them makes room: a flood ends its own. Of addresses with as
      // many it is the one with the oldest, or the newest could end before its first byte.
      const auto most =
          std::max_element(arrivals_.begin(), arrivals_.end(), [](const auto& a, const auto& b) {
            const std::set<uint64_t>& of_a = a.second.handshakes;
            const std::set<uint64_t>& of_b = b.second.handshakes;
            return std::pair(of_a.size(), *of_b.begin()) < std::pair(of_b.size(), *of_a.begin());
          });
      End(Oldest(most->second),
          absl::ResourceExhaustedError(absl::StrCat("more than ", options_.most_handshakes,
                                                    " TLS handshakes are under way")));
    }
    const uint64_t id = next_id_++;
    Connection connection;
    connection.socket = std::move(one.socket);
    connection.server_name = std::move(one.server_name);
    connection.on_opened = std::move(one.on_opened);
    connection.host = OtherHost(connection.socket.get());
    connection.machine = OtherMachine(connection.socket.get());
    arrivals_[connection.host].handshakes.insert(id);
    ++handshakes_;
    const auto added = connections_.emplace(id, std::move(connection)).first;
    SetDeadline(added, Clock::Real().Now() + options_.handshake_limit);
    MakeDue(added);
  }

  Connections::iterator Oldest(const Arrivals& arrivals) {
    return connections_.find(*arrivals.handshakes.begin());
  }

  void MakeDue(Connections::iterator at) {
    if (std::exchange(at->second.is_due, true)) return;
    std::deque<uint64_t>& due = arrivals_[at->second.host].due;
    if (due.empty()) turns_.push_back(at->second.host);
    due.push_back(at->first);
  }

  // The next handshake that can go on; the addresses take turns. None when it has ended meanwhile.
  // REQUIRES: turns_ is not empty.
  Connections::iterator NextDue() {
    const std::string host = std::move(turns_.front());
    turns_.pop_front();
    const auto arrivals = arrivals_.find(host);
    if (arrivals == arrivals_.end() || arrivals->second.due.empty()) return connections_.end();
    const uint64_t id = arrivals->second.due.front();
    arrivals->second.due.pop_front();
    if (!arrivals->second.due.empty()) turns_.push_back(host);
    return connections_.find(id);
  }

  void EndHandshake(Connections::iterator at) {
    const auto arrivals = arrivals_.find(at->second.host);
    if (arrivals == arrivals_.end() || arrivals->second.handshakes.erase(at->first) == 0) return;
    --handshakes_;
    if (arrivals->second.handshakes.empty()) arrivals_.erase(arrivals);
  }

  void ShakeSome() {
    const MonotonicTime until = Clock::Real().Now() + options_.handshake_slice;
    while (!turns_.empty()) {
      const auto at = NextDue();
      if (at == connections_.end()) continue;
      at->second.is_due = false;
      if (at->second.pipe == nullptr) {
        ReadChanged();
        at->second.pipe = std::make_unique<TlsPipe>(context_, side_, std::move(at->second.socket),
                                                    at->second.server_name);
      }
      Move(at);
      if (Clock::Real().Now() >= until) return;
    }
  }

  // Events of either descriptor.
  void Move(Connections::iterator at) {
    Connection& connection = at->second;
    const absl::Status moved = connection.pipe->Move();
    if (absl::IsResourceExhausted(moved) && connection.on_opened == nullptr) {
      complaints_.Warn(Clock::Real().Now(),
                       absl::StrCat("TLS: the connection of ", PeerName(connection.pipe->socket()),
                                    " is closed: ", moved.message()));
    }
    if (!moved.ok()) return End(at, moved);
    if (connection.pipe->is_open() && connection.on_opened != nullptr) TellOpened(at);
    const uint64_t id = at->first;
    const absl::Status watched_socket =
        Watch(id, connection.pipe->socket(), connection.pipe->WantedOfSocket(),
              &connection.watched_socket);
    if (!watched_socket.ok()) return End(at, watched_socket);
    if (!connection.pipe->is_open()) return;
    const absl::Status watched_plain = Watch(
        id, connection.pipe->plain(), connection.pipe->WantedOfPlain(), &connection.watched_plain);
    if (!watched_plain.ok()) End(at, watched_plain);
  }

  void TellOpened(Connections::iterator at) {
    Connection& connection = at->second;
    EndHandshake(at);
    SetDeadline(at, MonotonicTime::InfiniteFuture());
    const TlsPeer peer = connection.pipe->peer();
    if (peer == TlsPeer::kMember) {
      connection.is_member = true;
      MutexLock lock(&mutex_);
      ++members_[connection.machine];
    }
    const OnOpened tell = std::exchange(connection.on_opened, nullptr);
    tell(Opened{connection.pipe->TakePlain(), peer});
  }

  absl::Status Watch(uint64_t id, int fd, uint32_t wanted, uint32_t* watched) {
    if (wanted == *watched) return absl::OkStatus();
    const bool is_new = *watched == 0;
    *watched = wanted;
    if (wanted == 0) {
      loop_.Forget(fd);
    } else if (is_new) {
      return loop_.Add(fd, wanted, [this, id, fd](uint32_t events) { OnEvents(id, fd, events); });
    } else {
      loop_.Change(fd, wanted);
    }
    return absl::OkStatus();
  }

  void OnEvents(uint64_t id, int fd, uint32_t events) {
    const auto at = connections_.find(id);
    at->second.pipe->MarkReady(fd);
    if (at->second.on_opened != nullptr) return MakeDue(at);
    // The reader has closed its end, and does not only say no more.
    const bool is_farewell = fd == at->second.pipe->plain() && (events & EPOLLHUP) != 0;
    if (is_farewell && at->second.deadline == MonotonicTime::InfiniteFuture()) {
      SetDeadline(at, Clock::Real().Now() + options_.farewell);
      if (!at->second.is_member) farewells_.insert({at->second.deadline, id});
    }
    Move(at);
  }

  void SetDeadline(Connections::iterator at, MonotonicTime deadline) {
    deadlines_.erase({at->second.deadline, at->first});
    farewells_.erase({at->second.deadline, at->first});
    at->second.deadline = deadline;
    if (deadline != MonotonicTime::InfiniteFuture()) deadlines_.insert({deadline, at->first});
  }

  void EndLate() {
    const MonotonicTime now = Clock::Real().Now();
    while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
      End(connections_.find(deadlines_.begin()->second),
          absl::DeadlineExceededError("the TLS handshake took too long"));
    }
    while (farewells_.size() > options_.most_farewells) {
      End(connections_.find(farewells_.begin()->second),
          absl::ResourceExhaustedError("too many connections are at their end"));
    }
  }

  void End(Connections::iterator at, const absl::Status& why) {
    Connection& connection = at->second;
    if (connection.pipe != nullptr) {
      loop_.Forget(connection.pipe->socket());
      if (connection.pipe->is_open()) loop_.Forget(connection.pipe->plain());
    }
    SetDeadline(at, MonotonicTime::InfiniteFuture());
    EndHandshake(at);
    if (connection.is_member) {
      MutexLock lock(&mutex_);
      const auto count = members_.find(connection.machine);
      if (--count->second == 0) members_.erase(count);
    }
    const OnOpened tell = std::exchange(connection.on_opened, nullptr);
    connections_.erase(at);
    if (tell != nullptr) tell(why);
  }

  const Credentials credentials_;
  const TlsContext::Side side_;
  const Options options_;
  const Doorbell doorbell_;
  // Of the thread alone.
  EventLoop loop_;
  std::string stamp_;  // of the files when they were read last
  MonotonicTime retry_at_ = MonotonicTime::InfiniteFuture();
  TlsContext context_;
  MonotonicTime look_at_end_at_;  // of context_
  Connections connections_;
  std::map<std::string, Arrivals> arrivals_;  // by address
  size_t handshakes_ = 0;                     // of all of them
  std::deque<std::string> turns_;             // addresses with handshakes that are due
  std::set<std::pair<MonotonicTime, uint64_t>> deadlines_;
  std::set<std::pair<MonotonicTime, uint64_t>> farewells_;  // of those, the farewells of no members
  uint64_t next_id_ = 0;
  Complaints complaints_;

  mutable Mutex mutex_;
  std::vector<New> new_ ABSL_GUARDED_BY(mutex_);
  absl::Time good_until_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, int> members_ ABSL_GUARDED_BY(mutex_);  // connections by machine
  bool ends_ ABSL_GUARDED_BY(mutex_) = false;

  Thread thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TlsPump>> TlsPump::Start(const Credentials& credentials,
                                                        TlsContext::Side side,
                                                        const Options& options) {
  std::string stamp = StampOf(credentials);
  CONVENE_ASSIGN_OR_RETURN(TlsContext context, TlsContext::Make(credentials, side));
  auto pump = std::make_unique<TlsPumpImpl>(credentials, std::move(stamp), std::move(context), side,
                                            options);
  CONVENE_RETURN_IF_ERROR(Annotate(pump->Begin(), "TLS"));
  return std::unique_ptr<TlsPump>(std::move(pump));
}

}  // namespace convene::rendezvous
