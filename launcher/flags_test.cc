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

RunFlags Torchrun(const Words& words, std::map<std::string, std::string> environment = {}) {
  const auto line = ParseTorchrunCommandLine(words, Environment(std::move(environment)));
  REQUIRE_OK(line);
  REQUIRE(std::holds_alternative<RunFlags>(*line));
  return std::get<RunFlags>(*line);
}

// `words` with the dashes inside flags' names as underscores.
Words Underscored(Words words) {
  for (std::string& word : words) {
    for (size_t i = 2; i < word.size() && word[i] != '='; ++i) {
      if (word[i] == '-') word[i] = '_';
    }
  }
  return words;
}

TEST_CASE("torchrun's flags about nodes and workers land in their fields, in both spellings") {
  const Words words = {"--nnodes=1:4",
                       "--nproc-per-node=3",
                       "--rdzv-backend=c10d",
                       "--rdzv-endpoint=h:1",
                       "--rdzv-id=job",
                       "--rdzv-conf=is_host=1",
                       "--node-rank=2",
                       "--master-addr=m",
                       "--master-port=5",
                       "--local-addr=l",
                       "--standalone",
                       "--start-method=fork",
                       "--role=r",
                       "--run-path",
                       "--no-python",
                       "--module",
                       "--virtual-local-rank",
                       "--numa-binding=core-complex",
                       "x"};
  for (const Words& spelled : {words, Underscored(words)}) {
    const RunFlags flags = Torchrun(spelled);
    CHECK(flags.nnodes == "1:4");
    CHECK(flags.nproc_per_node == "3");
    CHECK(flags.rdzv_backend == "c10d");
    CHECK(flags.rdzv_endpoint == "h:1");
    CHECK(flags.rdzv_id == "job");
    CHECK(flags.rdzv_conf == "is_host=1");
    CHECK(flags.node_rank == 2);
    CHECK(flags.master_addr == "m");
    CHECK(flags.master_port == 5);
    CHECK(flags.local_addr == "l");
    CHECK(flags.start_method == "fork");
    CHECK(flags.role == "r");
    CHECK((flags.run_path && flags.no_python && flags.module));
    CHECK((flags.virtual_local_rank && flags.standalone && flags.as_torchrun));
    CHECK(flags.numa_binding == "core-complex");
    CHECK(flags.command == Words{"x"});
  }
}

TEST_CASE("torchrun's flags about failures and output land in their fields, in both spellings") {
  const Words words = {"--max-restarts=3",
                       "--monitor-interval=0.5",
                       "--shutdown-timeout=7",
                       "--signals-to-handle=SIGTERM",
                       "--event-log-handler=console",
                       "--logs-specs=mine",
                       "--log-dir=d",
                       "--redirects=1",
                       "--tee=0:1,1:2",
                       "--log-line-prefix-template=${rank}:",
                       "--local-ranks-filter=0,2",
                       "--duplicate-stdout-filters=apple,orange",
                       "--duplicate-stderr-filters=pear",
                       "x"};
  for (const Words& spelled : {words, Underscored(words)}) {
    const RunFlags flags = Torchrun(spelled);
    CHECK(flags.max_restarts == 3);
    CHECK(flags.monitor_interval_seconds == 0.5);
    CHECK(flags.shutdown_timeout == absl::Seconds(7));
    CHECK(flags.signals_to_handle == "SIGTERM");
    CHECK(flags.event_log_handler == "console");
    CHECK(flags.logs_specs == "mine");
    CHECK(flags.log_dir == "d");
    CHECK(flags.redirects == "1");
    CHECK(flags.tee == "0:1,1:2");
    CHECK(flags.log_line_prefix_template == "${rank}:");
    CHECK(flags.local_ranks_filter == "0,2");
    CHECK(flags.duplicate_stdout_filters == "apple,orange");
    CHECK(flags.duplicate_stderr_filters == "pear");
  }
}

