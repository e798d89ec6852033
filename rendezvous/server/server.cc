#include "rendezvous/server/server.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "grpc/support/log.h"
#include "grpcpp/grpcpp.h"
#include "rendezvous/server/attend_stream.h"
#include "rendezvous/server/daemon.h"
#include "rendezvous/wire/wire.h"
#include "spdlog/spdlog.h"
#include "tools/base/random.h"
#include "tools/base/status_macros.h"
#include "tools/base/unique_fd.h"

namespace convene::rendezvous {
namespace {

constexpr int kLongestMessageBytes = 64 * 1024;
constexpr int64_t kShutdownGraceMs = 2000;

void LogAtDebug(gpr_log_func_args* line) {
  spdlog::debug("grpc {}:{}: {}", line->file, line->line, line->message);
}

class RendezvousService final : public pb::Rendezvous::CallbackService {
 public:
  explicit RendezvousService(Daemon* daemon) : daemon_(daemon), incarnation_(RandomU64()) {}

  grpc::ServerBidiReactor<pb::AgentMessage, pb::DaemonMessage>* Attend(
      grpc::CallbackServerContext* context) override {
    return AttendStream::Start(daemon_, incarnation_, context);
  }

  grpc::ServerUnaryReactor* Status(grpc::CallbackServerContext* context,
                                   const pb::StatusRequest* request,
                                   pb::StatusReply* reply) override {
    const absl::StatusOr<std::vector<JobView>> views = daemon_->Views(request->job_id());
    if (views.ok()) {
      for (const JobView& view : *views) ToWire(view, reply->add_jobs());
    }
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    reactor->Finish(ToGrpc(views.status()));
    return reactor;
  }

 private:
  Daemon* const daemon_;
  const Incarnation incarnation_;
};

struct Address {
  sockaddr_storage storage = {};
  socklen_t length = 0;
  int family = AF_INET;
  std::string text;  // as gRPC wants it: "1.2.3.4:80", "[::1]:80"
};

absl::StatusOr<Address> Resolve(const std::string& host, int port) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot listen on ", host, ": ", gai_strerror(error)));
  }
  Address address;
  std::memcpy(&address.storage, found->ai_addr, found->ai_addrlen);
  address.length = found->ai_addrlen;
  address.family = found->ai_family;
  char name[NI_MAXHOST];
  getnameinfo(found->ai_addr, found->ai_addrlen, name, sizeof(name), nullptr, 0, NI_NUMERICHOST);
  freeaddrinfo(found);
  address.text = address.family == AF_INET6 ? absl::StrCat("[", name, "]:", port)
                                            : absl::StrCat(name, ":", port);
  return address;
}

// gRPC only says that it did not start: a trial bind tells why.
absl::Status TryBind(const Address& address) {
  UniqueFd socket(::socket(address.family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const std::string what = absl::StrCat("cannot listen on ", address.text);
  if (!socket.valid()) return ErrnoStatus(errno, what);
  const int on = 1;
  setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (bind(socket.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.length) ==
      0) {
    return absl::OkStatus();
  }
  if (errno == EADDRNOTAVAIL) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": it is no address of this machine"));
  }
  return ErrnoStatus(errno, what);
}

class GrpcServer final : public Server {
 public:
  explicit GrpcServer(const Options& options)
      : daemon_(options.clock, options.quiet), service_(&daemon_) {}

  ~GrpcServer() override {
    daemon_.Shutdown();
    if (server_ == nullptr) return;
    server_->Shutdown(gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                                   gpr_time_from_millis(kShutdownGraceMs, GPR_TIMESPAN)));
    server_->Wait();
  }

  absl::Status Listen(const Options& options) {
    CONVENE_ASSIGN_OR_RETURN(const Address address, Resolve(options.host, options.port));
    CONVENE_RETURN_IF_ERROR(TryBind(address));
    grpc::ServerBuilder builder;
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    // A connection that a cut network left half open is closed in the end; that its agent is lost
    // is noticed by its lease, long before.
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 60 * 1000);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20 * 1000);
    builder.SetMaxReceiveMessageSize(kLongestMessageBytes);
    builder.AddListeningPort(address.text, grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr || port_ == 0) {
      return absl::AlreadyExistsError(
          absl::StrCat("cannot listen on ", address.text, ": another program took the port"));
    }
    return absl::OkStatus();
  }

  int port() const override { return port_; }

 private:
  Daemon daemon_;
  RendezvousService service_;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const Options& options) {
  // What matters of gRPC's own lines comes back as a status, in our words.
  gpr_set_log_function(LogAtDebug);
  auto server = std::make_unique<GrpcServer>(options);
  CONVENE_RETURN_IF_ERROR(server->Listen(options));
  return std::unique_ptr<Server>(std::move(server));
}

}  // namespace convene::rendezvous
