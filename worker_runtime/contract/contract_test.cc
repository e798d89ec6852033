#include "worker_runtime/contract/contract.h"

#include <map>

#include "tools/base/testing/status_testing.h"

namespace convene::worker {
namespace {

EnvironmentLookup Environment(std::map<std::string, std::string> table) {
  return [table = std::move(table)](const std::string& name) -> std::optional<std::string> {
    const auto it = table.find(name);
    if (it == table.end()) return std::nullopt;
    return it->second;
  };
}

const std::map<std::string, std::string> kSecondOfFour = {{"RANK", "1"},
                                                          {"WORLD_SIZE", "4"},
                                                          {"LOCAL_RANK", "1"},
                                                          {"GROUP_RANK", "0"},
                                                          {"LOCAL_WORLD_SIZE", "2"},
                                                          {"MASTER_ADDR", "node0"},
                                                          {"MASTER_PORT", "29500"},
                                                          {"CONVENE_EPOCH", "3"},
                                                          {"CONVENE_HOST_THREADS", "14"},
                                                          {"TORCHELASTIC_RESTART_COUNT", "2"}};

TEST_CASE("without an environment a process is alone") {
  const auto contract = ReadContract(Environment({}));
  REQUIRE_OK(contract);
  CHECK(contract->rank == 0);
  CHECK(contract->world_size == 1);
}

TEST_CASE("one of several tasks without a launcher is told to have one") {
  for (const std::string name : {"SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE"}) {
    CHECK_STATUS(CheckOneTask(Environment({{name, "3"}})), absl::StatusCode::kInvalidArgument,
                 name + " is 3, but RANK is not set: each of these tasks would train for itself");
    CHECK_OK(CheckOneTask(Environment({{name, "1"}})));
    CHECK_OK(CheckOneTask(
        Environment({{name, "3"}, {"RANK", "0"}, {"WORLD_SIZE", "1"}, {"LOCAL_RANK", "0"}})));
    auto table = kSecondOfFour;
    table[name] = "2";
    CHECK_OK(CheckOneTask(Environment(table)));
  }
}

TEST_CASE("the agent's environment is read whole") {
  const auto contract = ReadContract(Environment(kSecondOfFour));
  REQUIRE_OK(contract);
  CHECK(contract->rank == 1);
  CHECK(contract->world_size == 4);
  CHECK(contract->master_addr == "node0");
  CHECK(contract->master_port == 29500);
  CHECK(contract->epoch == Epoch(3));
  CHECK(contract->restart_count == 2);
  CHECK(contract->host_threads == 14);
}

TEST_CASE("where LOCAL_RANK is 0 for all, the agent's own word tells the place on the node") {
  auto table = kSecondOfFour;
  table["LOCAL_RANK"] = "0";
  table["CONVENE_LOCAL_RANK"] = "1";
  table["CONVENE_PROGRESS"] = "/dev/shm/page";
  const auto contract = ReadContract(Environment(table));
  REQUIRE_OK(contract);
  CHECK(contract->local_rank == 1);
  CHECK(contract->progress_path == "/dev/shm/page");
  table["CONVENE_LOCAL_RANK"] = "2";
  CHECK_STATUS(ReadContract(Environment(table)), absl::StatusCode::kInvalidArgument,
               "CONVENE_LOCAL_RANK=2");
}

TEST_CASE("an epoch of the same run before, and under torchrun a failure before, is a restart") {
  const auto is_restart = [](const char* epoch, const char* attempt, const char* restart_count) {
    auto table = kSecondOfFour;
    table["CONVENE_EPOCH"] = epoch;
    if (*attempt != '\0') table["CONVENE_ATTEMPT"] = attempt;
    table["TORCHELASTIC_RESTART_COUNT"] = restart_count;
    const auto contract = ReadContract(Environment(table));
    REQUIRE_OK(contract);
    return contract->is_restart();
  };
  CHECK_FALSE(is_restart("1", "0", "0"));
  CHECK_FALSE(is_restart("7", "0", "0"));  // an earlier run of the same id had six
  CHECK(is_restart("8", "1", "0"));
  CHECK(is_restart("0", "0", "1"));
  // An older agent gives no attempt.
  CHECK(is_restart("2", "", "0"));
  CHECK_FALSE(is_restart("1", "", "0"));
}

TEST_CASE("a wrong variable is named with its value") {
  const auto broken = [](const char* name, const char* value) {
    auto table = kSecondOfFour;
    table[name] = value;
    return ReadContract(Environment(table));
  };
  CHECK_STATUS(broken("RANK", "4"), absl::StatusCode::kInvalidArgument, "RANK=4");
  CHECK_STATUS(broken("WORLD_SIZE", "many"), absl::StatusCode::kInvalidArgument, "WORLD_SIZE=many");
  CHECK_STATUS(broken("MASTER_PORT", "0"), absl::StatusCode::kInvalidArgument, "MASTER_PORT=0");
  CHECK_STATUS(broken("MASTER_ADDR", ""), absl::StatusCode::kInvalidArgument, "MASTER_ADDR");
}

}  // namespace
}  // namespace convene::worker
