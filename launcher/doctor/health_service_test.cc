#include "launcher/doctor/health_service.h"

#include "tools/base/testing/status_testing.h"

namespace convene::launcher {
namespace {

using agent::Severity;

using rendezvous::NodeHealth;

TEST_CASE("the answer of the node's health service as a finding") {
  const auto severity = [](const NodeHealth& health) { return FindingOf("s", health).severity; };
  CHECK(severity({.success = true, .output = "{\"fail_count\": 0}"}) == Severity::kGood);
  CHECK(severity({.success = true, .output = "{\"fail_count\": 2}"}) == Severity::kError);
  const agent::Finding finding = FindingOf("s", NodeHealth{.exit_code = 3, .error = "no script"});
  CHECK(finding.severity == Severity::kError);
  CHECK(finding.what == "0 failures, exit code 3: no script");
  CHECK(FindingOf("s", absl::UnavailableError("")).severity == Severity::kNote);
  CHECK(FindingOf("s", absl::DeadlineExceededError("late")).severity == Severity::kError);
}

TEST_CASE("the number of failures in whatever the script printed") {
  CHECK(FailCountOf("{\"fail_count\":17}") == 17);
  CHECK(FailCountOf("{\"fail_count\" :\n 3, \"x\": 1}") == 3);
  CHECK(FailCountOf("{\"fail_count\":\"no\"}") == 0);
  CHECK(FailCountOf("{\"fail_count\"}") == 0);
  CHECK(FailCountOf("nothing") == 0);
  CHECK(FailCountOf("\"fail_count\":99999999999999999999") == 999999999);
}

}  // namespace
}  // namespace convene::launcher
