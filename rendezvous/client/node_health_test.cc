#include "rendezvous/client/node_health.h"

#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "proto/node_health.grpc.pb.h"
#include "tools/base/testing/status_testing.h"

namespace convene::rendezvous {
namespace {

class FakeService : public nvhcd::HealthCheckService::Service {
  grpc::Status RunHealthCheck(grpc::ServerContext* context, const nvhcd::HealthCheckRequest*,
                              nvhcd::HealthCheckResponse* answer) override {
    while (hangs && !context->IsCancelled()) {
      gpr_sleep_until(
          gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(10, GPR_TIMESPAN)));
    }
    answer->set_exit_code(3);
    answer->set_output("{\"fail_count\": 2}");
    answer->set_error("no script");
    return grpc::Status::OK;
  }

 public:
  std::atomic<bool> hangs{false};
};

TEST_CASE("the node's health service is asked over its socket") {
  // An abstract socket leaves no file.
  const std::string socket = absl::StrCat("unix-abstract:convene-health-test-", getpid());
  CHECK_STATUS(AskNodeHealth(socket, absl::Seconds(10)), absl::StatusCode::kUnavailable, "");

  FakeService service;
  grpc::ServerBuilder builder;
  builder.AddListeningPort(socket, grpc::InsecureServerCredentials());
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  REQUIRE(server != nullptr);
  const auto health = AskNodeHealth(socket, absl::Seconds(10));
  REQUIRE_OK(health);
  CHECK_FALSE(health->success);
  CHECK(health->exit_code == 3);
  CHECK(health->output == "{\"fail_count\": 2}");
  CHECK(health->error == "no script");
  service.hangs = true;
  CHECK_STATUS(AskNodeHealth(socket, absl::Milliseconds(50)), absl::StatusCode::kDeadlineExceeded,
               "");
  server->Shutdown();
}

}  // namespace
}  // namespace convene::rendezvous
