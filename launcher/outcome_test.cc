#include "launcher/outcome.h"

#include <catch2/catch.hpp>

namespace convene::launcher {
namespace {

TEST_CASE("an outcome without a failed worker says so") {
  CHECK(OutcomeJson({0, ""}) == R"({"exit_code":0,"explanation":"","first_failure":null,)"
                                R"("lost_output":""})"
                                "\n");
}

TEST_CASE("an outcome names the first failed worker, and any text in it stays JSON") {
  rendezvous::WorkerFailure failure;
  failure.global_rank = 5;
  failure.local_rank = 1;
  failure.host = "node3";
  failure.pid = 77;
  failure.signal = 9;
  failure.why = "killed by SIGKILL";
  failure.error_file = "/logs/\"1\"/error.json";
  failure.error_lines = {"a\tb", "c\xff"};
  CHECK(OutcomeJson({1, "Job failed.\nSee above.", failure}) ==
        R"({"exit_code":1,"explanation":"Job failed.\u000aSee above.","first_failure":)"
        R"({"rank":5,"local_rank":1,"host":"node3","pid":77,"exit_code":0,"signal":9,)"
        R"("why":"killed by SIGKILL","error_file":"/logs/\"1\"/error.json",)"
        R"("error":"a\u0009b\u000ac?"},"lost_output":""})"
        "\n");
}

}  // namespace
}  // namespace convene::launcher
