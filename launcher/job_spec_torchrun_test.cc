#include "launcher/job_spec.h"
#include "tools/base/testing/environment_table.h"
#include "tools/base/testing/status_testing.h"

namespace convene::launcher {
namespace {

using testing::LookupIn;
using Table = testing::EnvironmentTable;

absl::StatusOr<JobSpec> Make(const RunFlags& flags, const Table& table = {}) {
  return MakeJobSpec(flags, LookupIn(table), Machine{"me", 16, 0}, "random");
}

JobSpec Good(const RunFlags& flags, const Table& table = {}) {
  auto spec = Make(flags, table);
  REQUIRE_OK(spec);
  return *std::move(spec);
}

void CheckRefused(const RunFlags& flags, const std::string& text) {
  CHECK_STATUS(Make(flags), absl::StatusCode::kInvalidArgument, text);
}

RunFlags Torchrun(const std::string& nodes = "") {
  RunFlags flags;
  flags.as_torchrun = true;
  if (!nodes.empty()) flags.nnodes = nodes;
  return flags;
}

TEST_CASE("torchrun alone is one node by itself, whatever the scheduler says") {
  const Table slurm = {{"SLURM_JOB_ID", "7"}, {"SLURM_NNODES", "4"}, {"SLURM_LOCALID", "3"}};
  const JobSpec spec = Good(Torchrun(), slurm);
  CHECK(spec.standalone);
  CHECK(spec.options.hello.nodes_max == 1);
  CHECK(spec.options.hello.job_id == "random");
}

TEST_CASE("torchrun's nodes without an endpoint meet at the master's place, rank 0 by default") {
  const JobSpec spec = Good(Torchrun("2"));
  CHECK(spec.options.endpoint == "127.0.0.1:29500");
  CHECK(spec.options.hello.node_rank == 0);
  CHECK(spec.options.hello.job_id == "none");
  CHECK(spec.is_host == true);
}

TEST_CASE("torchrun's one node at a static endpoint serves it where it is on this machine") {
  RunFlags flags = Torchrun("1");
  flags.rdzv_endpoint = "localhost:29656";
  for (const char* backend : {"", "static"}) {
    if (*backend != 0) flags.rdzv_backend = backend;
    const JobSpec spec = Good(flags);
    CHECK(spec.options.endpoint == "localhost:29656");
    CHECK(spec.is_static);
    CHECK_FALSE(spec.is_host.has_value());
  }
  flags.node_rank = 0;
  CHECK(Good(flags).is_host == true);
}

TEST_CASE("torchrun ignores the rank of a node that is a job by itself") {
  RunFlags flags = Torchrun();
  flags.node_rank = 2;
  const JobSpec spec = Good(flags);
  CHECK(spec.standalone);
  CHECK(spec.options.hello.node_rank == -1);
  REQUIRE(spec.reasons.size() == 1);
  CHECK_THAT(spec.reasons[0], Catch::Contains("does not look at --node-rank 2"));
  flags.node_rank = 0;
  CHECK(Good(flags).reasons.empty());
  flags.node_rank = 1;
  flags.options.hello.spares = 1;
  CHECK(Good(flags).options.hello.node_rank == 1);
  flags.options.hello.spares = 0;
  flags.master_port = 1234;  // there torchrun waits for rank 0 in vain
  CheckRefused(flags, "--node-rank 1 with 1 node(s)");
  flags = {};
  flags.node_rank = 2;
  CheckRefused(flags, "--node-rank 2 with 1 node(s)");
}

TEST_CASE("torchrun looks at node rank and master only where the place is static") {
  RunFlags flags = Torchrun("2");
  flags.rdzv_backend = "c10d";
  flags.rdzv_endpoint = "head:29400";
  flags.node_rank = 0;
  flags.master_addr = "other";
  flags.master_port = 29400;
  const JobSpec spec = Good(flags);
  CHECK(spec.options.endpoint == "head:29400");
  CHECK(spec.options.hello.node_rank == -1);
  CHECK(spec.options.store_port == 0);
  CHECK_FALSE(spec.is_static);
  REQUIRE(spec.reasons.size() == 1);
  CHECK_THAT(spec.reasons[0], Catch::Contains("--node-rank, --master-addr, --master-port"));
}

TEST_CASE("a static job's nodes wait for the first one as long as for all") {
  RunFlags flags = Torchrun("2");
  flags.rdzv_conf = "timeout=900";
  CHECK(Good(flags).options.connect_timeout == absl::Minutes(15));
  flags.rdzv_backend = "c10d";
  flags.rdzv_endpoint = "head";
  flags.rdzv_conf = "";
  CHECK(Good(flags).options.connect_timeout == absl::Minutes(1));
}

TEST_CASE("torchrun reads the settings that its backend reads") {
  RunFlags flags = Torchrun("1");
  flags.rdzv_conf = "timeout=60s";
  CHECK(Good(flags).standalone);  // c10d there, without a place
  flags.master_port = 1234;
  CheckRefused(flags, "timeout=60s");
  flags = Torchrun("2");
  CHECK(Good(flags).is_static);
  flags.rdzv_conf = "timeout=60s";
  CheckRefused(flags, "timeout=60s");
  flags.rdzv_conf = "join_timeout=soon,rank=1";
  CHECK(Good(flags).options.hello.join_timeout == absl::Minutes(10));
  CHECK(Good(flags).options.hello.node_rank == 0);
  flags.rdzv_endpoint = "head";
  flags.rdzv_backend = "c10d";
  CheckRefused(flags, "join_timeout=soon");
  flags.rdzv_conf = "timeout=5";
  CHECK(Good(flags).options.hello.join_timeout == absl::Minutes(10));
}

TEST_CASE("torchrun's static place may be written as an endpoint") {
  RunFlags flags = Torchrun("2");
  flags.rdzv_endpoint = "head:1234";
  flags.node_rank = 1;
  const JobSpec spec = Good(flags);
  CHECK(spec.options.endpoint == "head:1234");
  CHECK(spec.is_static);
  CHECK(spec.is_host == false);
}

TEST_CASE("torchrun's standalone forgets where others meet, but two nodes are refused") {
  RunFlags flags = Torchrun();
  flags.standalone = true;
  flags.rdzv_endpoint = "head";
  flags.master_port = 1;
  const JobSpec spec = Good(flags);
  CHECK(spec.standalone);
  CHECK(spec.options.store_port == 0);
  flags.nnodes = "2";
  CheckRefused(flags, "--nnodes says 2");
  flags.nnodes = "2:4";
  CheckRefused(flags, "--nnodes says 2:4");
}

TEST_CASE("torchrun's standalone is one node where --nnodes begins with 1") {
  RunFlags flags = Torchrun("1:2");
  flags.standalone = true;
  const JobSpec spec = Good(flags);
  CHECK(spec.standalone);
  CHECK(spec.options.hello.nodes_max == 1);
  REQUIRE(spec.reasons.size() == 1);
  CHECK_THAT(spec.reasons[0], Catch::Contains("--nnodes 1:2 is one node"));
  flags.as_torchrun = false;
  CheckRefused(flags, "--nnodes says 1:2");
}

TEST_CASE("an endpoint with port 0 is any port of one node alone") {
  RunFlags flags = Torchrun("1");
  flags.rdzv_backend = "c10d";
  flags.rdzv_endpoint = "localhost:0";
  flags.rdzv_id = "mine";
  CHECK(Good(flags).standalone);
  CHECK(Good(flags).options.hello.job_id == "mine");
  flags.nnodes = "2";
  CheckRefused(flags, "--rdzv-endpoint");
}

}  // namespace
}  // namespace convene::launcher
