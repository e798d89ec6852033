#include "rendezvous/server/grpc_door.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "rendezvous/net/connect.h"

namespace convene::rendezvous {
namespace {

constexpr int kLongestMessageBytes = 64 * 1024;
// An agent and a viewer have one at a time. A call takes 25 KB, so descriptors bound all calls.
constexpr int kMostCallsPerConnection = 100;
constexpr int kUnacknowledgedMs = 20 * 1000;

}  // namespace

absl::Status GrpcDoor::Start(grpc::Service* service) {
  using ExternalConnectionType = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
  grpc::ServerBuilder builder;
  // This closes a connection that a cut network left half open. Its agent's lease ends long before.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 60 * 1000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kUnacknowledgedMs);
  // For small messages on thousands of streams: no pings that measure the bandwidth (they are half
  // of a heartbeat's cost), no records for channelz, which is not served.
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
    MutexLock lock(&mutex_);
    acceptor_ = builder.experimental().AddExternalConnectionAcceptor(
        ExternalConnectionType::FROM_FD, grpc::InsecureServerCredentials());
  }
  builder.RegisterService(service);
  server_ = builder.BuildAndStart();
  return server_ != nullptr ? absl::OkStatus()
                            : absl::ResourceExhaustedError("gRPC's server did not start");
}

void GrpcDoor::Take(UniqueFd connection) {
  MutexLock lock(&mutex_);
  if (acceptor_ == nullptr) return;
  grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters parameters;
  parameters.fd = connection.Release();
  acceptor_->HandleNewConnection(&parameters);
}

void GrpcDoor::Close() {
  MutexLock lock(&mutex_);
  acceptor_.reset();
}

void GrpcDoor::Shutdown(gpr_timespec deadline) {
  if (server_ == nullptr) return;
  server_->Shutdown(deadline);
  server_->Wait();
  server_.reset();
}

void NoticeDeadPeer(int fd) {
  (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &kUnacknowledgedMs,
                   sizeof(kUnacknowledgedMs));
  RetransmitSteadily(fd);
}

}  // namespace convene::rendezvous
