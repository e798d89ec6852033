#include "launcher/flags.h"

#include <map>

#include "tools/base/testing/status_testing.h"

namespace convene::launcher {
namespace {

using Words = std::vector<std::string>;

EnvironmentLookup Environment(std::map<std::string, std::string> table) {
  return [table = std::move(table)](const std::string& name) -> std::optional<std::string> {
    const auto it = table.find(name);
    if (it == table.end()) return std::nullopt;
    return it->second;
  };
}

RunFlags Run(Words words, std::map<std::string, std::string> environment = {}) {
  words.insert(words.begin(), "run");
  const auto line = ParseCommandLine(words, Environment(std::move(environment)));
  REQUIRE_OK(line);
  REQUIRE(std::holds_alternative<RunFlags>(*line));
  return std::get<RunFlags>(*line);
}

absl::Status Refused(const Words& words, std::map<std::string, std::string> environment = {}) {
  return ParseCommandLine(words, Environment(std::move(environment))).status();
}

TEST_CASE("dashes, underscores, '=' and a space all spell a flag") {
  for (const Words& words :
       {Words{"--nproc-per-node", "4", "x"}, Words{"--nproc_per_node", "4", "x"},
        Words{"--nproc-per-node=4", "x"}, Words{"--nproc_per_node=4", "x"}}) {
    CHECK(Run(words).nproc_per_node == "4");
  }
}

TEST_CASE("every flag of run lands in its field") {
  const RunFlags flags = Run({"--nnodes",
                              "1:4",
                              "--rdzv-endpoint",
                              "h:1",
                              "--rdzv-id",
                              "job",
                              "--rdzv-backend",
                              "c10d",
                              "--rdzv-conf",
                              "is_host=1",
                              "--max-restarts",
                              "3",
                              "--node-rank",
                              "2",
                              "--master-addr",
                              "m",
                              "--master-port",
                              "5",
                              "--local-addr",
                              "l",
                              "--log-dir",
                              "d",
                              "--shutdown-timeout",
                              "1.5",
                              "--monitor-interval",
                              "0.1",
                              "--no-python",
                              "--role",
                              "r",
                              "x"});
  CHECK(flags.nnodes == "1:4");
  CHECK(flags.rdzv_endpoint == "h:1");
  CHECK(flags.rdzv_id == "job");
  CHECK(flags.rdzv_backend == "c10d");
  CHECK(flags.rdzv_conf == "is_host=1");
  CHECK(flags.max_restarts == 3);
  CHECK(flags.node_rank == 2);
  CHECK(flags.master_addr == "m");
  CHECK(flags.master_port == 5);
  CHECK(flags.local_addr == "l");
  CHECK(flags.log_dir == "d");
  CHECK(flags.shutdown_timeout_seconds == 1.5);
  CHECK(flags.no_python);
  CHECK(flags.role == "r");
  CHECK(Run({"--standalone", "-m", "x"}).standalone);
  CHECK(Run({"--standalone", "-m", "x"}).module);
}

TEST_CASE("what follows the program is the program's, whatever it looks like") {
  const RunFlags flags = Run({"--standalone", "train.py", "--nnodes", "9", "--help", "--", "run"});
  CHECK_FALSE(flags.nnodes.has_value());
  CHECK(flags.command == Words{"train.py", "--nnodes", "9", "--help", "--", "run"});
  CHECK(Run({"--", "./-odd", "-x"}).command == Words{"./-odd", "-x"});
  CHECK(Run({"status", "serve"}).command == Words{"status", "serve"});
}

TEST_CASE("PET_ variables are defaults that a flag overrides") {
  const std::map<std::string, std::string> pet = {{"PET_NNODES", "2"},
                                                  {"PET_NPROC_PER_NODE", "8"},
                                                  {"PET_STANDALONE", "1"},
                                                  {"PET_NO_PYTHON", "0"}};
  const RunFlags flags = Run({"--nnodes", "3", "x"}, pet);
  CHECK(flags.nnodes == "3");
  CHECK(flags.nproc_per_node == "8");
  CHECK(flags.standalone);
  CHECK_FALSE(flags.no_python);
  CHECK(flags.from_environment.size() == 3);
}

TEST_CASE("the last of a repeated flag counts") {
  CHECK(Run({"--nnodes", "1", "--nnodes", "2", "x"}).nnodes == "2");
}

TEST_CASE("an unknown flag is answered with the nearest one") {
  CHECK_STATUS(Refused({"run", "--nproc-per-nodes", "2", "x"}), absl::StatusCode::kInvalidArgument,
               "no flag --nproc-per-nodes; did you mean --nproc-per-node?");
  CHECK_STATUS(Refused({"run", "--zzzzzzzzz=1", "x"}), absl::StatusCode::kInvalidArgument,
               "no flag --zzzzzzzzz; see `convene run --help`");
  CHECK_STATUS(Refused({"status", "--endpont", "h"}), absl::StatusCode::kInvalidArgument,
               "did you mean --endpoint?");
}

TEST_CASE("a wrong or missing value, a missing program and a wrong command say what to do") {
  CHECK_STATUS(Refused({"run", "--max-restarts", "many", "x"}), absl::StatusCode::kInvalidArgument,
               "--max-restarts");
  CHECK_STATUS(Refused({"run", "--nnodes"}), absl::StatusCode::kInvalidArgument, "--nnodes");
  CHECK_STATUS(Refused({"run", "--standalone"}), absl::StatusCode::kInvalidArgument,
               "no program to run");
  CHECK_STATUS(Refused({"rnu", "x"}), absl::StatusCode::kInvalidArgument,
               "did you mean `convene run`?");
  CHECK_STATUS(Refused({}), absl::StatusCode::kInvalidArgument, "no command");
  CHECK_STATUS(Refused({"status"}), absl::StatusCode::kInvalidArgument, "needs --endpoint");
  CHECK_STATUS(Refused({"serve", "now"}), absl::StatusCode::kInvalidArgument, "\"now\"");
  CHECK_STATUS(Refused({"serve", "--port", "70000"}), absl::StatusCode::kInvalidArgument, "70000");
}

TEST_CASE("help, version and exit codes are texts to print") {
  const auto text = [](const Words& words) {
    const auto line = ParseCommandLine(words, Environment({}));
    REQUIRE_OK(line);
    REQUIRE(std::holds_alternative<TextToPrint>(*line));
    return std::get<TextToPrint>(*line).text;
  };
  CHECK_THAT(text({"--help"}), Catch::Contains("convene run"));
  CHECK_THAT(text({"--version"}), Catch::StartsWith("convene "));
  CHECK_THAT(text({"--help-exit-codes"}), Catch::Contains("bad usage"));
  CHECK_THAT(text({"run", "--help"}), Catch::Contains("--rdzv-endpoint,--rdzv_endpoint"));
  CHECK_THAT(text({"serve", "--help"}), Catch::Contains("--port"));
}

TEST_CASE("serve and status read their flags") {
  const auto serve = ParseCommandLine({"serve", "--port", "0", "--host", "::"}, Environment({}));
  REQUIRE_OK(serve);
  CHECK(std::get<ServeFlags>(*serve).port == 0);
  CHECK(std::get<ServeFlags>(*serve).host == "::");
  const auto status =
      ParseCommandLine({"status", "--endpoint", "h:1", "--rdzv_id", "j"}, Environment({}));
  REQUIRE_OK(status);
  CHECK(std::get<StatusFlags>(*status).endpoint == "h:1");
  CHECK(std::get<StatusFlags>(*status).job_id == "j");
}

TEST_CASE("a flag with '=' and nothing after it does not eat the program") {
  CHECK_STATUS(Refused({"run", "--role=", "prog"}), absl::StatusCode::kInvalidArgument,
               "--role= has no value");
  CHECK_STATUS(Refused({"run", "--nnodes", "2", "--log_dir=", "prog"}),
               absl::StatusCode::kInvalidArgument, "--log_dir= has no value");
  // An empty variable is none, and the program's own words are its own.
  CHECK(Run({"prog", "--x="}, {{"PET_ROLE", ""}}).command == Words{"prog", "--x="});
  CHECK(Run({"--role", "r", "--", "prog", "--x="}).command == Words{"prog", "--x="});
  CHECK(Run({"--role", "--x=", "prog"}).role == "--x=");
}

}  // namespace
}  // namespace convene::launcher
