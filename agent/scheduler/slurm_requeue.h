// Asks Slurm what a request to stop means, and asks for the requeue where that saves the job
// (slurm_stop.h decides). Both by `scontrol`; the question is asked beside the workers' checkpoint,
// and nothing waits for it before the workers are gone.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "agent/custody/bounded_command.h"
#include "agent/scheduler/slurm_stop.h"
#include "tools/base/event_loop.h"

namespace convene::agent {

// Lives on the thread of its loop, which is the main one.
class SlurmRequeue {
 public:
  using Environment = std::map<std::string, std::string>;
  using OnLog = std::function<void(const std::string& line)>;

  // `environment`: this process's. `loop` outlives it.
  SlurmRequeue(EventLoop& loop, const Environment& environment, OnLog on_log);

  // A request to stop came; its workers have `grace`. Does something once, and only for the first
  // agent of a step of Slurm.
  void OnStop(absl::Duration grace);

  // The workers are gone, and this process is about to leave a job that is not done: requeues the
  // job where that was decided. Waits for the answers with the loop: five calls at most, each of
  // kPatience and a second.
  void BeforeLeaving();

  // Of the scontrol that runs; 0: none.
  pid_t pid() const { return command_ == nullptr ? 0 : command_->pid(); }

 private:
  // The limit of one call of scontrol: a controller that is busy takes a second.
  static constexpr absl::Duration kPatience = absl::Seconds(3);
  using OnAnswer = std::function<void(const BoundedCommand::Outcome&)>;

  // Returns false when it could not be started, and logs that.
  bool Run(const std::vector<std::string>& arguments, OnAnswer on_answer);
  // The answer is what it printed, "" where it failed.
  void Ask(const std::vector<std::string>& arguments,
           const std::function<void(const std::string& printed)>& on_printed);
  void Await();
  void OnShown(const BoundedCommand::Outcome& outcome, absl::Duration grace);
  void TellVerdict();
  void TellOfTheEnd(const std::string& shown, const std::string& config, absl::Duration grace);

  EventLoop& loop_;
  const Environment environment_;
  const EnvironmentLookup lookup_;
  const OnLog on_log_;
  const std::string job_;  // "" = nothing is asked here
  bool has_asked_ = false;
  SlurmVerdict verdict_;
  std::unique_ptr<BoundedCommand> command_;  // while it runs
};

}  // namespace convene::agent
