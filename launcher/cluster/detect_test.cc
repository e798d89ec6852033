#include "launcher/cluster/detect.h"

#include "tools/base/testing/environment_table.h"
#include "tools/base/testing/status_testing.h"

namespace convene::launcher {
namespace {

using testing::LookupIn;
using Table = testing::EnvironmentTable;

absl::StatusOr<DetectedJob> Detect(const Table& table) { return DetectJob(LookupIn(table), {}); }

TEST_CASE("without a scheduler nothing is said") {
  const auto job = Detect({});
  REQUIRE_OK(job);
  CHECK_FALSE(job->nodes.has_value());
  CHECK_FALSE(job->endpoint.has_value());
  CHECK(job->reasons.empty());
}

TEST_CASE("a variable that is no count is named") {
  CHECK_STATUS(Detect({{"JOB_COMPLETION_INDEX", "five"}}), absl::StatusCode::kInvalidArgument,
               "JOB_COMPLETION_INDEX=five");
}

}  // namespace
}  // namespace convene::launcher
