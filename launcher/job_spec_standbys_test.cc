// A list of endpoints: daemons that take turns.
#include <string>

#include "launcher/job_spec.h"
#include "tools/base/testing/environment_table.h"
#include "tools/base/testing/status_testing.h"

namespace convene::launcher {
namespace {

RunFlags At(const std::string& endpoint, const std::string& conf = "") {
  RunFlags flags;
  flags.nnodes = "2";
  flags.rdzv_endpoint = endpoint;
  flags.rdzv_conf = conf;
  return flags;
}

absl::StatusOr<JobSpec> Make(const RunFlags& flags) {
  return MakeJobSpec(flags, testing::LookupIn({}), {"me", 16, 0}, "random");
}

JobSpec Good(const RunFlags& flags) {
  auto spec = Make(flags);
  REQUIRE_OK(spec);
  return *std::move(spec);
}

void CheckRefused(const RunFlags& flags, const std::string& text) {
  CHECK_STATUS(Make(flags), absl::StatusCode::kInvalidArgument, text);
}

TEST_CASE("several endpoints get a longer lease, in which the next daemon begins") {
  const JobSpec several = Good(At("a:1,b, c"));
  CHECK(several.options.endpoint == "a:1,b:29400,c:29400");
  CHECK(several.has_standbys);
  CHECK(several.options.hello.lease == absl::Seconds(20));
  const JobSpec one = Good(At("a"));
  CHECK_FALSE(one.has_standbys);
  CHECK(one.options.hello.lease == absl::Seconds(5));
  CHECK(Good(At("a,b", "keep_alive_interval=2,keep_alive_max_attempt=3")).options.hello.lease ==
        absl::Seconds(6));
}

TEST_CASE("one node alone takes part there, too") {
  RunFlags flags = At("a,b");
  flags.nnodes = "1";
  CHECK_FALSE(Good(flags).standalone);
}

TEST_CASE("no node of the job serves in place of several daemons") {
  CheckRefused(At("a,b", "is_host=1"), "--rdzv-conf is_host=1 makes a node of the job serve");
  CHECK(Good(At("a,b", "is_host=0")).has_standbys);
  RunFlags flags = At("a,b");
  flags.rdzv_backend = "static";
  CheckRefused(flags, "--rdzv-backend static (torchrun's default; c10d is another) makes a node");
  CheckRefused(At("a,a"), "--rdzv-endpoint: \"a,a\" has a:29400 twice");
}

}  // namespace
}  // namespace convene::launcher
