#include "agent/scheduler/slurm_requeue.h"

#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "agent/custody/program.h"
#include "agent/workers/environment.h"
#include "tools/base/clock.h"
#include "tools/base/text.h"

namespace convene::agent {
namespace {

// A line of `scontrol -o show job` has some 2 kB, `scontrol show config` some 10; what is asked for
// stands in the first half of both.
constexpr size_t kBytesKept = 16384;
constexpr size_t kErrorBytesTold = 300;

// The ways of a site whose jobs cannot ask by themselves.
constexpr char kWithoutUs[] =
    "should this be a preemption with a GraceTime, Slurm before 24.05 takes a job that leaves "
    "within the grace for ended. Make scontrol, its configuration and munge's socket visible here, "
    "or "
    "requeue in the batch script when this command ends with 143, or set RequeueExit=143 in "
    "slurm.conf";

EnvironmentLookup LookupIn(const SlurmRequeue::Environment& environment) {
  return [&environment](const std::string& name) -> std::optional<std::string> {
    const auto found = environment.find(name);
    if (found == environment.end()) return std::nullopt;
    return found->second;
  };
}

// A person's own format would be read wrongly.
SlurmRequeue::Environment WithStandardTimes(SlurmRequeue::Environment environment) {
  environment["SLURM_TIME_FORMAT"] = "standard";
  return environment;
}

bool IsGood(const BoundedCommand::Outcome& outcome) {
  return !outcome.timed_out && outcome.status.signal == 0 && outcome.status.exit_code == 0;
}

std::string FaultOf(const BoundedCommand::Outcome& outcome) {
  if (outcome.timed_out) return "it did not answer in time";
  const std::string said(absl::StripAsciiWhitespace(outcome.output));
  if (!said.empty()) return Utf8(said, kErrorBytesTold);
  return outcome.status.signal != 0 ? absl::StrCat("killed by signal ", outcome.status.signal)
                                    : absl::StrCat("exit code ", outcome.status.exit_code);
}

}  // namespace

SlurmRequeue::SlurmRequeue(EventLoop& loop, const Environment& environment, OnLog on_log)
    : loop_(loop),
      environment_(WithStandardTimes(environment)),
      lookup_(LookupIn(environment_)),
      on_log_(std::move(on_log)),
      job_(SlurmJobToAskFor(lookup_)) {}

bool SlurmRequeue::Run(const std::vector<std::string>& arguments, OnAnswer on_answer) {
  const auto program = FindProgram("scontrol", lookup_("PATH").value_or(""));
  if (!program.ok()) {
    on_log_(absl::StrCat("Slurm's scontrol is not to be found here (a container?): ", kWithoutUs));
    return false;
  }
  BoundedCommand::Request request;
  request.spawn.program = *program;
  request.spawn.arguments = {"scontrol"};
  for (const std::string& argument : arguments) request.spawn.arguments.push_back(argument);
  request.spawn.environment = EnvironmentStrings(environment_);
  // Where ProctrackType is proctrack/linuxproc, Slurm's signals reach it as well; its deadline
  // kills.
  request.spawn.ignores_term = true;
  request.timeout = kPatience;
  request.first_bytes = kBytesKept;
  auto command = BoundedCommand::Start(
      loop_, request,
      [this, on_answer = std::move(on_answer)](const BoundedCommand::Outcome& outcome) {
        const std::unique_ptr<BoundedCommand> ended = std::move(command_);
        on_answer(outcome);
      });
  if (!command.ok()) {
    on_log_(absl::StrCat("`scontrol ", absl::StrJoin(arguments, " "),
                         "` does not start: ", command.status().message()));
    return false;
  }
  command_ = *std::move(command);
  return true;
}

void SlurmRequeue::Ask(const std::vector<std::string>& arguments,
                       const std::function<void(const std::string& printed)>& on_printed) {
  const bool is_asked = Run(arguments, [on_printed](const BoundedCommand::Outcome& outcome) {
    on_printed(IsGood(outcome) ? outcome.output : "");
  });
  if (!is_asked) on_printed("");
}

void SlurmRequeue::OnStop(absl::Duration grace) {
  if (job_.empty() || std::exchange(has_asked_, true)) return;
  const bool is_asked =
      Run({"-o", "show", "job", job_},
          [this, grace](const BoundedCommand::Outcome& outcome) { OnShown(outcome, grace); });
  if (!is_asked) TellOfTheEnd("", "", grace);
}

void SlurmRequeue::OnShown(const BoundedCommand::Outcome& outcome, absl::Duration grace) {
  if (!IsGood(outcome)) {
    TellOfTheEnd("", "", grace);
    return on_log_(absl::StrCat("scontrol does not tell whether Slurm preempts job ", job_, " (",
                                FaultOf(outcome), "): ", kWithoutUs));
  }
  verdict_ = DecideRequeue(job_, outcome.output);
  Ask({"show", "config"}, [this, grace, shown = outcome.output](const std::string& config) {
    TellOfTheEnd(shown, config, grace);
    if (!verdict_.requeue) return TellVerdict();
    Ask(SlurmModeQuestion(shown, config), [this, config](const std::string& record) {
      verdict_ = HeedPreemptMode(std::move(verdict_), config, record);
      TellVerdict();
    });
  });
}

void SlurmRequeue::TellVerdict() {
  on_log_(absl::StrCat(verdict_.why, verdict_.requeue
                                         ? ": it is requeued when its workers have saved"
                                         : ": nothing is requeued from here"));
}

void SlurmRequeue::TellOfTheEnd(const std::string& shown, const std::string& config,
                                absl::Duration grace) {
  const auto end = SlurmEnd(shown, lookup_, absl::LocalTimeZone());
  const std::string line =
      end.has_value() ? TellSlurmEnd(*end - WallNow(), grace, config) : std::string();
  if (!line.empty()) on_log_(line);
}

// A command has a deadline of its own, so this ends.
void SlurmRequeue::Await() {
  while (command_ != nullptr) loop_.RunOnce(MonotonicTime::InfiniteFuture());
}

void SlurmRequeue::BeforeLeaving() {
  Await();
  if (!verdict_.requeue) return;
  // Asked anew: while the workers saved, a person may have cancelled the job, or Slurm requeued it.
  Run({"-o", "show", "job", job_}, [this](const BoundedCommand::Outcome& outcome) {
    if (IsGood(outcome)) verdict_ = DecideRequeue(job_, outcome.output);
  });
  Await();
  if (!std::exchange(verdict_.requeue, false)) {
    return on_log_(absl::StrCat("nothing is requeued from here after all: ", verdict_.why));
  }
  Run({"requeue", job_}, [this](const BoundedCommand::Outcome& outcome) {
    on_log_(IsGood(outcome)
                ? absl::StrCat("job ", job_, " is back in Slurm's queue (scontrol requeue ", job_,
                               "): it goes on from its checkpoint when it gets nodes again")
                : absl::StrCat("`scontrol requeue ", job_, "` failed (", FaultOf(outcome),
                               "): the job may end without going back to the queue; requeue it, or "
                               "submit it again with the same checkpoint folder"));
  });
  Await();
}

}  // namespace convene::agent
