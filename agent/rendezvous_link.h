// The agent's link to the rendezvous: hosts it when no process does, dials it, and brings its
// messages to the agent's loop.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rendezvous/client/agent_stream.h"
#include "rendezvous/quorum/messages.h"
#include "rendezvous/server/server.h"
#include "tools/base/clock.h"
#include "tools/base/doorbell.h"
#include "tools/base/event_loop.h"
#include "tools/base/host_port.h"
#include "tools/base/mutex.h"
#include "tools/base/strong_int.h"
#include "tools/base/thread.h"
#include "tools/base/unique_fd.h"

namespace convene::agent {

// Lives on the thread of its loop. One thread of its own, "dial", only while a stream is being
// opened: that may take seconds, and the workers' output must not wait for it.
class RendezvousLink {
 public:
  struct Options {
    // At least one. A port 0: hosts it on any free port (may_host must be set).
    std::vector<HostPort> places;
    bool may_host = false;  // there is one place, and it is on this machine
    std::string served_by;  // of a server that this process hosts
    std::string only_run;   // Server::Options
    // Appended where another program or run has the port: to a FailedPrecondition of the one that
    // answers there, and before the first epoch where no daemon answers at a port of this machine.
    // "": nothing.
    std::string taken_port_advice;
    Incarnation incarnation;
    size_t store_bytes_max = 0;  // Server::Options
    // Server::Options, and those that the rendezvous at `places` wants.
    rendezvous::Credentials credentials;
    // Called with a second descriptor of each stream's connection.
    std::function<void(UniqueFd)> on_connection = [](UniqueFd) {};
  };
  // An event of the daemon, or the status of a stream that ended (or could not be opened). They
  // come in order; after an end nothing comes until the next Open.
  using News = std::variant<rendezvous::DaemonEvent, absl::Status>;

  RendezvousLink(EventLoop& loop, Options options, std::function<void(News)> on_news);
  // Waits for a try that is under way, at most its timeout.
  ~RendezvousLink();
  RendezvousLink(const RendezvousLink&) = delete;
  RendezvousLink& operator=(const RendezvousLink&) = delete;

  // Dials the place of that index. Each try begins with the question which process hosts: when
  // `may_host`, the port is bound if it is free; when it is taken, its owner is dialled. `may_host`
  // false: not this time. A server that begins now goes on with `handed_over` (Server::Options).
  // REQUIRES: no stream is open or being opened.
  void Open(const rendezvous::Hello& hello, size_t place, absl::Duration timeout, bool may_host,
            const rendezvous::Server::HandedOver& handed_over);
  // Ends the stream without news.
  void Close();
  // There is no more news of the stream, which a silent daemon has. It ends when the next stream
  // has its first news: the daemon may be there again then, and would take an end before the next
  // Hello for this node's end.
  void Leave();
  // The endpoint of the open stream, or of the last one.
  rendezvous::Endpoint endpoint() const { return At(Dialled(), server_ != nullptr); }
  // The time when the open stream's Hello was sent. REQUIRES: a stream is open.
  MonotonicTime opened_at() const { return stream_->opened_at(); }
  // This machine's address towards the rendezvous. REQUIRES: a stream is open.
  const std::string& own_host() const { return stream_->own_host(); }
  // This process serves the rendezvous, and its streams go to itself.
  bool is_hosting() const { return server_ != nullptr; }
  // No other agent can know the port, so the daemon's log would mostly repeat the agent's.
  bool IsForThisNodeOnly() const { return options_.places[0].port == 0; }
  // Jobs that need the rendezvous of this process; none when it does not host one, or when no other
  // process can know its port.
  std::vector<rendezvous::ServedJob> ServedJobs() {
    return server_ == nullptr || IsForThisNodeOnly() ? std::vector<rendezvous::ServedJob>()
                                                     : server_->ServedJobs();
  }
  // This process is told to end (Server::EndSoon), also where it begins to host only now.
  void EndSoon();
  // The job's store on the port of the rendezvous (Server::ServeStore). REQUIRES: is_hosting().
  void ServeStore(std::optional<rendezvous::StoreServer*> store) { server_->ServeStore(store); }
  int hosted_port() const { return server_->port(); }
  // The event is lost when no stream is open.
  void Send(Epoch epoch, rendezvous::AgentEvent event);

  // Stops hosting: the server sends its last messages to the other agents (Close, HandOver), for at
  // most 2 s.
  void StopHosting() { server_.reset(); }

 private:
  // The outcome of one Open. Its handlers may still run when it is no longer wanted.
  struct Opened {
    absl::StatusOr<std::unique_ptr<rendezvous::AgentStream>> stream;
    std::unique_ptr<rendezvous::Server> server;  // when this try began to host
  };
  using Item = std::variant<Opened, News>;

  // The server of this process is known without a name: a node's certificate need not have the
  // address by which the node reaches itself.
  rendezvous::Endpoint At(const HostPort& place, bool is_own) const {
    return locked_.At(FormatHostPort(place.host, place.port), is_own ? "" : place.host,
                      {.is_once = options_.places.size() > 1, .turn = turns_[place_]});
  }
  HostPort Dialled() const {
    return server_ == nullptr ? options_.places[place_] : OwnPlace(*server_);
  }
  // Where this process reaches the server that it hosts, without asking a name service.
  HostPort OwnPlace(const rendezvous::Server& server) const;
  // Runs on the thread "dial".
  Opened Dial(const rendezvous::Hello& hello, absl::Duration timeout, int64_t generation,
              bool host_now, const rendezvous::Server::HandedOver& handed_over,
              rendezvous::Endpoint endpoint);
  absl::Status WithAdvice(const absl::Status& status) const;
  // Called from any thread.
  void Post(int64_t generation, Item item) ABSL_LOCKS_EXCLUDED(mutex_);
  std::deque<std::pair<int64_t, Item>> TakePosted() ABSL_LOCKS_EXCLUDED(mutex_);
  void OnPosted() ABSL_LOCKS_EXCLUDED(mutex_);
  void Handle(Item item);
  // Drops what the stream posts.
  void Forget();

  EventLoop& loop_;
  const Options options_;
  const std::function<void(News)> on_news_;
  const rendezvous::Endpoint locked_;  // of each address that is dialled
  const Doorbell posted_;

  std::unique_ptr<rendezvous::Server> server_;
  std::unique_ptr<rendezvous::AgentStream> stream_;
  std::unique_ptr<rendezvous::AgentStream> left_;  // by Leave(), until the next one has news
  size_t place_ = 0;                               // of the latest Open
  std::vector<int> turns_;                         // Dialling::turn, of each place
  Thread dialer_;
  int64_t generation_ = 0;  // of the latest Open or Close; what earlier ones post is dropped
  bool ends_soon_ = false;
  bool is_opened_ = false;  // the stream of this generation is in our hands
  std::deque<Item> early_;  // items that came before the stream was in our hands

  Mutex mutex_;
  std::deque<std::pair<int64_t, Item>> queue_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace convene::agent
