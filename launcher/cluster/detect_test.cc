#include "launcher/cluster/detect.h"

#include <map>

#include "tools/base/testing/status_testing.h"

namespace convene::launcher {
namespace {

using Table = std::map<std::string, std::string>;

absl::StatusOr<DetectedJob> Detect(const Table& table) {
  const auto lookup = [&](const std::string& name) -> std::optional<std::string> {
    const auto it = table.find(name);
    if (it == table.end()) return std::nullopt;
    return it->second;
  };
  return DetectJob(lookup, {});
}

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