TEST_CASE("our own flags land in their fields") {
  const RunFlags flags =
      Run({"--spares=2", "--topology=b1/s2", "--restart-window=3600", "--max-stuck-restarts=4",
           "--admission-delay=0.5", "--stop-grace=abort=1", "--hang-timeout=off",
           "--health-check=true", "--health-check-timeout=9", "--propagate-exit-code",
           "--log-max-bytes=1M", "--log-max-files=3", "x"});
  CHECK(flags.spares == 2);
  CHECK(flags.topology == "b1/s2");
  CHECK(flags.restart_window == absl::Hours(1));
  CHECK(flags.max_stuck_restarts == 4);
  CHECK(flags.admission_delay == absl::Milliseconds(500));
  CHECK(flags.stop_grace == "abort=1");
  CHECK(flags.hang_timeout == "off");
  CHECK(flags.health_check == "true");
  CHECK(flags.health_check_timeout == absl::Seconds(9));
  CHECK(flags.propagate_exit_code);
  CHECK(flags.log_max_bytes == "1M");
  CHECK(flags.log_max_files == 3);
}

TEST_CASE("called as torchrun there is no command's name") {
  CHECK(Torchrun({"run", "serve"}).command == Words{"run", "serve"});
  CHECK_STATUS(ParseTorchrunCommandLine({}, Environment({})).status(),
               absl::StatusCode::kInvalidArgument, "torchrun --nproc-per-node 2 train.py");
}

TEST_CASE("values outside their choices are answered with the choices") {
  CHECK_STATUS(Refused({"run", "--start-method", "thread", "x"}),
               absl::StatusCode::kInvalidArgument, "write spawn, fork, forkserver");
  CHECK_STATUS(Refused({"run", "--numa-binding=core", "x"}), absl::StatusCode::kInvalidArgument,
               "write node, socket, exclusive, core-complex");
  CHECK_STATUS(Refused({"run", "--print-completion", "fish"}), absl::StatusCode::kInvalidArgument,
               "write bash, zsh, tcsh");
}

TEST_CASE("torchrun reads no PET_ variable for NUMA binding and log plug-ins, and neither do we") {
  const RunFlags flags =
      Run({"x"}, {{"PET_NUMA_BINDING", "node"}, {"PET_LOGS_SPECS", "mine"}, {"PET_TEE", "3"}});
  CHECK(flags.numa_binding.empty());
  CHECK(flags.logs_specs.empty());
  CHECK(flags.tee == "3");
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
  CHECK(flags.from_environment.size() == 4);
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
               "--max-restarts many: write a whole number");
  CHECK_STATUS(Refused({"run", "--nnodes"}), absl::StatusCode::kInvalidArgument,
               "--nnodes needs a value: write --nnodes N|MIN:MAX");
  CHECK_STATUS(Refused({"run", "x"}, {{"PET_MAX_RESTARTS", "many"}}),
               absl::StatusCode::kInvalidArgument, "PET_MAX_RESTARTS=many");
  CHECK_STATUS(Refused({"run", "--standalone"}), absl::StatusCode::kInvalidArgument,
               "no program to run");
  CHECK_STATUS(Refused({"rnu", "x"}), absl::StatusCode::kInvalidArgument,
               "did you mean `convene run`?");
  CHECK_STATUS(Refused({}), absl::StatusCode::kInvalidArgument, "no command");
  CHECK_STATUS(Refused({"status", "a", "--json", "b"}), absl::StatusCode::kInvalidArgument,
               "\"b\" is one too many");
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
  CHECK_THAT(text({"run", "--help"}), Catch::Contains("--rdzv-endpoint HOST[:PORT]"));
  CHECK_THAT(text({"run", "--print-completion", "bash"}), Catch::Contains("complete"));
  CHECK_THAT(text({"serve", "--help"}), Catch::Contains("--port"));
}

TEST_CASE("serve and status read their flags") {
  const auto serve = ParseCommandLine(
      {"serve", "--port", "0", "--host", "::", "--state-dir", "/var/lib/convene"}, Environment({}));
  REQUIRE_OK(serve);
  CHECK(std::get<ServeFlags>(*serve).state_dir == "/var/lib/convene");
  CHECK(std::get<ServeFlags>(*serve).port == 0);
  CHECK(std::get<ServeFlags>(*serve).host == "::");
  const auto status =
      ParseCommandLine({"status", "--endpoint", "h:1", "--rdzv_id", "j"}, Environment({}));
  REQUIRE_OK(status);
  CHECK(std::get<StatusFlags>(*status).endpoint == "h:1");
  CHECK(std::get<StatusFlags>(*status).job_id == "j");
}

