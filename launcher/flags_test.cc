#include "launcher/flags.h"

#include "tools/base/testing/environment_table.h"
#include "tools/base/testing/status_testing.h"

namespace convene::launcher {
namespace {

using Words = std::vector<std::string>;
using Variables = testing::EnvironmentTable;

// `words` read into a command's flags.
template <typename Flags>
absl::StatusOr<Flags> Read(const Words& words, Variables environment = {},
                           const FlagReader::Rules& rules = {}) {
  Flags flags;
  FlagReader reader("convene", "", rules);
  AddFlags(&reader, &flags);
  const auto text = reader.Read(words, testing::LookupIn(std::move(environment)));
  if (!text.ok()) return text.status();
  return flags;
}

template <typename Flags>
Flags Good(const Words& words, Variables environment = {}, const FlagReader::Rules& rules = {}) {
  const auto flags = Read<Flags>(words, std::move(environment), rules);
  REQUIRE_OK(flags);
  return *flags;
}

template <typename Flags>
void Bad(const Words& words, const std::string& text, Variables environment = {}) {
  CHECK_STATUS(Read<Flags>(words, std::move(environment), {.variable_prefix = "PET_"}),
               absl::StatusCode::kInvalidArgument, text);
}

RunFlags Run(const Words& words, Variables environment = {}) {
  return Good<RunFlags>(words, std::move(environment), {.variable_prefix = "PET_"});
}

TEST_CASE("dashes, underscores, '=' and a space all spell a flag") {
  for (const Words& words :
       {Words{"--nproc-per-node", "4", "x"}, Words{"--nproc_per_node", "4", "x"},
        Words{"--nproc-per-node=4", "x"}, Words{"--nproc_per_node=4", "x"}}) {
    CHECK(Run(words).nproc_per_node == "4");
  }
}

RunFlags Torchrun(const Words& words) { return Good<RunFlags>(words, {}, {.like_argparse = true}); }

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
    CHECK(flags.options.hello.role == "r");
    CHECK((flags.run_path && flags.no_python && flags.module));
    CHECK((flags.options.virtual_local_rank && flags.standalone && flags.as_torchrun));
    CHECK(flags.options.numa_binding == agent::NumaBinding::kCoreComplex);
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
    CHECK(flags.options.hello.max_restarts == 3);
    CHECK(flags.monitor_interval_seconds == 0.5);
    CHECK(flags.shutdown_timeout == absl::Seconds(7));
    CHECK(flags.signals_to_handle == "SIGTERM");
    CHECK(flags.event_log_handler == "console");
    CHECK(flags.logs_specs == "mine");
    CHECK(flags.options.log.directory == "d");
    CHECK(flags.redirects == "1");
    CHECK(flags.tee == "0:1,1:2");
    CHECK(flags.log_line_prefix_template == "${rank}:");
    CHECK(flags.options.log.shown_local_ranks == std::set<int>{0, 2});
    CHECK(flags.duplicate_stdout_filters == "apple,orange");
    CHECK(flags.duplicate_stderr_filters == "pear");
  }
}

TEST_CASE("our own flags land in their fields") {
  const RunFlags flags = Run(
      {"--spares=2", "--topology=b1/s2", "--restart-window=3600", "--max-stuck-restarts=4",
       "--admission-delay=0.5", "--stop-grace=abort=1", "--hang-timeout=off", "--health-check=true",
       "--health-check-timeout=9", "--propagate-exit-code", "--outcome-file=out.json",
       "--store-memory=1.5G", "--log-max-bytes=1M", "--log-max-files=3", "x"});
  CHECK(flags.options.store_bytes_max == size_t{3} << 29);
  CHECK(flags.options.hello.spares == 2);
  CHECK(flags.topology == "b1/s2");
  CHECK(flags.options.hello.restart_window == absl::Hours(1));
  CHECK(flags.options.hello.max_stuck_restarts == 4);
  CHECK(flags.admission_delay == absl::Milliseconds(500));
  CHECK(flags.stop_grace == "abort=1");
  CHECK(flags.hang_timeout == "off");
  CHECK(flags.options.health_check.command == "true");
  CHECK(flags.options.health_check.timeout == absl::Seconds(9));
  CHECK(flags.options.propagate_exit_code);
  CHECK(flags.outcome_file == "out.json");
  CHECK(flags.log_max_bytes == "1M");
  CHECK(flags.options.log.max_old_files == 3);
}

