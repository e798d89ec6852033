// Node's functions for the time after its result is known.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "agent/core/explain.h"
#include "agent/node.h"
#include "rendezvous/quorum/job_view.h"
#include "spdlog/spdlog.h"
#include "tools/base/clock.h"
#include "tools/base/text.h"

namespace convene::agent {
namespace {

// When the reader of our output takes nothing for so long at the end, the rest is given up.
constexpr absl::Duration kDrainPatience = absl::Seconds(5);
// A reader that takes little at a time gets no more than this.
constexpr absl::Duration kDrainLimit = absl::Seconds(30);
// The limit of all work after that. It needs a few milliseconds, but gRPC on a node
// without memory or threads never comes back.
constexpr absl::Duration kWindUpPatience = absl::Seconds(15);
// The time that viewers of the logs get for the last lines.
constexpr absl::Duration kPublishPatience = absl::Seconds(1);
// A process that only hosts the rendezvous looks so often whether a job still needs it.
constexpr absl::Duration kServedInterval = absl::Milliseconds(500);
// After a signal it looks often, since a stop of all nodes should take no longer than the slowest
// node's, and says nothing of a wait that is short.
constexpr absl::Duration kServedIntervalAtEnd = absl::Milliseconds(20);
constexpr absl::Duration kQuietStay = absl::Seconds(1);
// After a signal, the time beyond the workers' grace for their end to reach this process.
constexpr absl::Duration kServedLonger = absl::Seconds(2);
constexpr size_t kMostJobsNamed = 4;

}  // namespace

void Node::BeginWindUp() {
  wind_up_.emplace(
      kWindUpPatience, result_->exit_code,
      absl::StrCat("convene: ", result_->explanation,
                   "\nconvene: the connection to the rendezvous did not close within ",
                   absl::FormatDuration(kWindUpPatience), "; ended without waiting for it"));
}

void Node::WindUp() {
  input_.Restore();  // Here too: not every end waits until the workers are gone.
  if (!console_.Drain(kDrainPatience, kDrainLimit)) {
    spdlog::warn(
        "the reader of this command's output takes nothing more, or too little: the last lines are "
        "lost");
  }
  BeginWindUp();
  group_.reset();
  warm_pool_.reset();
  HandOnError();
  // The last words name the file.
  const bool keeps_errors =
      result_->exit_code != 0 && state_.failure.has_value() && !state_.failure->error_file.empty();
  if (!logs_->Finish(kDrainPatience, keeps_errors)) {
    spdlog::warn("the log disk is too slow, or hangs: the last lines are not in the log files");
  }
  std::vector<std::string> losses = {console_.Loss(), logs_->Loss()};
  losses.erase(std::remove(losses.begin(), losses.end(), ""), losses.end());
  result_->lost_output = absl::StrJoin(losses, " and ");
  if (logs_->has_folders()) result_ = WithLogs(*std::move(result_), logs_->directory());
  custody_.Close();
  log_publisher_->Finish(kPublishPatience);
  log_publisher_.reset();
  link_->Close();
  ServeOtherJobs();
  if (IsToldToEnd() && result_->exit_code != 0) {
    wind_up_.reset();  // Slurm's answers have deadlines of their own.
    slurm_requeue_.BeforeLeaving();
    BeginWindUp();
  }
  link_->StopHosting();
}

// Once this process is told to end, other runs lose their rendezvous. Nodes of its own epoch were
// told to end with it, or lost their epoch with its workers, and may be saving: without an answer
// to their heartbeats their workers would be killed when the lease ends. (A node that saves after a
// signal tells the daemon nothing before its first worker has ended.)
std::vector<std::string> Node::ServedRuns() {
  std::vector<std::string> runs;
  for (const rendezvous::ServedJob& job : link_->ServedJobs()) {
    // A run that waits for its first epoch may wait for this machine's next command.
    if (job.epoch == Epoch()) continue;
    const bool is_own_epoch =
        job.id == options_.hello.job_id && job.epoch == state_.highest_epoch && job.has_workers;
    if (!IsToldToEnd() || is_own_epoch) runs.push_back(absl::StrCat("run \"", job.id, "\""));
  }
  return runs;
}

void Node::TellWhyItStays(const std::vector<std::string>& served) {
  if (IsToldToEnd()) {
    Log(absl::StrCat("this process hosts the rendezvous, and other nodes of ", served.front(),
                     " still stop their workers: it stays until they have, at most ",
                     absl::FormatDuration(options_.stop_graces.signal + kServedLonger),
                     " from the signal on. A second Ctrl-C ends it at once"));
  } else {
    Log(absl::StrCat("this node's part is over, but this process hosts the rendezvous, and ",
                     JoinCapped(served, kMostJobsNamed),
                     " still needs it: it stays until that is over. A signal (Ctrl-C, SIGTERM) "
                     "ends it before that"));
  }
}

// The other nodes' agents know no other rendezvous: without this one their workers would be
// stopped.
void Node::ServeOtherJobs() {
  std::vector<std::string> served = ServedRuns();
  if (served.empty() || state_.stop_request.at_once()) {
    TellServedRuns();
    return;
  }
  wind_up_.reset();
  const MonotonicTime began = Clock::Real().Now();
  bool has_told = !IsToldToEnd();
  if (has_told) {
    if (link_->is_hosting()) link_->ServeStore(std::nullopt);  // Not from the store that goes now.
    store_.reset();  // The next run on this machine may want its port.
    worker_store_port_.Reset();
    if (!result_->explanation.empty()) Log(result_->explanation);
    TellWhyItStays(served);
  }
  bool has_told_of_end = false;
  for (; !served.empty() && !state_.stop_request.at_once(); served = ServedRuns()) {
    const MonotonicTime now = Clock::Real().Now();
    if (now >= told_to_end_at_ + options_.stop_graces.signal + kServedLonger) break;
    if (IsToldToEnd() && now - began >= kQuietStay && !std::exchange(has_told_of_end, true)) {
      TellWhyItStays(served);
      has_told = true;
    }
    loop_.RunOnce(now + (IsToldToEnd() ? kServedIntervalAtEnd : kServedInterval));
  }
  BeginWindUp();
  if (!TellServedRuns() && has_told) {
    Log("no job needs the rendezvous of this process any more: it ends");
  }
}

bool Node::TellServedRuns() {
  std::vector<std::string> runs;
  std::vector<std::string> handed_over;
  for (const rendezvous::ServedJob& job : link_->ServedJobs()) {
    (job.has_successor ? handed_over : runs)
        .push_back(absl::StrCat("run \"", job.id, "\"",
                                job.epoch == Epoch() ? ", which waits for its first epoch," : ""));
  }
  if (!handed_over.empty()) {
    Log(absl::StrCat(
        "this process hands the rendezvous over: ", JoinCapped(handed_over, kMostJobsNamed),
        " goes on at another agent on this machine"));
  }
  if (runs.empty()) return !handed_over.empty();
  Log(absl::StrCat(
      IsToldToEnd() ? "told to end: " : "this process ends, and the rendezvous with it: ",
      JoinCapped(runs, kMostJobsNamed), " loses its rendezvous"));
  return true;
}

}  // namespace convene::agent
