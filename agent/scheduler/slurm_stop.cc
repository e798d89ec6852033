#include "agent/scheduler/slurm_stop.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace convene::agent {
namespace {

// "" where the key is missing. Values of later keys may hold anything (Command=, Comment=): the
// first word that begins with the key counts, and the keys asked for here come before those.
std::string ValueOf(const std::string& shown, absl::string_view key) {
  for (absl::string_view word : absl::StrSplit(shown, absl::ByAnyChar(" \n"), absl::SkipEmpty())) {
    if (absl::ConsumePrefix(&word, key) && absl::ConsumePrefix(&word, "=")) {
      return std::string(word);
    }
  }
  return "";
}

// The value of a line `KEY   = VALUE` of `scontrol show config`; "" where it is missing.
std::string ConfigValueOf(const std::string& config, absl::string_view key) {
  for (absl::string_view line : absl::StrSplit(config, '\n')) {
    if (!absl::ConsumePrefix(&line, key)) continue;
    line = absl::StripLeadingAsciiWhitespace(line);
    if (absl::ConsumePrefix(&line, "=")) return std::string(absl::StripAsciiWhitespace(line));
  }
  return "";
}

bool IsByQos(const std::string& config) {
  return ConfigValueOf(config, "PreemptType") == "preempt/qos";
}

// Slurm writes these for a time that is not set.
bool IsTime(const std::string& value) {
  return !value.empty() && value != "None" && value != "N/A" && value != "Unknown" &&
         value != "(null)";
}

}  // namespace

std::string SlurmJobToAskFor(const EnvironmentLookup& environment) {
  if (environment("SLURM_NODEID") != "0") return "";
  std::string job = environment("SLURM_JOB_ID").value_or("");
  if (job == environment("SLURM_ARRAY_JOB_ID")) {
    absl::StrAppend(&job, "_", environment("SLURM_ARRAY_TASK_ID").value_or(""));
  }
  // It becomes an argument of scontrol.
  return job.find_first_not_of("0123456789_") == std::string::npos ? job : "";
}

SlurmVerdict DecideRequeue(const std::string& job, const std::string& shown) {
  const std::string name = absl::StrCat("job ", job);
  const std::string state = ValueOf(shown, "JobState");
  const std::string preempted_at = ValueOf(shown, "PreemptTime");
  if (state.empty()) {
    return {false, absl::StrCat("scontrol told nothing of ", name,
                                ": whether Slurm preempts it is not known")};
  }
  // SIGNALING is RUNNING while Slurm still sends the signal that made us ask.
  if (state != "RUNNING" && state != "SIGNALING") {
    return {false, absl::StrCat("Slurm has already decided what follows for ", name, " (JobState ",
                                state, ")")};
  }
  // Both as 2026-11-23T02:00:01. An earlier one is of a run before the requeue.
  if (!IsTime(preempted_at) || preempted_at < ValueOf(shown, "StartTime")) {
    return {false, absl::StrCat(name, " is in no grace of a preemption (PreemptTime is not set)")};
  }
  const std::string preempted =
      absl::StrCat("Slurm preempts ", name, " (PreemptTime ", preempted_at, ")");
  if (ValueOf(shown, "BatchFlag") == "0") {
    return {false, absl::StrCat(preempted,
                                ", but it has no batch script (BatchFlag=0): Slurm can "
                                "requeue no job of salloc or of srun alone")};
  }
  if (ValueOf(shown, "Requeue") != "1") {
    return {false, absl::StrCat(preempted,
                                ", but it must not be requeued (Requeue=0): submit it "
                                "with --requeue for that")};
  }
  return {true, absl::StrCat(preempted, ", and it may be requeued")};
}

std::vector<std::string> SlurmModeQuestion(const std::string& shown, const std::string& config) {
  if (!IsByQos(config)) return {"-o", "show", "partition", ValueOf(shown, "Partition")};
  return {"-o", "show", "assoc_mgr", "flags=qos", absl::StrCat("qos=", ValueOf(shown, "QOS"))};
}

SlurmVerdict HeedPreemptMode(SlurmVerdict verdict, const std::string& config,
                             const std::string& record) {
  if (!verdict.requeue) return verdict;
  std::string mode = ValueOf(record, "PreemptMode");
  std::string whose = absl::StrCat("partition ", ValueOf(record, "PartitionName"));
  if (IsByQos(config)) {
    whose = absl::StrCat("QOS ", ValueOf(record, "QOS"));
    if (mode.empty() || mode == "OFF") {  // a QOS without a mode
      mode = ConfigValueOf(config, "PreemptMode");
      whose = "slurm.conf";
    }
  }
  if (mode.empty()) {
    absl::StrAppend(&verdict.why, " (scontrol does not tell the PreemptMode)");
  } else if (absl::StrContains(mode, "CANCEL")) {
    verdict.requeue = false;
    absl::StrAppend(&verdict.why, " by its own flags, but PreemptMode=", mode, " of ", whose,
                    " says that preempted jobs end: submit it again");
  }
  return verdict;
}

std::optional<absl::Time> SlurmEnd(const std::string& shown, const EnvironmentLookup& environment,
                                   absl::TimeZone zone) {
  absl::Time end;
  std::string error;
  if (absl::ParseTime("%Y-%m-%dT%H:%M:%S", ValueOf(shown, "EndTime"), zone, &end, &error)) {
    return end;
  }
  int64_t seconds = 0;
  if (absl::SimpleAtoi(environment("SLURM_JOB_END_TIME").value_or(""), &seconds)) {
    return absl::FromUnixSeconds(seconds);
  }
  return std::nullopt;
}

std::string TellSlurmEnd(absl::Duration left, absl::Duration grace, const std::string& config) {
  if (left >= grace) return "";
  const std::string kill_wait = ConfigValueOf(config, "KillWait");
  const absl::Duration seconds = absl::Floor(left, absl::Seconds(1));
  return absl::StrCat(
      "Slurm ends this job ",
      seconds > absl::ZeroDuration() ? absl::StrCat("in ", absl::FormatDuration(seconds)) : "now",
      " and kills what is left ",
      kill_wait.empty() ? "KillWait of slurm.conf later" : kill_wait + " later (KillWait)",
      "; the workers' grace is ", absl::FormatDuration(grace),
      ". Where a checkpoint takes longer than Slurm leaves, raise KillWait or GraceTime, or submit "
      "with --signal=TERM@SECONDS");
}

}  // namespace convene::agent