TEST_CASE("under argparse's rules a run has torchrun's defaults") {
  CHECK(Torchrun({"x"}).as_torchrun);
  CHECK_FALSE(Run({"x"}).as_torchrun);
}

TEST_CASE("values outside their choices are answered with the choices") {
  Bad<RunFlags>({"--start-method", "thread", "x"}, "write spawn, fork, forkserver");
  Bad<RunFlags>({"--numa-binding=core", "x"}, "write node, socket, exclusive, core-complex");
  Bad<RunFlags>({"--rdzv-backend=zookeeper", "x"},
                "--rdzv-backend zookeeper: write convene, c10d, static, etcd, etcd-v2");
}

TEST_CASE("numbers outside their limits are answered with the limits") {
  Bad<RunFlags>({"--max-restarts=-1", "x"}, "--max-restarts -1: write a number of at least 0");
  Bad<RunFlags>({"--max-stuck-restarts=-1", "x"}, "--max-stuck-restarts -1");
  Bad<RunFlags>({"--master-port=70000", "x"},
                "--master-port 70000: write a number from 0 to 65535");
  Bad<RunFlags>({"--spares=-1", "x"}, "--spares -1: write a number from 0 to 65536");
  Bad<RunFlags>({"--node-rank=-1", "x"}, "--node-rank -1");
  Bad<RunFlags>({"--local-ranks-filter=0,x", "x"}, "--local-ranks-filter 0,x: write ranks as in");
  Bad<RunFlags>({"--debug-rank=-1", "x"}, "--debug-rank -1");
  Bad<RunFlags>({"--log-max-files=1001", "x"}, "--log-max-files 1001");
  Bad<ServeFlags>({"--port", "70000"}, "--port 70000: write a number from 0 to 65535");
}

TEST_CASE("torchrun reads no PET_ variable for NUMA binding and log plug-ins, and neither do we") {
  const RunFlags flags =
      Run({"x"}, {{"PET_NUMA_BINDING", "node"}, {"PET_LOGS_SPECS", "mine"}, {"PET_TEE", "3"}});
  CHECK(flags.options.numa_binding == agent::NumaBinding::kNone);
  CHECK(flags.logs_specs.empty());
  CHECK(flags.tee == "3");
}

TEST_CASE("torchrun's own variables are defaults too, after its PET_ ones") {
  const Variables variables = {{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "120"},
                               {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "${rank}>"}};
  const RunFlags flags = Run({"x"}, variables);
  CHECK(flags.shutdown_timeout == absl::Minutes(2));
  CHECK(flags.log_line_prefix_template == "${rank}>");
  CHECK(flags.from_environment ==
        Words{"--shutdown-timeout=120 (TORCH_ELASTIC_SHUTDOWN_TIMEOUT)",
              "--log-line-prefix-template=${rank}> (TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE)"});
  CHECK(Run({"--shutdown-timeout=7", "x"}, variables).shutdown_timeout == absl::Seconds(7));
  CHECK(Run({"x"}, {{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "120"}, {"PET_SHUTDOWN_TIMEOUT", "9"}})
            .shutdown_timeout == absl::Seconds(9));
  Bad<RunFlags>({"x"}, "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=soon: write seconds",
                {{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "soon"}});
}

