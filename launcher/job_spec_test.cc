#include "launcher/job_spec.h"

#include "tools/base/testing/environment_table.h"
#include "tools/base/testing/status_testing.h"

namespace convene::launcher {
namespace {

using testing::LookupIn;
using Table = testing::EnvironmentTable;

const Machine kMachine = {"me", 16, 0};

const Table kSlurm = {{"SLURM_JOB_ID", "7"},         {"SLURM_STEP_ID", "0"},
                      {"SLURM_STEP_NUM_NODES", "4"}, {"SLURM_STEP_NODELIST", "n[1-4]"},
                      {"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_NODEID", "1"},
                      {"SLURM_LOCALID", "0"},        {"SLURM_GTIDS", "1"},
                      {"SLURMD_NODENAME", "n2"},     {"SLURM_JOB_NODELIST", "n[1-4]"}};
// The same job's batch script.
const Table kBatch = {{"SLURM_JOB_ID", "7"},  {"SLURM_JOB_NUM_NODES", "4"},
                      {"SLURM_NODEID", "0"},  {"SLURM_JOB_NODELIST", "n[1-4]"},
                      {"SLURM_LOCALID", "0"}, {"SLURMD_NODENAME", "n1"}};

Table With(Table table, const Table& changes) {
  for (const auto& [name, value] : changes) table[name] = value;
  return table;
}

absl::StatusOr<JobSpec> Make(const RunFlags& flags, const Table& table = {},
                             const Machine& machine = kMachine) {
  return MakeJobSpec(flags, LookupIn(table), machine, "random");
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
  flags.nproc_per_node = "xpu";
  CheckRefused(flags, "no Intel GPU");
  CHECK(Good(flags, {}, {"me", 16, 0, 2}).options.hello.local_world_size == 2);
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

TEST_CASE("--master-addr and --master-port name the place for static jobs") {
  RunFlags flags = WithNodes("2");
  flags.master_addr = "head";
  flags.node_rank = 1;
  CHECK(Good(flags).options.endpoint == "head:29500");
  flags.master_port = 1234;
  const JobSpec spec = Good(flags);
  CHECK(spec.options.endpoint == "head:1234");
  CHECK(spec.is_static);
  CHECK(spec.is_host == false);
  CHECK(spec.options.store_port == 0);
  CHECK(spec.options.store_at_rendezvous);
  CHECK(spec.options.hello.node_rank == 1);
  flags.node_rank = 0;
  CHECK(Good(flags).is_host == true);
  flags.rdzv_conf = "is_host=0";
  CHECK(Good(flags).is_host == false);
  flags.rdzv_conf = "";
  flags.node_rank.reset();
  CHECK_FALSE(Good(flags).is_host.has_value());
  flags.master_port = 0;
  CheckRefused(flags, "--master-port 0");
}

TEST_CASE("with a rendezvous of its own, or on one node, --master-port is the store's") {
  RunFlags flags = TwoNodes();
  flags.master_port = 1234;
  CHECK(Good(flags).options.store_port == 1234);
  CHECK(Good(flags).options.endpoint == "head:29400");
  CHECK_FALSE(Good(flags).is_static);
  CHECK_FALSE(Good(flags).options.store_at_rendezvous);
  flags.rdzv_backend = "static";
  CHECK_FALSE(Good(flags).options.store_at_rendezvous);
  flags.master_port = 29400;
  CheckRefused(flags, "leave it out: with --rdzv-backend static the rendezvous serves");
  flags.master_port.reset();
  CHECK(Good(flags).options.store_at_rendezvous);
  flags.rdzv_backend.reset();
  flags.master_port = 29400;
  CheckRefused(flags, "also the port of --rdzv-endpoint; the workers' store needs another one");
  flags = {};
  flags.master_port = 1234;
  CHECK(Good(flags).standalone);
  CHECK(Good(flags).options.store_port == 1234);
  CHECK(Good(flags).options.store_host == "127.0.0.1");
  flags.master_addr = "me";
  CHECK(Good(flags).options.store_host == "me");
}

TEST_CASE("a scheduler's rank is no slip of the flags'") {
  RunFlags flags = WithNodes("1");
  flags.rdzv_endpoint = "localhost:0";
  CHECK(Good(flags, kSlurm).standalone);
  flags = {};
  flags.node_rank = 2;  // of the scheduler's four
  CHECK(Good(flags, kSlurm).options.hello.node_rank == 2);
}

TEST_CASE("etcd is Convene's own rendezvous, and a line says so") {
  for (const char* backend : {"etcd", "etcd-v2"}) {
    RunFlags flags = TwoNodes();
    flags.rdzv_backend = backend;
    const JobSpec spec = Good(flags);
    REQUIRE(spec.reasons.size() == 1);
    CHECK_THAT(spec.reasons[0], Catch::Contains("Convene's own rendezvous is used, no etcd"));
  }
}

TEST_CASE("what goes beyond torchrun reaches the daemon") {
  RunFlags flags = TwoNodes();
  flags.options.hello.spares = 2;
  flags.topology = "block1/switch2";
  flags.options.hello.restart_window = absl::Hours(1);
  flags.options.hello.max_stuck_restarts = 3;
  flags.admission_delay = absl::Seconds(20);
  flags.node_rank = 3;  // the last spare
  const rendezvous::Hello hello = Good(flags).options.hello;
  CHECK(hello.spares == 2);
  CHECK(hello.topology == "block1/switch2");
  CHECK(hello.restart_window == absl::Hours(1));
  CHECK(hello.max_stuck_restarts == 3);
  CHECK(hello.admission == absl::Seconds(20));
  flags.node_rank = 4;
  CheckRefused(flags, "ranks count from 0");
}

TEST_CASE("the workers' role is the flag's, and text that a message can carry") {
  RunFlags flags;
  CHECK(Good(flags).options.hello.role == "default");
  flags.options.hello.role = "trainer";
  CHECK(Good(flags).options.hello.role == "trainer");
  flags.options.hello.role = "";
  CHECK(Good(flags).options.hello.role.empty());
  flags.options.hello.role = "\xff";
  CheckRefused(flags, "--role \"\\xff\"");
}

TEST_CASE("the topology is the flag's, else a variable's, else Slurm's without the node") {
  const Table slurm = {{"SLURM_TOPOLOGY_ADDR", "core.leaf7.node12"}};
  CHECK(Good({}, slurm).options.hello.topology == "core.leaf7");
  CHECK(Good({}, {{"SLURM_TOPOLOGY_ADDR", "node12"}}).options.hello.topology.empty());
  // Names with dots.
  CHECK(Good({}, {{"SLURM_TOPOLOGY_ADDR", "leaf7.n12.hpc.org"}, {"SLURMD_NODENAME", "n12.hpc.org"}})
            .options.hello.topology == "leaf7");
  CHECK(Good({}, {{"SLURM_TOPOLOGY_ADDR", "n12.hpc.org"}, {"SLURMD_NODENAME", "n12.hpc.org"}})
            .options.hello.topology.empty());
  Table both = slurm;
  both["CONVENE_TOPOLOGY"] = "rack4";
  CHECK(Good({}, both).options.hello.topology == "rack4");
  RunFlags flags;
  flags.topology = "";
  CHECK(Good(flags, both).options.hello.topology.empty());
  flags.topology = "rack\n4";
  CheckRefused(flags, "--topology");
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
  flags.rdzv_conf =
      "join_timeout=90, last_call_timeout=0.5,keep_alive_interval=2,is_host=false,"
      "read_timeout=9";
  const JobSpec spec = Good(flags);
  CHECK(spec.options.hello.join_timeout == absl::Seconds(90));
  CHECK(spec.options.hello.last_call == absl::Milliseconds(500));
  CHECK(spec.options.hello.lease == absl::Seconds(6));
  CHECK(spec.options.connect_timeout == absl::Seconds(9));
  CHECK(spec.is_host == false);
}

TEST_CASE("a short join timeout shortens what must fit into it") {
  const JobSpec spec = Good(WithConf("join_timeout=3"));
  CHECK(spec.options.connect_timeout == absl::Seconds(3));
}

TEST_CASE("a last call is told only when asked for, also when none is wanted") {
  CHECK(Good(WithConf("join_timeout=3")).options.hello.last_call == absl::ZeroDuration());
  const JobSpec none = Good(WithConf("last_call_timeout=0"));
  CHECK(none.options.hello.last_call > absl::ZeroDuration());
  CHECK(none.options.hello.last_call <= absl::Milliseconds(1));
}

TEST_CASE("settings that contradict each other are refused") {
  CheckRefused(WithConf("join_timeout=5,last_call_timeout=6"), "longer than join_timeout");
}

TEST_CASE("a rank in the settings counts where no flag says it") {
  RunFlags flags = TwoNodes();
  flags.rdzv_conf = "rank=1";
  CHECK(Good(flags).options.hello.node_rank == 1);
  flags.node_rank = 0;
  CHECK(Good(flags).options.hello.node_rank == 0);
}

TEST_CASE("flags that exclude each other, and places that are none, are refused") {
  RunFlags flags;
  flags.module = flags.no_python = true;
  CheckRefused(flags, "leave one out");
  flags.run_path = true;  // wins over --no-python
  Good(flags);
  for (const char* bad : {"", "head:", "head:0", "head:x", "head:65536", "http://head", "[::1"}) {
    flags = TwoNodes();
    flags.rdzv_endpoint = bad;
    INFO(bad);
    CHECK(absl::IsInvalidArgument(Make(flags).status()));
  }
}

TEST_CASE("under srun no flag is needed") {
  const JobSpec spec = Good({}, kSlurm);
  CHECK_FALSE(spec.standalone);
  CHECK(spec.options.hello.nodes_min == 4);
  CHECK(spec.options.hello.nodes_max == 4);
  CHECK(spec.options.hello.nodes_expected == 4);
  CHECK(spec.options.hello.node_rank == 1);
  CHECK(spec.options.hello.job_id == "7.0");
  CHECK(spec.options.hello.local_world_size == 1);
  CHECK(spec.options.endpoint == "n1:29512");
  CHECK(spec.slurm_host == "n1");
  CHECK_FALSE(spec.is_slurm_host);
  CHECK_FALSE(spec.local_task.has_value());
  CHECK(Good({}, With(kSlurm, {{"SLURMD_NODENAME", "n1"}})).is_slurm_host);
  CHECK(spec.options.connect_timeout == spec.options.hello.join_timeout);
  CHECK(Good(WithConf("read_timeout=7"), kSlurm).options.connect_timeout == absl::Seconds(7));
}

TEST_CASE(
    "a place by Slurm's numbers is for the run of these numbers, and another one is advised") {
  const JobSpec spec = Good({}, kSlurm);
  CHECK(spec.options.hosts_own_run_only);
  CHECK_THAT(spec.options.taken_port_advice,
             Catch::StartsWith("Port 29512 follows from the numbers of job and step") &&
                 Catch::Contains("--rdzv-endpoint n1:PORT"));
  RunFlags flags;
  flags.rdzv_id = "one of two";  // beside it another --rdzv-id of the same step
  CHECK_FALSE(Good(flags, kSlurm).options.hosts_own_run_only);
  flags.rdzv_endpoint = "n1:31000";
  CHECK(Good(flags, kSlurm).options.taken_port_advice.empty());
}

TEST_CASE("a step of one node is that node by itself, under the step's id") {
  const Table one =
      With(kSlurm,
           {{"SLURM_STEP_NUM_NODES", "1"}, {"SLURM_STEP_NODELIST", "n2"}, {"SLURM_NODEID", "0"}});
  CHECK(Good({}, one).standalone);
  CHECK(Good({}, one).options.hello.job_id == "7.0");
  RunFlags alone = WithNodes("1");
  alone.standalone = true;
  CHECK(Good(alone, kSlurm).options.hello.job_id == "random");  // four runs in one step
  RunFlags flags;
  flags.rdzv_id = "mine";
  CHECK(Good(flags, one).options.hello.job_id == "mine");
}

TEST_CASE("workers by Slurm's GPUs, by its tasks, or by the flag") {
  const Table gpus = With(kSlurm, {{"SLURM_GPUS_ON_NODE", "8"}, {"SLURM_CPUS_ON_NODE", "12"}});
  const JobSpec spec = Good({}, gpus);
  CHECK(spec.options.hello.local_world_size == 8);
  CHECK_THAT(spec.reasons[0], Catch::Contains("one for each GPU, by SLURM_GPUS_ON_NODE=8"));
  CHECK(spec.warnings.empty());
  RunFlags flags;
  const auto workers = [&](const std::string& text, const Table& table) {
    flags.nproc_per_node = text;
    return Good(flags, table).options.hello.local_world_size;
  };
  CHECK(workers("2", gpus) == 2);
  CHECK(workers("auto", gpus) == 8);
  CHECK(workers("cpu", gpus) == 12);
  CHECK(workers("cpu", With(gpus, {{"SLURM_CPUS_ON_NODE", "96"}})) == 16);
  const Table tasks = With(
      gpus, {{"SLURM_LOCALID", "2"}, {"SLURM_GTIDS", "4,5,6,7"}, {"SLURM_STEP_NUM_TASKS", "16"}});
  CHECK(Good({}, tasks).options.hello.local_world_size == 4);
  CHECK(Good({}, tasks).local_task->rank == 2);
  // The agent gets the CPUs of all tasks, and is not limited to its own.
  CHECK(workers("cpu", With(tasks, {{"SLURM_CPUS_ON_NODE", "96"}})) == 96);
  flags.standalone = true;  // each task by itself
  CHECK(workers("auto", tasks) == 16);
  CHECK_FALSE(Good(flags, tasks).local_task.has_value());
}

TEST_CASE("tasks that start no worker are told") {
  const Table tasks =
      With(kSlurm, {{"SLURM_STEP_NUM_TASKS", "8"}, {"SLURM_GTIDS", "2,3"}, {"SLURM_PROCID", "2"}});
  RunFlags flags;
  CHECK(Good(flags, tasks).warnings.empty());
  flags.nproc_per_node = "2";
  CHECK(Good(flags, tasks).warnings.empty());
  flags.nproc_per_node = "1";
  REQUIRE(Good(flags, tasks).warnings.size() == 1);
  CHECK_THAT(Good(flags, tasks).warnings[0],
             Catch::StartsWith("2 tasks on this node, but --nproc-per-node 1: task 0 starts 1"));
  flags.nnodes = "8";  // an agent a task
  CHECK(Good(flags, tasks).warnings.empty());
}

TEST_CASE("a single task with fewer CPUs than workers is told") {
  RunFlags flags;
  flags.nproc_per_node = "8";
  const Machine bound = {"me", 1, 0};
  const JobSpec spec = Good(flags, kSlurm, bound);
  REQUIRE(spec.warnings.size() == 1);
  CHECK_THAT(spec.warnings[0], Catch::Contains("1 CPU(s)") && Catch::Contains("--cpu-bind=none"));
  CHECK(Good(flags, {}, bound).warnings.empty());
}

TEST_CASE("an allocation that does not fit --nnodes is refused with both numbers") {
  CheckRefused(WithNodes("5"),
               "asks for 5 node(s) at least, but the scheduler started this command "
               "on 4",
               kSlurm);
  CheckRefused(WithNodes("5:8"), "write --nnodes 4", kSlurm);
  CheckRefused(WithNodes("3"),
               "have room for 3 node(s), but the scheduler started this command on 4", kSlurm);
  CheckRefused(WithNodes("1:2"), "--spares 2", kSlurm);
  CheckRefused(WithNodes("1"),
               "--nnodes 1 is one node by itself, but the scheduler started this command on 4",
               kSlurm);
  CHECK(Good(WithNodes("2:8"), kSlurm).options.hello.nodes_expected == 4);
  RunFlags spares = WithNodes("3");
  spares.options.hello.spares = 1;
  CHECK(Good(spares, kSlurm).options.hello.nodes_max == 3);
  CHECK(Good(spares, kSlurm).options.endpoint == "n1:29512");
  // Nodes of other jobs may come to a place that the flags name.
  RunFlags elsewhere = WithNodes("5");
  elsewhere.rdzv_endpoint = "daemon";
  elsewhere.rdzv_id = "ours";
  CHECK(Good(elsewhere, kSlurm).slurm_host.empty());
}

TEST_CASE("one node of an array that meets the others elsewhere expects more than itself") {
  RunFlags flags = WithNodes("1:4");
  const Table one =
      With(kSlurm,
           {{"SLURM_STEP_NUM_NODES", "1"}, {"SLURM_STEP_NODELIST", "n2"}, {"SLURM_NODEID", "0"}});
  CHECK(Good(flags, one).options.hello.nodes_expected == 1);
  flags.rdzv_endpoint = "daemon";
  CHECK(Good(flags, one).options.hello.nodes_expected == 0);
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

TEST_CASE("the log tells the scheduler's facts that hold, and none that a flag replaced") {
  const auto tells = [](const JobSpec& spec, const std::string& text) {
    return std::any_of(spec.reasons.begin(), spec.reasons.end(), [&](const std::string& reason) {
      return reason.find(text) != std::string::npos;
    });
  };
  const std::vector<std::string> all = {"job id 7.0, by", "4 nodes, by", "node rank 1, by",
                                        "endpoint n1:29512, by"};
  for (const std::string& text : all) CHECK(tells(Good({}, kSlurm), text));
  CHECK(tells(Good(WithNodes("2:8"), kSlurm), "4 nodes, by"));
  RunFlags flags = WithNodes("4");
  flags.rdzv_endpoint = "n1:31000";
  flags.rdzv_id = "mine";
  flags.node_rank = 1;
  for (const std::string& text : all) CHECK_FALSE(tells(Good(flags, kSlurm), text));
  const Table one =
      With(kSlurm,
           {{"SLURM_STEP_NUM_NODES", "1"}, {"SLURM_STEP_NODELIST", "n2"}, {"SLURM_NODEID", "0"}});
  CHECK(tells(Good({}, one), "job id 7.0, by"));
  CHECK_FALSE(tells(Good({}, one), "endpoint"));
}

TEST_CASE("a count that --nnodes excludes is not expected") {
  RunFlags flags = WithNodes("5:8");
  flags.rdzv_endpoint = "head";
  flags.rdzv_id = "ours";
  CHECK(Good(flags, kSlurm).options.hello.nodes_expected == 0);
}

const Machine kPod = {
    .host_name = "llama-1", .cpus = 16, .full_name = "llama-1.train.lab.svc.cluster.local"};
const Table kIndexedJob = {{"KUBERNETES_SERVICE_HOST", "10.96.0.1"}, {"JOB_COMPLETION_INDEX", "1"}};

TEST_CASE("in a pod of an Indexed Job the count is enough, and everything may come late") {
  const JobSpec spec = Good(WithNodes("4"), kIndexedJob, kPod);
  CHECK(spec.options.endpoint == "llama-0.train.lab.svc.cluster.local:29400");
  CHECK(spec.options.hello.node_rank == 1);
  CHECK(spec.options.hello.job_id == "llama");
  CHECK(spec.comes_late);
  CHECK(spec.options.awaits_node_rank);
  CHECK(spec.options.connect_timeout == spec.options.hello.join_timeout);
  CHECK_FALSE(Good(TwoNodes()).comes_late);
  CHECK_FALSE(Good(TwoNodes()).options.awaits_node_rank);
}

TEST_CASE("in a pod without a subdomain the error says what is missing") {
  CHECK_STATUS(Make(WithNodes("4"), kIndexedJob, {.host_name = "llama-1"}),
               absl::StatusCode::kInvalidArgument, "set `subdomain` in the pod's template");
}

TEST_CASE("a TrainJob's variables make a static job that waits for its first pod") {
  RunFlags flags = WithNodes("2");  // as the reader of flags takes PET_NNODES and the others
  flags.node_rank = 1;
  flags.master_addr = "llama-node-0-0.llama";
  flags.master_port = 29500;
  const JobSpec spec = Good(flags, kIndexedJob, kPod);
  CHECK(spec.options.endpoint == "llama-node-0-0.llama:29500");
  CHECK(spec.is_static);
  CHECK(spec.is_host == false);
  CHECK(spec.comes_late);
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

TEST_CASE("a plain line of a batch script on several nodes needs flags that say more") {
  CheckRefused({}, "srun --ntasks-per-node=1 convene run", kBatch);
  CheckRefused(WithNodes("4"), "plain line of a batch script", kBatch);
  CHECK(Good(WithNodes("1"), kBatch).standalone);
  RunFlags flags = WithNodes("4");
  flags.rdzv_endpoint = "n1:5000";
  const JobSpec spec = Good(flags, kBatch);
  CHECK(spec.options.hello.node_rank == -1);  // not the 0 that each batch script has
  CHECK(spec.options.hello.nodes_expected == 0);
  flags = {};
  flags.standalone = true;
  const JobSpec alone = Good(flags, kBatch);
  REQUIRE(alone.warnings.size() == 1);
  CHECK_THAT(alone.warnings[0], Catch::Contains("exec convene run"));
  flags = {};
  flags.as_torchrun = true;
  CHECK(Good(flags, kBatch).warnings.empty());
}

}  // namespace
}  // namespace convene::launcher
