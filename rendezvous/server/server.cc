#include "rendezvous/server/server.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "grpcpp/grpcpp.h"
#include "rendezvous/attend/daemon.h"
#include "rendezvous/journal/file_journal.h"
#include "rendezvous/lock/tls_context.h"
#include "rendezvous/lock/tls_pump.h"
#include "rendezvous/logs/log_hub.h"
#include "rendezvous/net/complaints.h"
#include "rendezvous/net/connect.h"
#include "rendezvous/net/grpc_setup.h"
#include "rendezvous/server/front.h"
#include "rendezvous/server/grpc_door.h"
#include "rendezvous/server/services.h"
#include "rendezvous/store/store_server.h"
#include "rendezvous/web/http_server.h"
#include "rendezvous/web/password.h"
#include "rendezvous/web/web.h"
#include "spdlog/spdlog.h"
#include "tools/base/clock.h"
#include "tools/base/mutex.h"
#include "tools/base/random.h"
#include "tools/base/status_macros.h"
#include "tools/base/unique_fd.h"

namespace convene::rendezvous {
namespace {

// Stock torchrun nodes hold their connections for as long as their run lives.
constexpr absl::Duration kStoreForgetsAfter = absl::Hours(1);
constexpr int64_t kShutdownGraceMs = 2000;

absl::StatusOr<Journal::Opened> OpenMemory(const std::string& directory) {
  CONVENE_ASSIGN_OR_RETURN(Journal::Opened memory, FileJournal::Open({.directory = directory}));
  spdlog::info("the journal in {} knows {} job{}", directory, memory.jobs.size(),
               memory.jobs.size() == 1 ? "" : "s");
  return memory;
}

// Everything behind the port. The TCPStore server and the HTTP server are started for their first
// client.
//
//   Front --"PRI "--> GrpcDoor -> MembersService ------------> Daemon
//    ^ |---- 0x00 ---> StoreServer                              ^
//    | |--- a letter-> HttpServer -> Web -----------------------'
//    | '---- 0x16 ---> TlsPump --.---> GrpcDoor of members, or of readers
//    '---------------------------'     (where it is locked)
class PortServer final : public Server {
 public:
  PortServer(const Options& options, std::optional<Journal::Opened> memory)
      : daemon_(options.clock, options.quiet, std::move(memory)),
        log_hub_(&daemon_),
        members_service_(MakeMembersService(&daemon_, &log_hub_)),
        readers_service_(MakeReadersService(&daemon_, &log_hub_)),
        web_(
            &daemon_, &log_hub_, [this] { return StoreCounts(); },
            [this] { return tls_ == nullptr ? absl::InfiniteFuture() : tls_->good_until(); }),
        store_bytes_max_(options.store_bytes_max),
        no_store_(options.no_store),
        credentials_(options.credentials),
        password_door_(credentials_, absl::StrFormat("%016x%016x", RandomU64(), RandomU64())) {
    daemon_.set_served_by(options.served_by);
    daemon_.set_only_run(options.only_run);
    daemon_.set_on_run_ended(
        [this](WatchId watch, const RunEnded& ended) { log_hub_.EndRun(watch, ended); });
  }

  ~PortServer() override {
    web_.MarkStopping();
    // The front ends first: an agent that dials now has to be refused, and not accepted and
    // dropped.
    {
      MutexLock lock(&adopter_mutex_);
      adopter_ = nullptr;
    }
    front_.reset();
    members_.Close();
    readers_.Close();
    daemon_.Shutdown();
    log_hub_.Shutdown();
    const gpr_timespec deadline = gpr_time_add(
        gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(kShutdownGraceMs, GPR_TIMESPAN));
    members_.Shutdown(deadline);
    readers_.Shutdown(deadline);
  }

