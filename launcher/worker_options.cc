#include "launcher/worker_options.h"

#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tools/base/flag_reader.h"
#include "tools/base/signal_names.h"
#include "tools/base/status_macros.h"

namespace convene::launcher {
namespace {

// torchrun's; scripts read it to know which signals may come.
constexpr char kSignalsToHandle[] = "TORCHELASTIC_SIGNALS_TO_HANDLE";
constexpr absl::Duration kGraceMax = absl::Hours(24);

// "a=1,b=2,word" into durations by name; each name of `targets` at most once. A word without '='
// goes to `words`.
absl::Status ParseDurations(const std::string& flag, const std::string& text,
                            const std::map<std::string, absl::Duration*>& targets,
                            std::vector<std::string>* words) {
  for (const absl::string_view item : absl::StrSplit(text, ',', absl::SkipWhitespace())) {
    const std::pair<std::string, std::string> pair =
        absl::StrSplit(absl::StripAsciiWhitespace(item), absl::MaxSplits('=', 1));
    const auto target = targets.find(pair.first);
    absl::Status status = absl::InvalidArgumentError("is not known");
    if (pair.second.empty() && words != nullptr) {
      words->push_back(pair.first);
      continue;
    }
    if (target != targets.end()) status = ParseValue(pair.second, target->second);
    if (status.ok()) continue;
    std::string names;
    for (const auto& [name, unused] : targets) absl::StrAppend(&names, name, "=SECONDS ");
    return absl::InvalidArgumentError(absl::StrCat(flag, " ", text, ": \"", item,
                                                   "\" cannot be read; write ", names,
                                                   "with commas between them"));
  }
  return absl::OkStatus();
}

absl::Status ApplyGraces(const RunFlags& flags, agent::StopGraces* graces) {
  const absl::Duration all = flags.shutdown_timeout;
  *graces = {all, all, all};
  CONVENE_RETURN_IF_ERROR(ParseDurations(
      "--stop-grace", flags.stop_grace,
      {{"signal", &graces->signal}, {"checkpoint", &graces->checkpoint}, {"abort", &graces->abort}},
      nullptr));
  for (const absl::Duration grace : {graces->signal, graces->checkpoint, graces->abort}) {
    if (grace <= kGraceMax) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--shutdown-timeout and --stop-grace: ", absl::FormatDuration(grace),
                     " is more than a day; a worker that hangs would hold the node that long"));
  }
  return absl::OkStatus();
}

absl::Status ApplyHangLimits(const RunFlags& flags, agent::HangLimits* limits) {
  std::vector<std::string> words;
  CONVENE_RETURN_IF_ERROR(ParseDurations(
      "--hang-timeout", flags.hang_timeout,
      {{"startup", &limits->startup}, {"step", &limits->step}, {"checkpoint", &limits->checkpoint}},
      &words));
  for (const std::string& word : words) {
    if (word != "auto" && word != "off") {
      return absl::InvalidArgumentError(
          absl::StrCat("--hang-timeout ", flags.hang_timeout, ": \"", word,
                       "\" cannot be read; write startup=SECONDS, step=SECONDS, "
                       "checkpoint=SECONDS, auto or off, with commas between them"));
    }
    limits->automatic = word == "auto";
  }
  return absl::OkStatus();
}

absl::Status CheckLeftoverGrace(absl::Duration grace) {
  if (grace <= kGraceMax) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--leftover-grace ", absl::FormatDuration(grace),
                   " is more than a day; a process that never ends would hold the node that long"));
}

absl::Status ApplyDebugRank(agent::AgentOptions* options) {
  if (!options->debug_rank.has_value()) return absl::OkStatus();
  const int workers = options->hello.local_world_size;
  if (*options->debug_rank >= workers) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--debug-rank ", *options->debug_rank, ": this node runs ", workers,
        workers == 1 ? " worker" : " workers", "; write a local rank from 0 to ", workers - 1));
  }
  // A worker stands still while a person debugs it, and the others wait for it.
  options->hang_limits = {};
  options->hang_limits.automatic = false;
  return absl::OkStatus();
}

absl::Status ApplyWarmWorkers(const std::string& word, agent::AgentOptions* options) {
  const int workers = options->hello.local_world_size;
  options->warm_workers = workers;
  if (word == "auto") return absl::OkStatus();
  if (!absl::SimpleAtoi(word, &options->warm_workers) || options->warm_workers < 0 ||
      options->warm_workers > workers) {
    return absl::InvalidArgumentError(absl::StrCat("--warm-workers ", word,
                                                   ": write auto, or a number from 0 to ", workers,
                                                   ", the workers of this node"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ApplyWorkerFlags(const RunFlags& flags, agent::AgentOptions* options,
                              std::vector<std::string>* reasons) {
  CONVENE_RETURN_IF_ERROR(ApplyGraces(flags, &options->stop_graces));
  const auto signals = ParseSignals(flags.signals_to_handle);
  if (!signals.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--signals-to-handle ", std::string(signals.status().message())));
  }
  options->ending_signals = *signals;
  options->leftovers.left_alone = flags.as_torchrun;
  options->local_rank_in_arguments = flags.as_torchrun;
  CONVENE_RETURN_IF_ERROR(CheckLeftoverGrace(options->leftovers.grace));
  CONVENE_RETURN_IF_ERROR(ApplyHangLimits(flags, &options->hang_limits));
  CONVENE_RETURN_IF_ERROR(ApplyDebugRank(options));
  CONVENE_RETURN_IF_ERROR(ApplyWarmWorkers(flags.warm_workers, options));
  const agent::HealthCheck& health_check = options->health_check;
  if (health_check.timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError("--health-check-timeout 0: no command ends in no time");
  }
  if (!health_check.command.empty() && health_check.timeout > options->hello.join_timeout) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--health-check-timeout (", absl::FormatDuration(health_check.timeout),
        ") is longer than join_timeout (", absl::FormatDuration(options->hello.join_timeout),
        ") in --rdzv-conf: the job would give up while a node is still being checked; lower the "
        "first or raise the second"));
  }
  options->extra_environment[kSignalsToHandle] = flags.signals_to_handle;
  if (flags.event_log_handler != "null") {
    reasons->push_back(absl::StrCat("--event-log-handler ", flags.event_log_handler,
                                    " has no effect here: this log has the events"));
  }
  if (!flags.logs_specs.empty() && flags.logs_specs != "default") {
    return absl::InvalidArgumentError(
        absl::StrCat("--logs-specs ", flags.logs_specs,
                     ": a plug-in in Python cannot run here; leave the flag out and write where "
                     "the output is to go with --log-dir, --redirects and --tee"));
  }
  return absl::OkStatus();
}

}  // namespace convene::launcher
