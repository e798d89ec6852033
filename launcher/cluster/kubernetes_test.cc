#include "launcher/cluster/kubernetes.h"

#include <string>

#include "launcher/cluster/detect.h"
#include "tools/base/testing/environment_table.h"
#include "tools/base/testing/status_testing.h"

namespace convene::launcher {
namespace {

using testing::LookupIn;
using Table = testing::EnvironmentTable;

// The variables that every container gets, with a Service `master` in the namespace.
Table InPodWith(Table table) {
  table.insert({{"KUBERNETES_SERVICE_HOST", "10.96.0.1"},
                {"KUBERNETES_SERVICE_PORT", "443"},
                {"KUBERNETES_PORT", "tcp://10.96.0.1:443"},
                {"MASTER_SERVICE_HOST", "10.96.7.7"},
                {"MASTER_PORT", "tcp://10.96.7.7:80"}});
  return table;
}

absl::StatusOr<DetectedJob> Detect(const Table& table, const ProcessFacts& process) {
  return DetectJob(MeantEnvironment(LookupIn(table)), process);
}

ProcessFacts Pod(const std::string& name, const std::string& domain) {
  return {.host_name = name, .full_name = domain.empty() ? "" : name + "." + domain};
}

constexpr char kDomain[] = "train.research.svc.cluster.local";

TEST_CASE("an Indexed Job: the index is the rank, and pod 0 has this pod's name with a 0") {
  const auto job = Detect(InPodWith({{"JOB_COMPLETION_INDEX", "12"}}), Pod("llama-12", kDomain));
  REQUIRE_OK(job);
  CHECK(job->node_rank == 12);
  CHECK(job->endpoint == "llama-0.train.research.svc.cluster.local:29400");
  CHECK(job->job_id == "llama");
  CHECK_FALSE(job->nodes.has_value());
  REQUIRE(job->reasons.size() == 3);
  CHECK_THAT(job->reasons[0].text, Catch::Contains("JOB_COMPLETION_INDEX; --nnodes or PET_NNODES"));
  CHECK_THAT(job->reasons[2].text, Catch::Contains("by this pod's name llama-12.train"));
}

TEST_CASE("a pod whose host name has its domain finds pod 0 as well") {
  const std::string name = std::string("llama-12.") + kDomain;
  const auto job = Detect(InPodWith({{"JOB_COMPLETION_INDEX", "12"}}), {.host_name = name});
  REQUIRE_OK(job);
  CHECK(job->endpoint == "llama-0.train.research.svc.cluster.local:29400");
  CHECK(job->job_id == "llama");
}

TEST_CASE("an Indexed Job without a subdomain has a rank, and says why there is no endpoint") {
  const auto job = Detect(InPodWith({{"JOB_COMPLETION_INDEX", "1"}}), Pod("llama-1", ""));
  REQUIRE_OK(job);
  CHECK(job->node_rank == 1);
  CHECK_FALSE(job->endpoint.has_value());
  CHECK_THAT(job->endpoint_hint, Catch::Contains("headless Service"));
}

TEST_CASE("a pod whose host name is not the Job's tells its rank only") {
  const auto job = Detect(InPodWith({{"JOB_COMPLETION_INDEX", "1"}}), Pod("gpu-node-7", "local"));
  REQUIRE_OK(job);
  CHECK(job->node_rank == 1);
  CHECK_FALSE(job->endpoint.has_value());
  CHECK_FALSE(job->job_id.has_value());
}

TEST_CASE("a StatefulSet's pod knows its ordinal only by the name of the set") {
  CHECK_FALSE(Detect(InPodWith({}), Pod("web-1", kDomain))->node_rank.has_value());
  const Table table = InPodWith({{"CONVENE_STATEFULSET", "web"}});
  const auto job = Detect(table, Pod("web-1", kDomain));
  REQUIRE_OK(job);
  CHECK(job->node_rank == 1);
  CHECK(job->endpoint == "web-0.train.research.svc.cluster.local:29400");
  for (const char* stranger : {"web", "web-", "web-x1", "web-1-2", "webs-1", "web--1"}) {
    INFO(stranger);
    CHECK_STATUS(Detect(table, Pod(stranger, kDomain)), absl::StatusCode::kInvalidArgument,
                 "CONVENE_STATEFULSET=web, but this host is called");
  }
}

const Table kJobSet = InPodWith({{"JOB_COMPLETION_INDEX", "1"},
                                 {"JOBSET_NAME", "llama"},
                                 {"JOBSET_COORDINATOR", "llama-workers-0-0.llama"},
                                 {"JOBSET_GLOBAL_REPLICAS", "4"},
                                 {"JOBSET_JOB_GLOBAL_INDEX", "2"},
                                 {"JOBSET_PODS_PER_JOB", "2"},
                                 {"JOBSET_RESTART_ATTEMPT", "3"}});

TEST_CASE("a JobSet: Jobs times pods, the coordinator, and the restart in the job's id") {
  const auto job = Detect(kJobSet, Pod("llama-workers-2-1", "llama.research.svc.cluster.local"));
  REQUIRE_OK(job);
  CHECK(job->nodes == 8);
  CHECK(job->node_rank == 5);
  CHECK(job->endpoint == "llama-workers-0-0.llama:29400");
  CHECK(job->job_id == "llama.3");
}

TEST_CASE("a JobSet whose numbers do not fit each other is refused with all of them") {
  Table table = kJobSet;
  table["JOBSET_PODS_PER_JOB"] = "1";
  CHECK_STATUS(Detect(table, {}), absl::StatusCode::kInvalidArgument,
               "JOB_COMPLETION_INDEX=1. Set JOBSET_PODS_PER_JOB");
  table["JOBSET_PODS_PER_JOB"] = "2000000000";
  CHECK_STATUS(Detect(table, {}), absl::StatusCode::kInvalidArgument, "contradict each other");
}

// As pkg/controller.v1/pytorch/envvar.go of kubeflow/training-operator sets them.
const Table kPyTorchJob = InPodWith({{"PYTHONUNBUFFERED", "0"},
                                     {"MASTER_PORT", "23456"},
                                     {"MASTER_ADDR", "llama-master-0"},
                                     {"WORLD_SIZE", "4"},
                                     {"RANK", "3"}});

TEST_CASE("a PyTorchJob counts pods by WORLD_SIZE and RANK") {
  const auto job = Detect(kPyTorchJob, Pod("llama-worker-2", ""));
  REQUIRE_OK(job);
  CHECK(job->nodes == 4);
  CHECK(job->node_rank == 3);
  CHECK(job->endpoint == "llama-master-0:23456");
}

TEST_CASE("a later PyTorchJob counts workers by WORLD_SIZE, and tells the pods by a flag") {
  Table table = kPyTorchJob;
  table["WORLD_SIZE"] = "32";
  table["PET_NNODES"] = "4";
  const auto job = Detect(table, Pod("llama-worker-2", ""));
  REQUIRE_OK(job);
  CHECK_FALSE(job->nodes.has_value());
  CHECK(job->node_rank == 3);
  CHECK(job->endpoint == "llama-master-0:23456");
}

TEST_CASE("the same variables mean nothing outside of a pod, and below another launcher") {
  Table table = kPyTorchJob;
  table["LOCAL_RANK"] = "0";
  CHECK(Detect(table, {})->reasons.empty());
  table = kPyTorchJob;
  table.erase("KUBERNETES_SERVICE_HOST");
  CHECK(Detect(table, {})->reasons.empty());
}

TEST_CASE("a PyTorchJob's variables that contradict each other, or are no numbers, are named") {
  Table table = kPyTorchJob;
  table["RANK"] = "4";
  CHECK_STATUS(Detect(table, {}), absl::StatusCode::kInvalidArgument, "RANK=4 and WORLD_SIZE=4");
  table["RANK"] = "first";
  CHECK_STATUS(Detect(table, {}), absl::StatusCode::kInvalidArgument, "RANK=first");
}

TEST_CASE("a Service `master` is no PyTorchJob") {
  Table table = kPyTorchJob;
  table["MASTER_PORT"] = "tcp://10.96.7.7:80";
  CHECK(Detect(table, {})->reasons.empty());
}

TEST_CASE("Volcano: the task is the part of the pod's name whose hosts have this one") {
  const Table table = InPodWith({{"VC_TASK_INDEX", "1"},
                                 {"VC_TASK_NAME_NUM", "3"},
                                 {"VC_TASK_NAME_HOSTS",
                                  "a-task-name-0.a,a-task-name-1.a,"
                                  "a-task-name-2.a"}});
  const auto job = Detect(table, Pod("a-task-name-1", ""));
  REQUIRE_OK(job);
  CHECK(job->nodes == 3);
  CHECK(job->node_rank == 1);
  CHECK(job->endpoint == "a-task-name-0.a:29400");
  CHECK(Detect(table, Pod("b-other-1", ""))->reasons.empty());
}

TEST_CASE("Volcano: master and workers are one job, and its PyTorch plug-in wins") {
  Table table = InPodWith({{"VC_TASK_INDEX", "1"},
                           {"VC_MASTER_HOSTS", "llama-master-0.llama"},
                           {"VC_WORKER_HOSTS", "llama-worker-0.llama,llama-worker-1.llama"}});
  const auto job = Detect(table, Pod("llama-worker-1", ""));
  REQUIRE_OK(job);
  CHECK(job->nodes == 3);
  CHECK(job->node_rank == 2);
  CHECK(job->endpoint == "llama-master-0.llama:29400");
  table.insert({{"MASTER_ADDR", "llama-master-0.llama"}, {"WORLD_SIZE", "3"}, {"RANK", "2"}});
  table["MASTER_PORT"] = "23456";
  CHECK(Detect(table, Pod("llama-worker-1", ""))->endpoint == "llama-master-0.llama:23456");
}

TEST_CASE("an address that a Service put there counts as not set") {
  const EnvironmentLookup meant = MeantEnvironment(LookupIn({{"CONVENE_PORT", "tcp://10.0.0.9:80"},
                                                             {"PET_PORT", "udp://10.0.0.9:80"},
                                                             {"PET_MASTER_PORT", "29500"},
                                                             {"PET_ENDPOINT", "tcp://10.0.0.9:80"},
                                                             {"PET_STANDALONE", ""},
                                                             {"PET_N_PROC_PER_NODE", "8"}}));
  CHECK_FALSE(meant("CONVENE_PORT").has_value());
  CHECK_FALSE(meant("PET_PORT").has_value());
  CHECK_FALSE(meant("MASTER_PORT").has_value());
  CHECK(meant("PET_MASTER_PORT") == "29500");
  CHECK(meant("PET_ENDPOINT") == "tcp://10.0.0.9:80");
  // Kubeflow's slips are mended in a pod only.
  CHECK(meant("PET_STANDALONE") == "");
  CHECK_FALSE(meant("PET_NPROC_PER_NODE").has_value());
}

TEST_CASE("the slips of Kubeflow's elastic policy are mended in a pod") {
  Table table = InPodWith({{"PET_STANDALONE", ""}, {"PET_N_PROC_PER_NODE", "8"}});
  CHECK(MeantEnvironment(LookupIn(table))("PET_STANDALONE") == "1");
  CHECK(MeantEnvironment(LookupIn(table))("PET_NPROC_PER_NODE") == "8");
  table["PET_NPROC_PER_NODE"] = "4";
  CHECK(MeantEnvironment(LookupIn(table))("PET_NPROC_PER_NODE") == "4");
}

TEST_CASE("a host's full name, as a kubelet writes it") {
  constexpr char kHosts[] =
      "# Kubernetes-managed hosts file.\n"
      "127.0.0.1\tlocalhost\n"
      "fe00::0\tip6-mcastprefix\n"
      "10.1.2.3\tllama-1.train.research.svc.cluster.local\tllama-1\n"
      "10.1.2.4\tllama-12.elsewhere llama-12 # llama-3.comment\n";
  CHECK(FullNameIn(kHosts, "llama-1") == "llama-1.train.research.svc.cluster.local");
  CHECK(FullNameIn(kHosts, "llama-12") == "llama-12.elsewhere");
  CHECK(FullNameIn(kHosts, "llama").empty());
  CHECK(FullNameIn(kHosts, "llama-3").empty());
  CHECK(FullNameIn("", "llama").empty());
}

}  // namespace
}  // namespace convene::launcher