TEST_CASE("status takes its run before and behind the flags, and its endpoint from outside") {
  const auto status = [](const std::vector<std::string>& words, auto environment) {
    auto line = ParseCommandLine(words, Environment(std::move(environment)));
    REQUIRE_OK(line);
    return std::get<StatusFlags>(*line);
  };
  using Variables = std::map<std::string, std::string>;
  const StatusFlags first = status({"status", "llama", "--watch", "--json"}, Variables{});
  CHECK(first.job_id == "llama");
  CHECK(first.watch);
  CHECK(first.json);
  CHECK(first.endpoint == "localhost");
  const StatusFlags last = status({"status", "--watch", "llama"}, Variables{});
  CHECK(last.job_id == "llama");
  CHECK_FALSE(last.json);
  CHECK(status({"status"}, Variables{{"PET_RDZV_ENDPOINT", "p:1"}}).endpoint == "p:1");
  CHECK(status({"status"}, Variables{{"PET_RDZV_ENDPOINT", "p:1"}, {"CONVENE_ENDPOINT", "c"}})
            .endpoint == "c");
  CHECK(status({"status", "--endpoint", "h"}, Variables{{"CONVENE_ENDPOINT", "c"}}).endpoint ==
        "h");
}

TEST_CASE("logs reads what to show, of whom, and how") {
  const auto logs = [](const std::vector<std::string>& words) {
    auto line = ParseCommandLine(words, Environment({}));
    REQUIRE_OK(line);
    return std::get<LogsFlags>(*line);
  };
  const LogsFlags plain = logs({"logs", "llama"});
  CHECK(plain.endpoint == "localhost");
  CHECK(plain.request.job_id == "llama");
  CHECK(plain.request.tail == 100);
  CHECK(!plain.request.follow);
  CHECK(plain.prefix_template == "[${rank}] ");
  const LogsFlags all = logs({"logs", "-f", "--tail", "all", "llama", "--rank", "0,4-6", "--node",
                              "n1,n2", "--stderr", "--timestamps", "--endpoint", "h"});
  CHECK(all.endpoint == "h");
  CHECK(all.request.follow);
  CHECK(all.request.tail == -1);
  CHECK(all.request.filter.ranks == std::set<int>{0, 4, 5, 6});
  CHECK(all.request.hosts == Words{"n1", "n2"});
  CHECK(all.request.filter.without_stdout);
  CHECK(!all.request.filter.without_stderr);
  CHECK(all.prefix_template == "${time} [${rank}] ");
  const LogsFlags both = logs({"logs", "llama", "--stdout", "--stderr"});
  CHECK(!both.request.filter.without_stdout);
  CHECK(!both.request.filter.without_stderr);
}

TEST_CASE("logs says what is wrong with its flags") {
  using absl::StatusCode;
  CHECK_STATUS(Refused({"logs"}), StatusCode::kInvalidArgument, "which run?");
  CHECK_STATUS(Refused({"logs", "a", "b"}), StatusCode::kInvalidArgument, "one too many");
  CHECK_STATUS(Refused({"logs", "a", "--tail", "some"}), StatusCode::kInvalidArgument,
               "write a number of lines, or all");
  CHECK_STATUS(Refused({"logs", "a", "--rank", "3-1"}), StatusCode::kInvalidArgument,
               "write ranks as in 0,3 or 0-7");
  CHECK_STATUS(Refused({"logs", "a", "--local-rank", "x"}), StatusCode::kInvalidArgument,
               "--local-rank");
  CHECK_STATUS(Refused({"logs", "a", "--rank", "0-5000"}), StatusCode::kInvalidArgument,
               "more than 1024");
}

}  // namespace
}  // namespace convene::launcher