  absl::Status Begin(const Options& options) {
    if (!options.handed_over.state.empty()) {
      if (const absl::Status taken = daemon_.TakeOver(options.handed_over.state); !taken.ok()) {
        spdlog::warn("rendezvous: the job that was handed over begins anew: {}",
                     std::string(taken.message()));
      }
    }
    CONVENE_RETURN_IF_ERROR(daemon_.Start());
    const bool is_locked = !credentials_.empty();
    if (is_locked) {
      CONVENE_ASSIGN_OR_RETURN(tls_, TlsPump::Start(credentials_, TlsContext::Side::kServer));
    }
    CONVENE_ASSIGN_OR_RETURN(
        front_,
        Front::Listen({.host = options.host, .port = options.port, .is_locked = is_locked}));
    // Only now: while the port was another daemon's, that one may have begun the next epoch.
    if (!options.handed_over.state.empty() &&
        options.clock->Now() >= options.handed_over.good_until) {
      return absl::UnavailableError(
          "the job that was handed over is too old to go on with: its lease is over");
    }
    {
      MutexLock lock(&adopter_mutex_);
      adopter_ = front_.get();
    }
    CONVENE_RETURN_IF_ERROR(members_.Start(members_service_.get()));
    // Without a join token nobody can be a reader.
    if (!credentials_.join_token.empty()) {
      CONVENE_RETURN_IF_ERROR(readers_.Start(readers_service_.get()));
    }
    CONVENE_RETURN_IF_ERROR(
        front_->Serve({[this](UniqueFd fd) { PassToGrpc(std::move(fd)); },
                       [this](UniqueFd fd) { PassToStore(std::move(fd)); },
                       [this](UniqueFd fd, Origin origin) { PassToHttp(std::move(fd), origin); },
                       [this](UniqueFd fd) { PassToTls(std::move(fd)); }}));
    if (const absl::Status started = web_.Start(); !started.ok()) {
      spdlog::warn("rendezvous: the page shows no curves: {}", std::string(started.message()));
    }
    daemon_.BeginServing();
    return absl::OkStatus();
  }

  int port() const override { return front_->port(); }
  std::vector<ServedJob> ServedJobs() override { return daemon_.ServedJobs(); }
  void EndSoon(Incarnation host) override { daemon_.EndSoon(host); }

  void ServeStore(std::optional<StoreServer*> store) override {
    MutexLock lock(&store_mutex_);
    given_store_ = store;
  }

 private:
  // Called on the HTTP server's thread.
  std::optional<StoreServer::Counts> StoreCounts() {
    MutexLock lock(&store_mutex_);
    const StoreServer* const store = given_store_.value_or(store_.get());
    if (store == nullptr) return std::nullopt;
    return store->counts();
  }

  // The next four functions run on the front's thread.
  void PassToTls(UniqueFd fd) {
    NoticeDeadPeer(fd.get());
    const std::string peer = PeerName(fd.get());
    tls_->Open(std::move(fd), "", [this, peer](absl::StatusOr<TlsPump::Opened> opened) {
      if (!opened.ok()) {
        return complaints_.Warn(Clock::Real().Now(),
                                absl::StrCat("the rendezvous closes the connection of ", peer, ": ",
                                             opened.status().message()));
      }
      // Members and readers speak gRPC alone.
      if (opened->peer == TlsPeer::kMember) return members_.Take(std::move(opened->plain));
      if (opened->peer == TlsPeer::kReader) return readers_.Take(std::move(opened->plain));
      MutexLock lock(&adopter_mutex_);
      if (adopter_ == nullptr) return;  // stopping
      adopter_->Adopt(std::move(opened->plain),
                      opened->peer == TlsPeer::kViewer ? Origin::kViewer : Origin::kGuest);
    });
  }

  void PassToGrpc(UniqueFd fd) {
    NoticeDeadPeer(fd.get());
    members_.Take(std::move(fd));
  }

