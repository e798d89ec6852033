#include "rendezvous/server/server.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "grpcpp/grpcpp.h"
#include "proto/rendezvous.grpc.pb.h"
#include "rendezvous/attend/attend_stream.h"
#include "rendezvous/attend/daemon.h"
#include "rendezvous/journal/file_journal.h"
#include "rendezvous/lock/tls_context.h"
#include "rendezvous/lock/tls_pump.h"
#include "rendezvous/logs/log_hub.h"
#include "rendezvous/logs/log_streams.h"
#include "rendezvous/net/complaints.h"
#include "rendezvous/net/connect.h"
#include "rendezvous/net/grpc_setup.h"
#include "rendezvous/server/front.h"
#include "rendezvous/store/store_server.h"
#include "rendezvous/web/http_server.h"
#include "rendezvous/web/password.h"
#include "rendezvous/web/status_board.h"
#include "rendezvous/web/web.h"
#include "rendezvous/wire/grpc_status.h"
#include "rendezvous/wire/wire.h"
#include "spdlog/spdlog.h"
#include "tools/base/clock.h"
#include "tools/base/mutex.h"
#include "tools/base/random.h"
#include "tools/base/status_macros.h"
#include "tools/base/unique_fd.h"

namespace convene::rendezvous {
namespace {

constexpr int kLongestMessageBytes = 64 * 1024;
// An agent and a viewer have one at a time. A call takes 25 KB, so descriptors bound all calls.
constexpr int kMostCallsPerConnection = 100;
// Stock torchrun nodes hold their connections for as long as their run lives.
constexpr absl::Duration kStoreForgetsAfter = absl::Hours(1);
constexpr int64_t kShutdownGraceMs = 2000;
// A peer that acknowledges no sent byte for so long is gone.
constexpr int kUnacknowledgedMs = 20 * 1000;

// A slice that keeps `text` alive.
grpc::Slice Share(StatusBoard::Text text) {
  auto* const owner = new StatusBoard::Text(std::move(text));
  return grpc::Slice(
      const_cast<char*>((*owner)->data()), (*owner)->size(),
      [](void* held) { delete static_cast<StatusBoard::Text*>(held); }, owner);
}

std::string SerializedStatus(const std::vector<JobView>& views) {
  pb::StatusReply reply;
  for (const JobView& view : views) ToWire(view, reply.add_jobs());
  return reply.SerializeAsString();
}

using ServiceBase = pb::Rendezvous::WithRawCallbackMethod_Status<
    pb::Rendezvous::WithCallbackMethod_Attend<pb::Rendezvous::WithCallbackMethod_WatchLogs<
        pb::Rendezvous::WithCallbackMethod_PublishLogs<pb::Rendezvous::Service>>>>;

class RendezvousService final : public ServiceBase {
 public:
  RendezvousService(Daemon* daemon, LogHub* log_hub)
      : daemon_(daemon),
        log_hub_(log_hub),
        incarnation_(RandomU64()),
        board_([daemon](const std::string& job_id) { return daemon->Views(job_id); },
               SerializedStatus, &Clock::Real()) {}

  grpc::ServerBidiReactor<pb::AgentMessage, pb::DaemonMessage>* Attend(
      grpc::CallbackServerContext* context) override {
    return StartAttendStream(daemon_, incarnation_, context);
  }

  grpc::ServerWriteReactor<pb::LogNews>* WatchLogs(grpc::CallbackServerContext* /*context*/,
                                                   const pb::WatchLogsRequest* request) override {
    return WatchStream::Start(log_hub_, *request);
  }

  grpc::ServerBidiReactor<pb::LogBatch, pb::PublishLogsReply>* PublishLogs(
      grpc::CallbackServerContext* /*context*/) override {
    return PublishStream::Start(log_hub_);
  }

  // The reply is encoded once for all callers, since many may be watching a large job.
  grpc::ServerUnaryReactor* Status(grpc::CallbackServerContext* context,
                                   const grpc::ByteBuffer* request,
                                   grpc::ByteBuffer* reply) override {
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    reactor->Finish(Reply(*request, reply));
    return reactor;
  }

 private:
  grpc::Status Reply(const grpc::ByteBuffer& bytes, grpc::ByteBuffer* reply) {
    pb::StatusRequest request;
    grpc::ByteBuffer copy = bytes;  // reading takes it apart
    const grpc::Status parsed =
        grpc::SerializationTraits<pb::StatusRequest>::Deserialize(&copy, &request);
    if (!parsed.ok()) return parsed;
    absl::StatusOr<StatusBoard::Text> text = board_.Get(request.job_id());
    if (!text.ok()) return ToGrpc(text.status());
    const grpc::Slice slice = Share(*std::move(text));
    *reply = grpc::ByteBuffer(&slice, 1);
    return grpc::Status::OK;
  }

