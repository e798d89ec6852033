#include "agent/scheduler/slurm_stop.h"

#include <catch2/catch.hpp>

#include "absl/strings/str_replace.h"
#include "tools/base/testing/environment_table.h"

namespace convene::agent {
namespace {

using testing::LookupIn;

// As Slurm 22.05 prints it in the grace of a preemption, shortened.
constexpr char kPreempted[] =
    "JobId=35 JobName=llama UserId=root(0) GroupId=root(0) MCS_label=N/A Priority=1 Nice=0 "
    "Account=(null) QOS=(null) JobState=RUNNING Reason=None Dependency=(null) Requeue=1 Restarts=0 "
    "BatchFlag=1 Reboot=0 ExitCode=0:0 RunTime=00:00:21 TimeLimit=00:10:00 TimeMin=N/A "
    "SubmitTime=2026-11-23T02:00:00 EligibleTime=2026-11-23T02:00:00 "
    "StartTime=2026-11-23T02:00:01 EndTime=2026-11-23T02:00:26 Deadline=N/A "
    "PreemptEligibleTime=2026-11-23T02:00:01 PreemptTime=2026-11-23T02:00:22 "
    "SuspendTime=None Partition=low Command=/tmp/x PreemptTime=None Requeue=0\n";

std::string With(absl::string_view from, absl::string_view to) {
  return absl::StrReplaceAll(kPreempted, {{from, to}});
}

TEST_CASE("a preempted job that may be requeued is requeued, and the reason is told") {
  const SlurmVerdict verdict = DecideRequeue("35", kPreempted);
  CHECK(verdict.requeue);
  CHECK(verdict.why ==
        "Slurm preempts job 35 (PreemptTime 2026-11-23T02:00:22), and it may be requeued");
  CHECK(DecideRequeue("35", With("JobState=RUNNING", "JobState=SIGNALING")).requeue);
}

TEST_CASE("in every other case Slurm's own decision stands") {
  const auto why_not = [](const std::string& shown) {
    const SlurmVerdict verdict = DecideRequeue("35", shown);
    CHECK_FALSE(verdict.requeue);
    return verdict.why;
  };
  CHECK_THAT(why_not(With("PreemptTime=2026-11-23T02:00:22", "PreemptTime=None")),
             Catch::Contains("is in no grace of a preemption"));
  CHECK_THAT(why_not(With("PreemptTime=2026-11-23T02:00:22 ", "")),
             Catch::Contains("is in no grace of a preemption"));
  // Without a GraceTime a preempted job has no PreemptTime, and Slurm has requeued it already.
  for (const auto* preempted : {"PreemptTime=2026-11-23T02:00:22", "PreemptTime=None"}) {
    const std::string shown =
        absl::StrReplaceAll(kPreempted, {{"JobState=RUNNING", "JobState=COMPLETING"},
                                         {"PreemptTime=2026-11-23T02:00:22", preempted}});
    CHECK(why_not(shown) ==
          "Slurm has already decided what follows for job 35 (JobState COMPLETING)");
  }
  CHECK_THAT(why_not(With("BatchFlag=1", "BatchFlag=0")), Catch::Contains("no batch script"));
  CHECK_THAT(why_not(With("Requeue=1", "Requeue=0")), Catch::Contains("--requeue"));
  CHECK_THAT(why_not(""), Catch::Contains("told nothing of job 35"));
  CHECK_THAT(why_not("slurm_load_jobs error: Invalid job id specified\n"),
             Catch::Contains("told nothing of job 35"));
}

// As Slurm 22.05 prints them, shortened.
constexpr char kConfig[] =
    "Configuration data as of 2026-11-23T07:38:12\n"
    "AccountingStorageBackupHost = (null)\n"
    "PreemptMode             = REQUEUE\n"
    "PreemptType             = preempt/partition_prio\n"
    "PreemptExemptTime       = 00:00:00\n"
    "PrEpPlugins             = (null)\n";
constexpr char kPartition[] =
    "PartitionName=low AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL AllocNodes=ALL Default=NO "
    "QoS=N/A DefaultTime=NONE GraceTime=4 Hidden=NO MaxNodes=UNLIMITED Nodes=n[1-2] "
    "PriorityTier=1 OverTimeLimit=NONE PreemptMode=REQUEUE State=UP TotalCPUs=8\n";

std::string InPartition(absl::string_view mode) {
  return absl::StrReplaceAll(kPartition, {{"PreemptMode=REQUEUE", mode}});
}

std::string InConfig(absl::string_view mode, absl::string_view type) {
  return absl::StrReplaceAll(kConfig, {{"= REQUEUE", mode}, {"= preempt/partition_prio", type}});
}

TEST_CASE("a partition whose preempted jobs are to end gets no job back from us") {
  CHECK(SlurmModeQuestion(kPreempted, kConfig) ==
        std::vector<std::string>{"-o", "show", "partition", "low"});
  const SlurmVerdict wanted = DecideRequeue("35", kPreempted);
  CHECK(HeedPreemptMode(wanted, kConfig, kPartition).requeue);
  CHECK(HeedPreemptMode(wanted, kConfig, kPartition).why == wanted.why);
  CHECK(HeedPreemptMode(wanted, kConfig, InPartition("PreemptMode=GANG,SUSPEND")).requeue);
  for (const auto* mode : {"PreemptMode=CANCEL", "PreemptMode=GANG,CANCEL"}) {
    const SlurmVerdict verdict = HeedPreemptMode(wanted, kConfig, InPartition(mode));
    CHECK_FALSE(verdict.requeue);
    CHECK_THAT(verdict.why, Catch::Contains(mode));
    CHECK_THAT(verdict.why, Catch::Contains("of partition low says that preempted jobs end"));
  }
  // The partition's mode counts, whatever slurm.conf has for the others.
  CHECK(HeedPreemptMode(wanted, InConfig("= CANCEL", "= preempt/partition_prio"), kPartition)
            .requeue);
}

// As Slurm 22.05 prints it, but for limits.
constexpr char kQos[] =
    "Current Association Manager state\n\nQOS Records\n\nQOS=cheap(3) UsageRaw=0.0 GrpJobs=N(0) "
    "MinTRESPJ= PreemptMode=CANCEL Priority=0 Account Limits=No Accounts User Limits=No Users\n";

TEST_CASE("where QOS preempt each other, the QOS's mode counts, else slurm.conf's") {
  const std::string by_qos = InConfig("= REQUEUE", "= preempt/qos");
  CHECK(SlurmModeQuestion(With("QOS=(null)", "QOS=cheap"), by_qos) ==
        std::vector<std::string>{"-o", "show", "assoc_mgr", "flags=qos", "qos=cheap"});
  const SlurmVerdict wanted = DecideRequeue("35", kPreempted);
  const auto heed = [&](absl::string_view mode, const std::string& qos) {
    return HeedPreemptMode(wanted, InConfig(mode, "= preempt/qos"), qos);
  };
  const SlurmVerdict cancelled = heed("= REQUEUE", kQos);
  CHECK_FALSE(cancelled.requeue);
  CHECK_THAT(cancelled.why, Catch::Contains("PreemptMode=CANCEL of QOS cheap(3) says"));
  CHECK(heed("= CANCEL", absl::StrReplaceAll(kQos, {{"CANCEL", "REQUEUE"}})).requeue);
  for (const std::string& none : {std::string(), absl::StrReplaceAll(kQos, {{"CANCEL", "OFF"}})}) {
    CHECK(heed("= REQUEUE", none).requeue);
    const SlurmVerdict by_config = heed("= CANCEL", none);
    CHECK_FALSE(by_config.requeue);
    CHECK_THAT(by_config.why, Catch::Contains("PreemptMode=CANCEL of slurm.conf"));
  }
}

TEST_CASE("a mode that scontrol does not tell changes nothing, and that is told") {
  const SlurmVerdict wanted = DecideRequeue("35", kPreempted);
  for (const std::string partition : {"", "Partition none not found\n"}) {
    const SlurmVerdict verdict = HeedPreemptMode(wanted, kConfig, partition);
    CHECK(verdict.requeue);
    CHECK_THAT(verdict.why, Catch::Contains("does not tell the PreemptMode"));
  }
  CHECK_FALSE(HeedPreemptMode(wanted, "", InPartition("PreemptMode=CANCEL")).requeue);
  // A job that is not to be requeued anyway keeps its reason.
  const SlurmVerdict unwanted = DecideRequeue("35", With("Requeue=1", "Requeue=0"));
  CHECK(HeedPreemptMode(unwanted, kConfig, kPartition).why == unwanted.why);
}

TEST_CASE("the first agent of a step asks, for the last task of an array by both numbers") {
  CHECK(SlurmJobToAskFor(LookupIn({})).empty());
  CHECK(SlurmJobToAskFor(LookupIn({{"SLURM_JOB_ID", "35"}})).empty());
  CHECK(SlurmJobToAskFor(LookupIn({{"SLURM_JOB_ID", "35"}, {"SLURM_NODEID", "0"}})) == "35");
  CHECK(SlurmJobToAskFor(LookupIn({{"SLURM_JOB_ID", "35"}, {"SLURM_NODEID", "1"}})).empty());
  testing::EnvironmentTable task = {{"SLURM_JOB_ID", "34"},
                                    {"SLURM_NODEID", "0"},
                                    {"SLURM_ARRAY_JOB_ID", "34"},
                                    {"SLURM_ARRAY_TASK_ID", "2"}};
  CHECK(SlurmJobToAskFor(LookupIn(task)) == "34_2");
  // Another task has a number of its own, and so has a job that inherits a task's variables.
  task["SLURM_JOB_ID"] = "35";
  CHECK(SlurmJobToAskFor(LookupIn(task)) == "35");
  CHECK(SlurmJobToAskFor(LookupIn({{"SLURM_JOB_ID", "35 --help"}})).empty());
}

TEST_CASE(
    "the end of the job is told where the workers may need longer, with the site's KillWait") {
  const std::string config = "KillOnBadExit           = 0\nKillWait                = 8 sec\n";
  CHECK(TellSlurmEnd(absl::Seconds(30), absl::Seconds(30), config).empty());
  CHECK_THAT(TellSlurmEnd(absl::Seconds(3.9), absl::Seconds(30), config),
             Catch::StartsWith("Slurm ends this job in 3s and kills what is left 8 sec later "
                               "(KillWait); the workers' grace is 30s"));
  CHECK_THAT(TellSlurmEnd(absl::Seconds(-1), absl::Seconds(30), config),
             Catch::StartsWith("Slurm ends this job now and kills what is left 8 sec later"));
  CHECK_THAT(TellSlurmEnd(absl::Seconds(3), absl::Seconds(30), ""),
             Catch::Contains("kills what is left KillWait of slurm.conf later; the workers'"));
}

TEST_CASE("scontrol's word on the job's end is newer than the variable's") {
  const absl::TimeZone utc = absl::UTCTimeZone();
  const EnvironmentLookup variable = LookupIn({{"SLURM_JOB_END_TIME", "1000"}});
  CHECK(SlurmEnd(kPreempted, variable, utc) ==
        absl::FromCivil(absl::CivilSecond(2026, 11, 23, 2, 0, 26), utc));
  CHECK(SlurmEnd("", variable, utc) == absl::FromUnixSeconds(1000));
  CHECK(SlurmEnd(With("EndTime=2026-11-23T02:00:26", "EndTime=Unknown"), LookupIn({}), utc) ==
        std::nullopt);
  CHECK(SlurmEnd("", LookupIn({{"SLURM_JOB_END_TIME", "soon"}}), utc) == std::nullopt);
}

}  // namespace
}  // namespace convene::agent
