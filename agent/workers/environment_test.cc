#include "agent/workers/environment.h"

#include "absl/strings/str_join.h"
#include "tools/base/testing/status_testing.h"

namespace convene::agent {
namespace {

using Table = std::map<std::string, std::string>;

WorkerPlace Place() {
  WorkerPlace place;
  place.assignment.group_rank = 1;
  place.assignment.group_world_size = 2;
  place.assignment.first_global_rank = 4;
  place.assignment.world_size = 8;
  place.assignment.first_role_rank = 1;
  place.assignment.role_world_size = 5;
  place.assignment.store_host = "node1";
  place.assignment.store_port = 7000;
  place.assignment.restart_count = 2;
  place.assignment.max_restarts = 3;
  place.assignment.attempt = 5;
  place.epoch = Epoch(9);
  place.local_rank = 3;
  place.local_world_size = 4;
  place.usable_cpus = 58;
  place.run_id = "job";
  place.role = "trainer";
  place.session_path = "/run/x/session";
  place.error_file = "/logs/error.json";
  place.max_nodes = 2;
  return place;
}

TEST_CASE("of an outer worker's rank and ties nothing is left, and of others' variables all") {
  Table table = {{"RANK", "3"},
                 {"LOCAL_RANK", "1"},
                 {"WORLD_SIZE", "4"},
                 {"GROUP_RANK", "1"},
                 {"CONVENE_LOCAL_RANK", "1"},
                 {"CONVENE_SESSION", "/s"},
                 {"MASTER_ADDR", "a"},
                 {"PATH", "/bin"},
                 {"CONVENE_TOPOLOGY", "rack1"}};
  LeaveNoRank(table);
  CHECK(table == Table{{"CONVENE_TOPOLOGY", "rack1"}, {"MASTER_ADDR", "a"}, {"PATH", "/bin"}});
}

TEST_CASE("a worker is told its place in torchrun's words and in ours") {
  CHECK(absl::StrJoin(WorkerEnvironment({}, Place()), "\n") ==
        "CONVENE_ATTEMPT=5\n"
        "CONVENE_EPOCH=9\n"
        "CONVENE_HOST_THREADS=14\n"
        "CONVENE_MAX_NODES=2\n"
        "CONVENE_SESSION=/run/x/session\n"
        "GROUP_RANK=1\n"
        "GROUP_WORLD_SIZE=2\n"
        "LOCAL_RANK=3\n"
        "LOCAL_WORLD_SIZE=4\n"
        "MASTER_ADDR=node1\n"
        "MASTER_PORT=7000\n"
        "OMP_NUM_THREADS=1\n"
        "RANK=7\n"
        "ROLE_NAME=trainer\n"
        "ROLE_RANK=4\n"
        "ROLE_WORLD_SIZE=5\n"
        "TORCHELASTIC_ERROR_FILE=/logs/error.json\n"
        "TORCHELASTIC_MAX_RESTARTS=3\n"
        "TORCHELASTIC_RESTART_COUNT=2\n"
        "TORCHELASTIC_RUN_ID=job\n"
        "TORCHELASTIC_USE_AGENT_STORE=True\n"
        "TORCH_NCCL_ASYNC_ERROR_HANDLING=1\n"
        "WORLD_SIZE=8");
}

TEST_CASE("the person's settings are kept, the place in the job is not theirs to set") {
  const char* const own[] = {
      "PATH=/bin", "RANK=77", "CONVENE_TERMINAL=1", "OMP_NUM_THREADS=6", "CONVENE_HOST_THREADS=9",
      nullptr};
  const std::vector<std::string> environment = WorkerEnvironment(
      ParseEnvironment(own, {{"PATH", "/opt/bin"}, {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "0"}}),
      Place());
  const std::string text = absl::StrJoin(environment, "\n");
  CHECK_THAT(text, Catch::Contains("PATH=/opt/bin\n") && Catch::Contains("\nRANK=7\n") &&
                       Catch::Contains("OMP_NUM_THREADS=6\n") &&
                       Catch::Contains("TORCH_NCCL_ASYNC_ERROR_HANDLING=0\n") &&
                       !Catch::Contains("CONVENE_TERMINAL") &&
                       !Catch::Contains("CONVENE_HOST_THREADS"));
}

TEST_CASE("the role is the job's, not one inherited from an outer agent") {
  const std::string text =
      absl::StrJoin(WorkerEnvironment({{"ROLE_NAME", "outer"}}, Place()), "\n");
  CHECK_THAT(text, Catch::Contains("\nROLE_NAME=trainer\n"));
}

TEST_CASE("a single worker keeps all its threads, a terminal is announced") {
  WorkerPlace place = Place();
  place.local_rank = 0;
  place.local_world_size = 1;
  place.terminal = true;
  const std::string text = absl::StrJoin(WorkerEnvironment({}, place), "\n");
  CHECK_THAT(text, !Catch::Contains("OMP_NUM_THREADS") && !Catch::Contains("HOST_THREADS") &&
                       Catch::Contains("CONVENE_TERMINAL=1\n"));
}

TEST_CASE("a worker with a virtual local rank still knows its own, and sees its own device") {
  WorkerPlace place = Place();
  place.virtual_local_rank = true;
  Table environment = {{"CUDA_VISIBLE_DEVICES", "3,4,5,6"}};
  REQUIRE_OK(LeaveOneDevice(environment, place.local_rank));
  place.progress_path = "/dev/shm/page";
  place.memory_path = "/proc/7/fd/8";
  place.topology = "block-3";
  const std::string text = absl::StrJoin(WorkerEnvironment(environment, place), "\n");
  CHECK_THAT(text, Catch::Contains("\nLOCAL_RANK=0\n") &&
                       Catch::Contains("CONVENE_LOCAL_RANK=3\n") &&
                       Catch::Contains("CUDA_VISIBLE_DEVICES=6\n") &&
                       Catch::Contains("CONVENE_PROGRESS=/dev/shm/page\n") &&
                       Catch::Contains("CONVENE_MEMORY=/proc/7/fd/8\n") &&
                       Catch::Contains("CONVENE_MAX_NODES=2\n") &&
                       Catch::Contains("CONVENE_TOPOLOGY=block-3\n"));
}

TEST_CASE("an outer agent's page, memory and local rank mean nothing to a worker") {
  const std::string text = absl::StrJoin(WorkerEnvironment({{"CONVENE_PROGRESS", "/outer"},
                                                            {"CONVENE_MEMORY", "/outer"},
                                                            {"CONVENE_TOPOLOGY", "outer"},
                                                            {"CONVENE_LOCAL_RANK", "5"}},
                                                           Place()),
                                         "\n");
  CHECK_THAT(text, !Catch::Contains("outer") && !Catch::Contains("CONVENE_LOCAL_RANK"));
}

TEST_CASE("an environment block is read as getenv reads it") {
  const char* const strings[] = {"A=1", "no equals", "B=x=y", "A=2", "=odd", nullptr};
  CHECK(ParseEnvironment(strings) == Table{{"A", "1"}, {"B", "x=y"}});
}

Table Narrowed(Table environment, int local_rank) {
  REQUIRE_OK(LeaveOneDevice(environment, local_rank));
  return environment;
}

TEST_CASE("without a list of devices a worker sees the one of its local rank") {
  CHECK(Narrowed({}, 3) == Table{{"CUDA_VISIBLE_DEVICES", "3"}});
}

TEST_CASE("with a list a worker sees the entry of its local rank, be it a number or a UUID") {
  CHECK(Narrowed({{"CUDA_VISIBLE_DEVICES", "4,5, 7"}}, 2) == Table{{"CUDA_VISIBLE_DEVICES", "7"}});
  CHECK(Narrowed({{"CUDA_VISIBLE_DEVICES", "GPU-8f,MIG-77"}}, 1) ==
        Table{{"CUDA_VISIBLE_DEVICES", "MIG-77"}});
}

TEST_CASE("a list that is too short is an error that names it") {
  Table environment = {{"CUDA_VISIBLE_DEVICES", "4,5"}};
  CHECK_STATUS(LeaveOneDevice(environment, 2), absl::StatusCode::kInvalidArgument,
               "CUDA_VISIBLE_DEVICES=4,5 has no device for local rank 2");
}

TEST_CASE("on ROCm its own list counts, and both are set") {
  CHECK(Narrowed({{"HIP_VISIBLE_DEVICES", "6,7"}, {"CUDA_VISIBLE_DEVICES", "0"}}, 1) ==
        Table{{"CUDA_VISIBLE_DEVICES", "7"}, {"HIP_VISIBLE_DEVICES", "7"}});
  CHECK(Narrowed({{"HIP_VISIBLE_DEVICES", ""}}, 1) ==
        Table{{"CUDA_VISIBLE_DEVICES", "1"}, {"HIP_VISIBLE_DEVICES", ""}});
}

}  // namespace
}  // namespace convene::agent
