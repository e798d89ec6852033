#include "rendezvous/client/node_health.h"

#include <grpcpp/grpcpp.h>

#include "proto/node_health.grpc.pb.h"
#include "rendezvous/wire/grpc_status.h"
#include "tools/base/status_macros.h"

namespace convene::rendezvous {

absl::StatusOr<NodeHealth> AskNodeHealth(const std::string& socket, absl::Duration timeout) {
  const auto channel = grpc::CreateChannel(socket, grpc::InsecureChannelCredentials());
  const auto stub = nvhcd::HealthCheckService::NewStub(channel);
  grpc::ClientContext context;
  context.set_deadline(
      gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                   gpr_time_from_millis(absl::ToInt64Milliseconds(timeout), GPR_TIMESPAN)));
  nvhcd::HealthCheckResponse response;
  CONVENE_RETURN_IF_ERROR(FromGrpc(stub->RunHealthCheck(&context, {}, &response)));
  return NodeHealth{.success = response.success(),
                    .exit_code = response.exit_code(),
                    .output = response.output(),
                    .error = response.error()};
}

}  // namespace convene::rendezvous
