#include "absl/strings/str_cat.h"
#include "launcher/flags.h"
#include "rendezvous/quorum/messages.h"

namespace convene::launcher {

namespace {

void AddStragglerFlag(FlagReader* reader, RunFlags* flags) {
  reader->Custom(
      "straggler-policy",
      [flags](const std::string& text) {
        flags->options.hello.excludes_stragglers = text == "exclude";
        return text == "exclude" || text == "warn"
                   ? absl::OkStatus()
                   : absl::InvalidArgumentError("write warn or exclude");
      },
      "what becomes of a node that holds the others up. warn: the log and the status name it; "
      "exclude: it takes no part in the next epoch, if there are enough nodes without it (default "
      "warn)",
      {.value = "warn|exclude"});
}

void AddStoreFlags(FlagReader* reader, RunFlags* flags) {
  AddStoreMemoryFlag(reader, &flags->options.store_bytes_max);
  reader->Switch("open-store", &flags->options.open_store,
                 "the workers' key-value store takes connections from every address, and not only "
                 "from those of the run's nodes (give it to all nodes)");
}

void AddOwnFlags(FlagReader* reader, RunFlags* flags) {
  reader->Group("Beyond torchrun", true);
  reader->Option("spares", &flags->options.hello.spares,
                 "nodes beyond MAX that may wait to replace a lost one (default 0)",
                 {.value = "N", .least = 0, .most = rendezvous::kMostNodesPerJob});
  reader->Option("topology", &flags->topology,
                 "this node's place, such as block2/switch7: nodes of one label get "
                 "neighbouring ranks (default CONVENE_TOPOLOGY, else Slurm's)",
                 {.value = "LABEL"});
  reader->Option("admission-delay", &flags->admission_delay,
                 "how long a late node waits for others before a running job makes room for them "
                 "together (default 3)",
                 {.value = "SECONDS"});
  reader->Option("restart-window", &flags->options.hello.restart_window,
                 "older failures no longer count against --max-restarts (default 0: all count)",
                 {.value = "SECONDS"});
  reader->Option("max-stuck-restarts", &flags->options.hello.max_stuck_restarts,
                 "give up after this many failures in a row without a new step (default 0: never)",
                 {.value = "N", .least = 0});
  AddStragglerFlag(reader, flags);
  reader->Option(
      "stop-grace", &flags->stop_grace,
      "time from the request to a worker to its SIGKILL, by the reason of the stop (default "
      "--shutdown-timeout)",
      {.value = "signal=S,checkpoint=S,abort=S"});
  reader->Option("leftover-grace", &flags->options.leftovers.grace,
                 "how long processes that successful workers left running may go on (an upload) "
                 "before they get SIGTERM, and SIGKILL a second later (default 30)",
                 {.value = "SECONDS"});
  reader->Option("debug-rank", &flags->options.debug_rank,
                 "the worker of this local rank gets this command's terminal, for breakpoint() and "
                 "input(), and no worker of this node counts as hanging. Without this flag the "
                 "terminal goes to the worker of a node that has one only, and --hang-timeout "
                 "holds",
                 {.value = "N", .least = 0});
  reader->Option(
      "hang-timeout", &flags->hang_timeout,
      "how long a worker that tells its steps may stand still. auto: limits that are not given are "
      "learnt from the run; off: there are no other limits (default auto)",
      {.value = "startup=S,step=S,checkpoint=S|auto|off"});
  reader->Option(
      "warm-workers", &flags->warm_workers,
      "spare processes that have done what a start begins with (a Python script's imports; "
      "convene-train: loading, opening the GPU): they become the workers of a restart, and of the "
      "first start of a Python script that ran before. auto: one a worker of this node (default 0)",
      {.value = "N|auto"});
  reader->Option("health-check", &flags->options.health_check.command,
                 "command for /bin/sh before each start of the workers, or the word doctor "
                 "(`convene doctor`); if it fails this node leaves the job with exit code 71. What "
                 "it leaves running ends with the epoch: start no service there",
                 {.value = "COMMAND"});
  reader->Switch("doctor", &flags->doctor,
                 "before the first epoch all nodes look at each other (`convene doctor`); where "
                 "training cannot run the job ends with 71");
  reader->Option("health-check-timeout", &flags->options.health_check.timeout,
                 "time limit of --health-check (default 60)", {.value = "SECONDS"});
  reader->Switch("propagate-exit-code", &flags->options.propagate_exit_code,
                 "end a failed job with the first failed worker's own exit code");
  reader->Option("outcome-file", &flags->outcome_file,
                 "at the end, how this node's part ended and the job's first failed worker go to "
                 "this file as JSON, for the program that called this one",
                 {.value = "FILE"});
  AddStoreFlags(reader, flags);
  AddCredentialFlags(reader, &flags->options.credentials);
  reader->Option("log-max-bytes", &flags->log_max_bytes,
                 "rotate a log file at this size, such as 100M (default never)", {.value = "SIZE"});
  reader->Option("log-max-files", &flags->options.log.max_old_files,
                 "rotated files kept of each log file (default 5)",
                 {.value = "N", .least = 0, .most = 1000});
}

}  // namespace

void AddFlags(FlagReader* reader, RunFlags* flags) {
  flags->as_torchrun = reader->like_argparse();
  AddTorchrunFlags(reader, flags);
  AddOwnFlags(reader, flags);
  reader->Rest("PROGRAM [ARGUMENT...]", &flags->command);
  reader->Check([reader, flags]() -> absl::Status {
    flags->from_environment = reader->from_environment();
    if (!flags->command.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("no program to run; write it after the flags: `",
                                                   reader->program(),
                                                   " --nproc-per-node 2 train.py`"));
  });
}

}  // namespace convene::launcher