TEST_CASE("what follows the program is the program's, whatever it looks like") {
  const RunFlags flags = Run({"--standalone", "train.py", "--nnodes", "9", "--help", "--", "run"});
  CHECK_FALSE(flags.nnodes.has_value());
  CHECK(flags.command == Words{"train.py", "--nnodes", "9", "--help", "--", "run"});
  CHECK(Run({"--", "./-odd", "-x"}).command == Words{"./-odd", "-x"});
  CHECK(Run({"status", "serve"}).command == Words{"status", "serve"});
}

TEST_CASE("PET_ variables are defaults that a flag overrides") {
  const Variables pet = {{"PET_NNODES", "2"},
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
  Bad<RunFlags>({"--nproc-per-nodes", "2", "x"},
                "no flag --nproc-per-nodes; did you mean --nproc-per-node?");
  Bad<RunFlags>({"--nproc", "2", "x"}, "no flag --nproc; did you mean --nproc-per-node?");
  Bad<RunFlags>({"--zzzzzzzzz=1", "x"}, "no flag --zzzzzzzzz; see `convene --help`");
  Bad<StatusFlags>({"--endpont", "h"}, "did you mean --endpoint?");
}

TEST_CASE("a wrong or missing value and a missing program say what to do") {
  Bad<RunFlags>({"--max-restarts", "0.5", "x"}, "--max-restarts 0.5: write a whole number");
  Bad<RunFlags>({"--nnodes"}, "--nnodes needs a value: write --nnodes N|MIN:MAX");
  Bad<RunFlags>({"x"}, "PET_MAX_RESTARTS=many", {{"PET_MAX_RESTARTS", "many"}});
  Bad<RunFlags>({"--standalone"}, "no program to run");
  Bad<StatusFlags>({"--endpoint", "h:port"}, "--endpoint: \"h:port\"");
  Bad<StatusFlags>({"a", "--json", "b"}, "\"b\" is one too many");
  Bad<ServeFlags>({"now"}, "takes flags only, not \"now\"");
}

TEST_CASE("serve reads its flags") {
  const auto serve = Good<ServeFlags>(
      {"--port", "0", "--host", "::", "--state_dir", "/var/lib/convene", "--store-memory=512M"});
  CHECK(serve.state_dir == "/var/lib/convene");
  CHECK(serve.store_bytes_max == size_t{512} << 20);
  Bad<ServeFlags>({"--store-memory", "1K"}, "--store-memory 1K: write a size of at least 1M");
  CHECK(Good<ServeFlags>({"--no-store"}).no_store);
  Bad<ServeFlags>({"--no-store", "--store-memory", "1M"}, "of no use with --no-store");
  CHECK(serve.port == 0);
  CHECK(serve.host == "::");
  CHECK_FALSE(serve.journal.has_value());
}

TEST_CASE("serve takes a journal in etcd in place of a directory") {
  const auto serve = Good<ServeFlags>({"--journal", "etcd://a,b:1/team", "--leader-lease", "10"});
  REQUIRE(serve.journal.has_value());
  CHECK(serve.journal->url() == "etcd://a:2379,b:1/team");
  CHECK(serve.leader_lease == absl::Seconds(10));
  CHECK(Good<ServeFlags>({"--journal", "etcd://a"}).leader_lease == absl::Seconds(4));
  const auto locked = Good<ServeFlags>(
      {"--journal", "etcd://a", "--etcd-ca", "/ca", "--etcd-cert", "/cert", "--etcd-key", "/key"});
  CHECK(locked.etcd_tls.ca == "/ca");
  CHECK(locked.etcd_tls.cert == "/cert");
  CHECK(locked.etcd_tls.key == "/key");
  Bad<ServeFlags>({"--journal", "etcd://a", "--etcd-ca", "/c", "--etcd-key", "/k"}, "give both");
  Bad<ServeFlags>({"--journal", "etcd://a", "--etcd-cert", "/c", "--etcd-key", "/k"},
                  "wants --etcd-ca");
  Bad<ServeFlags>({"--etcd-ca", "/c"}, "without --journal");
  Bad<ServeFlags>({"--journal", "a"}, "it does not begin with etcd://");
  Bad<ServeFlags>({"--journal", "etcd://a", "--state-dir", "/s"}, "exclude each other");
  CHECK(Good<ServeFlags>({"--state-dir", "/s", "--standby"}).standby);
  Bad<ServeFlags>({"--standby"}, "wants --state-dir");
  for (const char* wrong : {"1", "61", "2.5", "soon"}) {
    Bad<ServeFlags>({"--leader-lease", wrong}, "write whole seconds from 2 to 60");
  }
}

TEST_CASE("status takes its run before and behind the flags, and its endpoint from outside") {
  const auto status = [](const Words& words, const Variables& environment = {}) {
    return Good<StatusFlags>(words, environment);
  };
  const StatusFlags first = status({"llama", "--watch", "--json"});
  CHECK(first.job_id == "llama");
  CHECK(first.watch);
  CHECK(first.json);
  CHECK(first.endpoint == "localhost:29400");
  const StatusFlags last = status({"--watch", "llama"});
  CHECK(last.job_id == "llama");
  CHECK_FALSE(last.json);
  CHECK(status({}, Variables{{"PET_RDZV_ENDPOINT", "p:1"}}).endpoint == "p:1");
  CHECK(status({}, Variables{{"PET_RDZV_ENDPOINT", "p:1"}, {"CONVENE_ENDPOINT", "c"}}).endpoint ==
        "c:29400");
  CHECK(status({"--endpoint", "h"}, Variables{{"CONVENE_ENDPOINT", "c"}}).endpoint == "h:29400");
  CHECK(status({}, Variables{{"CONVENE_ENDPOINT", "a,b:1"}}).endpoint == "a:29400,b:1");
  Bad<StatusFlags>({"--endpoint", "h,h"}, "--endpoint: \"h,h\" has h:29400 twice");
}

TEST_CASE("logs reads what to show, of whom, and how") {
  const auto logs = [](const Words& words) { return Good<LogsFlags>(words); };
  const LogsFlags plain = logs({"llama"});
  CHECK(plain.endpoint == "localhost:29400");
  CHECK(plain.request.job_id == "llama");
  CHECK(plain.request.tail == 100);
  CHECK(!plain.request.follow);
  CHECK(plain.prefix_template == "[${rank}] ");
  const LogsFlags all = logs({"-f", "--tail", "all", "llama", "--rank", "0,4-6", "--node", "n1,n2",
                              "--stderr", "--timestamps", "--endpoint", "h"});
  CHECK(all.endpoint == "h:29400");
  CHECK(all.request.follow);
  CHECK(all.request.tail == -1);
  CHECK(all.request.filter.ranks == std::set<int>{0, 4, 5, 6});
  CHECK(all.request.hosts == Words{"n1", "n2"});
  CHECK(all.request.filter.without_stdout);
  CHECK(!all.request.filter.without_stderr);
  CHECK(all.prefix_template == "${time} [${rank}] ");
  const LogsFlags both = logs({"llama", "--stdout", "--stderr"});
  CHECK(!both.request.filter.without_stdout);
  CHECK(!both.request.filter.without_stderr);
}

TEST_CASE("logs says what is wrong with its flags") {
  Bad<LogsFlags>({}, "name a run: `convene logs RUN`");
  Bad<LogsFlags>({"a", "b"}, "one too many");
  Bad<LogsFlags>({"a", "--tail", "some"}, "--tail some: write a number of lines, or all");
  Bad<LogsFlags>({"a", "--rank", "3-1"}, "--rank 3-1: write ranks as in 0,3 or 0-7");
  Bad<LogsFlags>({"a", "--local-rank", "x"}, "--local-rank x");
  Bad<LogsFlags>({"a", "--rank", "0-5000"}, "more than 1024");
}

}  // namespace
}  // namespace convene::launcher