  Daemon* const daemon_;
  LogHub* const log_hub_;
  const Incarnation incarnation_;
  StatusBoard board_;
};

absl::StatusOr<Journal::Opened> OpenMemory(const std::string& directory) {
  CONVENE_ASSIGN_OR_RETURN(Journal::Opened memory, FileJournal::Open({.directory = directory}));
  spdlog::info("the journal in {} knows {} job{}", directory, memory.jobs.size(),
               memory.jobs.size() == 1 ? "" : "s");
  return memory;
}

// Everything behind the port. The TCPStore server and the HTTP server are started for their first
// client.
//
//   Front --"PRI "--> gRPC's acceptor -> RendezvousService -> Daemon
//    ^ |---- 0x00 ---> StoreServer                              ^
//    | |--- a letter-> HttpServer -> Web -----------------------'
//    | '---- 0x16 ---> TlsPump --.---> gRPC's acceptor, for members
//    '---------------------------'     (where it is locked)
class PortServer final : public Server {
 public:
  PortServer(const Options& options, std::optional<Journal::Opened> memory)
      : daemon_(options.clock, options.quiet, std::move(memory)),
        log_hub_(&daemon_),
        service_(&daemon_, &log_hub_),
        web_(
            &daemon_, &log_hub_, [this] { return StoreCounts(); },
            [this] { return tls_ == nullptr ? absl::InfiniteFuture() : tls_->good_until(); }),
        store_bytes_max_(options.store_bytes_max),
        credentials_(options.credentials) {
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
    {
      MutexLock lock(&acceptor_mutex_);
      acceptor_.reset();
    }
    daemon_.Shutdown();
    log_hub_.Shutdown();
    if (grpc_ != nullptr) {
      grpc_->Shutdown(gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                                   gpr_time_from_millis(kShutdownGraceMs, GPR_TIMESPAN)));
      grpc_->Wait();
    }
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
    CONVENE_RETURN_IF_ERROR(StartGrpc());
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
  absl::Status StartGrpc() {
    using ExternalConnectionType = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
    grpc::ServerBuilder builder;
    // This closes a connection that a cut network left half open. Its agent's lease ends long
    // before.
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 60 * 1000);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kUnacknowledgedMs);
    // For small messages on thousands of streams: no pings that measure the bandwidth (they are
    // half of a heartbeat's cost), no records for channelz, which is not served.
    builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    builder.AddChannelArgument(GRPC_ARG_ENABLE_CHANNELZ, 0);
    // Agents also need no filters and buffers for compression, deadlines of calls (an Attend has
    // none, a Status is answered at once), and writes without a copy.
    builder.AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_COMPRESSION, 0);
    builder.AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
    builder.AddChannelArgument(GRPC_ARG_ENABLE_DEADLINE_CHECKS, 0);
    builder.AddChannelArgument(GRPC_ARG_TCP_TX_ZEROCOPY_MAX_SIMULT_SENDS, 0);
    builder.SetMaxReceiveMessageSize(kLongestMessageBytes);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMostCallsPerConnection);
    {
      MutexLock lock(&acceptor_mutex_);
      acceptor_ = builder.experimental().AddExternalConnectionAcceptor(
          ExternalConnectionType::FROM_FD, grpc::InsecureServerCredentials());
    }
    builder.RegisterService(&service_);
    grpc_ = builder.BuildAndStart();
    return grpc_ != nullptr ? absl::OkStatus()
                            : absl::ResourceExhaustedError("gRPC's server did not start");
  }

  // Called on the HTTP server's thread.
  std::optional<StoreServer::Counts> StoreCounts() {
    MutexLock lock(&store_mutex_);
    const StoreServer* const store = given_store_.value_or(store_.get());
    if (store == nullptr) return std::nullopt;
    return store->counts();
  }

  // gRPC sets it on sockets that it accepts itself.
  static void NoticeDeadPeer(int fd) {
    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &kUnacknowledgedMs,
                     sizeof(kUnacknowledgedMs));
    RetransmitSteadily(fd);
  }

  // The next four functions run on the front's thread; PassToGrpc on the thread "tls", too.
  void PassToTls(UniqueFd fd) {
    NoticeDeadPeer(fd.get());
    const std::string peer = PeerName(fd.get());
    tls_->Open(std::move(fd), "", [this, peer](absl::StatusOr<TlsPump::Opened> opened) {
      if (!opened.ok()) {
        return complaints_.Warn(Clock::Real().Now(),
                                absl::StrCat("the rendezvous closes the connection of ", peer, ": ",
                                             opened.status().message()));
      }
      // Members speak gRPC alone.
      if (opened->peer == TlsPeer::kMember) return PassToGrpc(std::move(opened->plain));
      MutexLock lock(&adopter_mutex_);
      if (adopter_ == nullptr) return;  // stopping
      adopter_->Adopt(std::move(opened->plain),
                      opened->peer == TlsPeer::kViewer ? Origin::kViewer : Origin::kGuest);
    });
  }

  void PassToGrpc(UniqueFd fd) {
    if (tls_ == nullptr) NoticeDeadPeer(fd.get());
    MutexLock lock(&acceptor_mutex_);
    if (acceptor_ == nullptr) return;  // stopping
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
    connection.fd = fd.Release();
    acceptor_->HandleNewConnection(&connection);
  }

  void PassToStore(UniqueFd fd) {
    MutexLock lock(&store_mutex_);
    // It knows the addresses of its epoch's nodes.
    if (given_store_.has_value()) {
      if (*given_store_ != nullptr) (*given_store_)->Adopt(std::move(fd));
      return;
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
            if (!is_known && !MayLook(request, credentials_)) return AskForPassword();
            return web_.Respond(request);
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
  RendezvousService service_;
  Web web_;
  const size_t store_bytes_max_;
  const Credentials credentials_;
  Mutex adopter_mutex_;
  Front* adopter_ ABSL_GUARDED_BY(adopter_mutex_) = nullptr;  // front_, until it ends
  Complaints complaints_;                                     // of the thread "tls"
  Complaints store_complaints_;                               // of the front's thread
  Mutex acceptor_mutex_;
  // None once the server stops: gRPC would leave a connection that it is given then open for ever.
  // The thread "tls" looks at it until its end.
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_
      ABSL_GUARDED_BY(acceptor_mutex_);
  // Where the door is locked. It outlives gRPC's server, whose last words it carries.
  std::unique_ptr<TlsPump> tls_;
  std::unique_ptr<grpc::Server> grpc_;
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
