#include "launcher/job_spec.h"

#include <map>

#include "tools/base/testing/status_testing.h"

namespace convene::launcher {
namespace {

using Table = std::map<std::string, std::string>;

const Machine kMachine = {"me", 16, 0};

absl::StatusOr<JobSpec> Make(const RunFlags& flags, const Table& table = {},
                             const Machine& machine = kMachine) {
  const auto lookup = [&](const std::string& name) -> std::optional<std::string> {
    const auto it = table.find(name);
    if (it == table.end()) return std::nullopt;
    return it->second;
  };
  return MakeJobSpec(flags, lookup, machine, "random");
}

JobSpec Good(const RunFlags& flags, const Table& table = {}, const Machine& machine = kMachine) {
  auto spec = Make(flags, table, machine);
  REQUIRE_OK(spec);
  return *std::move(spec);
}

void CheckRefused(const RunFlags& flags, const std::string& text, const Table& table = {}) {
  CHECK_STATUS(Make(flags, table), absl::StatusCode::kInvalidArgument, text);
}

RunFlags WithNodes(const std::string& nodes) {
  RunFlags flags;
  flags.nnodes = nodes;
  return flags;
}

RunFlags TwoNodes() {
  RunFlags flags = WithNodes("2");
  flags.rdzv_endpoint = "head";
  return flags;
}

RunFlags WithConf(const std::string& conf) {
  RunFlags flags;
  flags.rdzv_conf = conf;
  return flags;
}

TEST_CASE("no flags at all are one node by itself, on any port, under a name of its own") {
  const JobSpec spec = Good({});
  CHECK(spec.standalone);
  CHECK(spec.options.may_host);
  CHECK(spec.options.endpoint == "127.0.0.1:0");
  CHECK(spec.options.store_host == "127.0.0.1");
  CHECK(spec.options.hello.job_id == "random");
  CHECK(spec.options.hello.nodes_max == 1);
  CHECK(spec.options.hello.local_world_size == 1);
  CHECK(spec.options.hello.host == "me");
}

TEST_CASE("two nodes meet at the endpoint, by default on port 29400") {
  const JobSpec spec = Good(TwoNodes());
  CHECK_FALSE(spec.standalone);
  CHECK(spec.options.endpoint == "head:29400");
  CHECK(spec.options.hello.nodes_min == 2);
  CHECK(spec.options.hello.job_id == "none");
  CHECK(spec.options.hello.node_rank == -1);
}

TEST_CASE("--nnodes takes N and MIN:MAX and nothing else") {
  RunFlags flags = TwoNodes();
  flags.nnodes = "2:8";
  CHECK(Good(flags).options.hello.nodes_max == 8);
  for (const char* bad : {"0", "x", "1:", ":2", "1:2:3", "", "-1", "1:9999999"}) {
    flags.nnodes = bad;
    CheckRefused(flags, std::string("--nnodes ") + bad);
  }
  flags.nnodes = "4:2";
  CheckRefused(flags, "write 2:4");
}

TEST_CASE("workers a node: a number, cpu, gpu, auto") {
  const auto workers = [](const std::string& text, int gpus) {
    RunFlags flags;
    flags.nproc_per_node = text;
    return Good(flags, {}, {"me", 16, gpus}).options.hello.local_world_size;
  };
  CHECK(workers("3", 8) == 3);
  CHECK(workers("cpu", 8) == 16);
  CHECK(workers("gpu", 8) == 8);
  CHECK(workers("auto", 8) == 8);
  CHECK(workers("auto", 0) == 16);
  RunFlags flags;
  for (const char* bad : {"0", "-1", "four", "99999"}) {
    flags.nproc_per_node = bad;
    CheckRefused(flags, std::string("--nproc-per-node ") + bad);
  }
  flags.nproc_per_node = "gpu";
  CheckRefused(flags, "no GPU");
}

TEST_CASE("standalone and a place to meet exclude each other") {
  RunFlags flags;
  flags.standalone = true;
  CHECK(Good(flags).standalone);
  flags.nnodes = "2";
  CheckRefused(flags, "--nnodes says 2");
  flags.nnodes.reset();
  flags.rdzv_endpoint = "head";
  CheckRefused(flags, "leave one out");
}

TEST_CASE("several nodes without a place to meet are told to name one") {
  RunFlags flags = WithNodes("2:4");
  CheckRefused(flags, "--rdzv-endpoint HOST[:PORT]");
}

TEST_CASE("--master-addr names the place for static jobs") {
  RunFlags flags = WithNodes("2");
  flags.master_addr = "head";
  flags.master_port = 29500;
  flags.node_rank = 1;
  const JobSpec spec = Good(flags);
  CHECK(spec.options.endpoint == "head:29400");
  CHECK(spec.options.store_port == 29500);
  CHECK(spec.options.hello.node_rank == 1);
  flags.master_port = 29400;
  CheckRefused(flags, "also the port of the rendezvous");
}

TEST_CASE("a fixed job refuses a rank past its nodes, an elastic one may have spares") {
  RunFlags flags = TwoNodes();
  flags.node_rank = 2;
  CheckRefused(flags, "ranks count from 0");
  flags.nnodes = "1:2";
  CHECK(Good(flags).options.hello.node_rank == 2);
}

TEST_CASE("the rendezvous' settings arrive as durations") {
  RunFlags flags = TwoNodes();
  flags.rdzv_conf = "join_timeout=90, last_call_timeout=0.5,keep_alive_interval=2,is_host=false";
  const JobSpec spec = Good(flags);
  CHECK(spec.options.hello.join_timeout == absl::Seconds(90));
  CHECK(spec.options.hello.last_call == absl::Milliseconds(500));
  CHECK(spec.options.hello.lease == absl::Seconds(6));
  CHECK(spec.is_host == false);
}

TEST_CASE("a short join timeout shortens what must fit into it") {
  const JobSpec spec = Good(WithConf("join_timeout=3"));
  CHECK(spec.options.hello.last_call == absl::Seconds(3));
  CHECK(spec.options.connect_timeout == absl::Seconds(3));
}

TEST_CASE("settings that contradict each other or nothing known are refused") {
  CheckRefused(WithConf("join_timeout=5,last_call_timeout=6"), "longer than join_timeout");
  CheckRefused(WithConf("keep_alive_max_attempt=1"), "at least 2");
  CheckRefused(WithConf("keep_alive_interval=0.1"), "from 1s to 1h");
  CheckRefused(WithConf("join_timout=5"), "did you mean join_timeout?");
  CheckRefused(WithConf("zzz=5"), "known are join_timeout");
  CheckRefused(WithConf("join_timeout"), "needs =VALUE");
  CheckRefused(WithConf("join_timeout=soon"), "join_timeout=soon");
  CheckRefused(WithConf("join_timeout=nan"), "join_timeout=nan");
  CheckRefused(WithConf("is_host=maybe"), "true or false");
}

TEST_CASE("torchrun's other settings are taken and said to have no effect") {
  const JobSpec spec = Good(WithConf("read_timeout=60"));
  REQUIRE(spec.reasons.size() == 1);
  CHECK_THAT(spec.reasons[0], Catch::Contains("read_timeout=60 has no effect"));
}

TEST_CASE("simple flags out of range are named with their value") {
  RunFlags flags;
  flags.rdzv_backend = "etcd";
  CheckRefused(flags, "--rdzv-backend etcd");
  flags = {};
  flags.max_restarts = -1;
  CheckRefused(flags, "--max-restarts -1");
  flags = {};
  flags.master_port = 70000;
  CheckRefused(flags, "--master-port 70000");
  flags = {};
  flags.shutdown_timeout_seconds = -1;
  CheckRefused(flags, "--shutdown-timeout -1");
  flags = {};
  flags.module = flags.no_python = true;
  CheckRefused(flags, "leave one out");
  for (const char* bad : {"", "head:", "head:0", "head:x", "head:65536", "http://head", "[::1"}) {
    flags = TwoNodes();
    flags.rdzv_endpoint = bad;
    INFO(bad);
    CHECK(absl::IsInvalidArgument(Make(flags).status()));
  }
}

const Table kSlurm = {{"SLURM_JOB_ID", "7"},
                      {"SLURM_NNODES", "4"},
                      {"SLURM_NODEID", "1"},
                      {"SLURM_JOB_NODELIST", "n[1-4]"}};

TEST_CASE("under srun no flag is needed") {
  const JobSpec spec = Good({}, kSlurm);
  CHECK_FALSE(spec.standalone);
  CHECK(spec.options.hello.nodes_min == 4);
  CHECK(spec.options.hello.nodes_max == 4);
  CHECK(spec.options.hello.nodes_expected == 4);
  CHECK(spec.options.hello.node_rank == 1);
  CHECK(spec.options.hello.job_id == "7");
  CHECK(spec.options.endpoint == "n1:29407");
}

TEST_CASE("flags win over Slurm, and standalone forgets it") {
  RunFlags flags = WithNodes("2:8");
  flags.rdzv_endpoint = "other:1";
  flags.rdzv_id = "mine";
  const JobSpec spec = Good(flags, kSlurm);
  CHECK(spec.options.hello.nodes_min == 2);
  CHECK(spec.options.hello.nodes_expected == 4);
  CHECK(spec.options.endpoint == "other:1");
  CHECK(spec.options.hello.job_id == "mine");
  flags = {};
  flags.standalone = true;
  CHECK(Good(flags, kSlurm).options.hello.nodes_max == 1);
}

TEST_CASE("a count that --nnodes excludes is not expected") {
  RunFlags flags = WithNodes("5:8");
  flags.rdzv_endpoint = "head";
  CHECK(Good(flags, kSlurm).options.hello.nodes_expected == 0);
}

TEST_CASE("a name that no message can carry is refused before anything starts") {
  for (const std::string& bad :
       {std::string(), std::string("caf\xe9"), std::string("a\nb"), std::string(257, 'x')}) {
    RunFlags flags;
    flags.standalone = true;
    flags.rdzv_id = bad;
    CheckRefused(flags, "--rdzv-id");
    flags.rdzv_id = "fine";
    flags.local_addr = bad;
    CheckRefused(flags, "--local-addr");
  }
}

}  // namespace
}  // namespace convene::launcher
