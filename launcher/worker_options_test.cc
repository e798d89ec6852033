#include "launcher/worker_options.h"

#include <signal.h>

#include "tools/base/testing/status_testing.h"

namespace convene::launcher {
namespace {

agent::AgentOptions Good(const RunFlags& flags) {
  agent::AgentOptions options = flags.options;
  std::vector<std::string> reasons;
  REQUIRE_OK(ApplyWorkerFlags(flags, &options, &reasons));
  return options;
}

void Refused(const RunFlags& flags, const std::string& text) {
  agent::AgentOptions options = flags.options;
  std::vector<std::string> reasons;
  CHECK_STATUS(ApplyWorkerFlags(flags, &options, &reasons), absl::StatusCode::kInvalidArgument,
               text);
}

TEST_CASE("the shutdown timeout is every stop's grace, 30 seconds by default and a day at most") {
  CHECK(Good({}).stop_graces.signal == absl::Seconds(30));
  RunFlags flags;
  flags.shutdown_timeout = absl::Seconds(7);
  CHECK(Good(flags).stop_graces.checkpoint == absl::Seconds(7));
  CHECK(Good(flags).stop_graces.abort == absl::Seconds(7));
  flags.shutdown_timeout = absl::Hours(25);
  Refused(flags, "more than a day");
}

TEST_CASE("a grace by reason overrides the common one") {
  RunFlags flags;
  flags.shutdown_timeout = absl::Seconds(7);
  flags.stop_grace = "abort=1, checkpoint=600";
  const agent::StopGraces graces = Good(flags).stop_graces;
  CHECK(graces.signal == absl::Seconds(7));
  CHECK(graces.checkpoint == absl::Minutes(10));
  CHECK(graces.abort == absl::Seconds(1));
  for (const char* bad : {"abort", "abort=", "abort=x", "leave=1", "5"}) {
    flags.stop_grace = bad;
    Refused(flags, "--stop-grace");
  }
}

TEST_CASE("limits on hanging workers: given, learnt, or none") {
  RunFlags flags;
  CHECK(Good(flags).hang_limits.automatic);
  flags.hang_timeout = "startup=600,step=30.5";
  CHECK(Good(flags).hang_limits.startup == absl::Minutes(10));
  CHECK(Good(flags).hang_limits.step == absl::Milliseconds(30500));
  CHECK(Good(flags).hang_limits.checkpoint == absl::ZeroDuration());
  CHECK(Good(flags).hang_limits.automatic);
  flags.hang_timeout = "step=30,off";
  CHECK_FALSE(Good(flags).hang_limits.automatic);
  CHECK(Good(flags).hang_limits.step == absl::Seconds(30));
  for (const char* bad : {"on", "step", "step=-1", "steps=3"}) {
    flags.hang_timeout = bad;
    Refused(flags, "--hang-timeout");
  }
}

TEST_CASE("the signals to handle are taken and told to the workers") {
  RunFlags flags;
  CHECK(Good(flags).ending_signals == std::vector<int>{SIGTERM, SIGINT, SIGHUP, SIGQUIT});
  flags.signals_to_handle = "SIGTERM,SIGUSR1";
  const agent::AgentOptions options = Good(flags);
  CHECK(options.ending_signals == std::vector<int>{SIGTERM, SIGUSR1});
  CHECK(options.extra_environment.at("TORCHELASTIC_SIGNALS_TO_HANDLE") == "SIGTERM,SIGUSR1");
  flags.signals_to_handle = "SIGKILL";
  Refused(flags, "--signals-to-handle SIGKILL");
}

TEST_CASE("health check and exit code arrive as they are written") {
  RunFlags flags;
  flags.options.health_check.command = "nvidia-smi";
  flags.options.health_check.timeout = absl::Seconds(5);
  flags.options.virtual_local_rank = flags.options.propagate_exit_code = true;
  const agent::AgentOptions options = Good(flags);
  CHECK(options.health_check.command == "nvidia-smi");
  CHECK(options.health_check.timeout == absl::Seconds(5));
  CHECK((options.virtual_local_rank && options.propagate_exit_code));
  flags.options.health_check.timeout = absl::ZeroDuration();
  Refused(flags, "--health-check-timeout");
  flags.options.health_check.timeout = absl::Minutes(11);
  Refused(flags, "is longer than join_timeout (10m)");
  flags.options.health_check.command = "";
  Good(flags);
}

TEST_CASE("an event handler in Python has no effect, with a line; a logs plug-in is refused") {
  RunFlags flags;
  flags.logs_specs = "default";  // torchrun's own
  flags.event_log_handler = "scuba";
  agent::AgentOptions options = flags.options;
  std::vector<std::string> reasons;
  REQUIRE_OK(ApplyWorkerFlags(flags, &options, &reasons));
  REQUIRE(reasons.size() == 1);
  CHECK_THAT(reasons[0], Catch::Contains("--event-log-handler scuba has no effect"));
  flags.logs_specs = "mine";
  Refused(flags, "--logs-specs mine: a plug-in in Python cannot run here");
}

TEST_CASE("what successful workers leave running has a grace; as torchrun it is left alone") {
  CHECK(Good({}).leftovers.grace == absl::Seconds(30));
  CHECK_FALSE(Good({}).leftovers.left_alone);
  RunFlags flags;
  flags.options.leftovers.grace = absl::Minutes(10);
  flags.as_torchrun = true;
  CHECK(Good(flags).leftovers.grace == absl::Minutes(10));
  CHECK(Good(flags).leftovers.left_alone);
  flags.options.leftovers.grace = absl::Hours(25);
  Refused(flags, "--leftover-grace 25h");
}

TEST_CASE("at most one spare is kept for each worker, and none unless asked for") {
  CHECK(Good({}).warm_workers == 0);
  RunFlags flags;
  flags.options.hello.local_world_size = 4;
  flags.warm_workers = "auto";
  CHECK(Good(flags).warm_workers == 4);
  flags.warm_workers = "3";
  CHECK(Good(flags).warm_workers == 3);
  for (const char* bad : {"5", "-1", "all", ""}) {
    flags.warm_workers = bad;
    Refused(flags, "write auto, or a number from 0 to 4");
  }
}

TEST_CASE("the worker to debug is one of this node's, and nobody hangs while it is looked at") {
  CHECK_FALSE(Good({}).debug_rank.has_value());
  RunFlags flags;
  flags.hang_timeout = "step=30";
  flags.options.debug_rank = 0;
  const agent::AgentOptions options = Good(flags);
  CHECK(options.debug_rank == 0);
  CHECK(options.hang_limits.step == absl::ZeroDuration());
  CHECK_FALSE(options.hang_limits.automatic);
  flags.options.debug_rank = 1;
  Refused(flags, "this node runs 1 worker; write a local rank from 0 to 0");
}

}  // namespace
}  // namespace convene::launcher
