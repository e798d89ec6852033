#include "worker_runtime/checkpointing/failures.h"

#include "tools/base/testing/status_testing.h"

namespace convene::worker {
namespace {

const absl::Status kFull = absl::ResourceExhaustedError("the disk is full");

TEST_CASE("what fails now and then is allowed, what fails too often in a row is not") {
  FailuresInARow failures(3);
  for (int round = 0; round < 5; ++round) {
    CHECK_OK(failures.Record(kFull));
    CHECK_OK(failures.Record(kFull));
    CHECK(failures.count() == 2);
    CHECK_OK(failures.Record(absl::OkStatus()));
    CHECK(failures.count() == 0);
  }
  CHECK_OK(failures.Record(kFull));
  CHECK_OK(failures.Record(kFull));
  CHECK(failures.Record(kFull) ==
        absl::ResourceExhaustedError("the disk is full (3 failures in a row)"));
}

TEST_CASE("where one failure is allowed in a row, the first is the last") {
  FailuresInARow failures(1);
  CHECK_OK(failures.Record(absl::OkStatus()));
  CHECK_STATUS(failures.Record(kFull), absl::StatusCode::kResourceExhausted, "(1 failure)");
}

}  // namespace
}  // namespace convene::worker