  void PassToStore(UniqueFd fd) {
    MutexLock lock(&store_mutex_);
    // It knows the addresses of its epoch's nodes.
    if (given_store_.has_value()) {
      if (*given_store_ != nullptr) (*given_store_)->Adopt(std::move(fd));
      return;
    }
    if (no_store_) {
      return store_complaints_.Warn(
          Clock::Real().Now(),
          absl::StrCat("the rendezvous closes the connection of ", PeerName(fd.get()),
                       ": it speaks TCPStore, and this daemon has no store (--no-store)"));
    }
    // PyTorch's client has no password: an agent on its machine speaks for it.
    if (tls_ != nullptr && !tls_->HasMemberAt(OtherMachine(fd.get()))) {
      return store_complaints_.Warn(
          Clock::Real().Now(),
          absl::StrCat("the rendezvous closes the connection of ", PeerName(fd.get()),
                       ": it speaks TCPStore, and no agent of the run is connected from its "
                       "address"));
    }
    if (store_ == nullptr) {
      absl::StatusOr<std::unique_ptr<StoreServer>> store = StoreServer::Start(
          {.listen = false, .bytes_max = store_bytes_max_, .forget_after = kStoreForgetsAfter});
      if (!store.ok()) return ComplainOf("store", store.status());
      store_ = *std::move(store);
    }
    store_->Adopt(std::move(fd));
  }

  // A client with a certificate is asked for no password.
  void PassToHttp(UniqueFd fd, Origin origin) {
    const bool is_known = origin == Origin::kViewer;
    std::unique_ptr<HttpServer>& server = is_known ? http_of_known_ : http_;
    if (server == nullptr) {
      absl::StatusOr<std::unique_ptr<HttpServer>> http =
          HttpServer::Start({}, [this, is_known](const HttpRequest& request) {
            std::optional<HttpResponse> stopped;
            if (!is_known) stopped = password_door_.Stop(request, Clock::Real().Now());
            return stopped.has_value() ? *stopped : web_.Respond(request);
          });
      if (!http.ok()) return ComplainOf("HTTP", http.status());
      server = *std::move(http);
    }
    server->Adopt(std::move(fd));
  }

  static void ComplainOf(const char* what, const absl::Status& status) {
    spdlog::error("rendezvous: cannot serve {}: {}", what, std::string(status.message()));
  }

  Daemon daemon_;
  LogHub log_hub_;
  const std::unique_ptr<grpc::Service> members_service_;
  const std::unique_ptr<grpc::Service> readers_service_;
  Web web_;
  const size_t store_bytes_max_;
  const bool no_store_;
  const Credentials credentials_;
  PasswordDoor password_door_;  // of the thread of http_
  Mutex adopter_mutex_;
  Front* adopter_ ABSL_GUARDED_BY(adopter_mutex_) = nullptr;  // front_, until it ends
  Complaints complaints_;                                     // of the thread "tls"
  Complaints store_complaints_;                               // of the front's thread
  // The thread "tls" looks at the doors until its end.
  GrpcDoor members_;
  GrpcDoor readers_;  // opened only where there is a join token
  // Where the door is locked. It carries the last words of gRPC's servers, which end before it.
  std::unique_ptr<TlsPump> tls_;
  Mutex store_mutex_;
  std::unique_ptr<StoreServer> store_ ABSL_GUARDED_BY(store_mutex_);       // the daemon's own
  std::optional<StoreServer*> given_store_ ABSL_GUARDED_BY(store_mutex_);  // in its place
  std::unique_ptr<HttpServer> http_;                                       // of the front's thread
  std::unique_ptr<HttpServer> http_of_known_;                              // likewise
  std::unique_ptr<Front> front_;  // it hands connections to the servers above
};

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const Options& options) {
  std::optional<Journal::Opened> memory;
  if (!options.state_dir.empty()) {
    CONVENE_ASSIGN_OR_RETURN(memory, OpenMemory(options.state_dir));
  }
  return Start(options, std::move(memory));
}

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const Options& options,
                                                      std::optional<Journal::Opened> memory) {
  if (memory.has_value() && memory->cut_bytes > 0) {
    spdlog::warn(
        "the last {} bytes of the journal in {} are an incomplete record, which a crash leaves: "
        "they are cut off, and no agent has acted on them",
        memory->cut_bytes, options.state_dir);
  }
  SetUpGrpc();
  auto server = std::make_unique<PortServer>(options, std::move(memory));
  CONVENE_RETURN_IF_ERROR(server->Begin(options));
  return std::unique_ptr<Server>(std::move(server));
}

}  // namespace convene::rendezvous
