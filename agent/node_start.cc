// Node's functions for the start of workers, and for what comes before it.
#include <unistd.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "agent/node.h"
#include "agent/output/line_prefix.h"
#include "agent/warm/warm_plan.h"
#include "agent/workers/environment.h"
#include "agent/workers/numa.h"
#include "tools/base/cpu_count.h"
#include "tools/base/logging.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/contract/names.h"

namespace convene::agent {
namespace {

// The most that a first start waits for its spares. The other nodes give up after join_timeout, so
// a part of that at most.
constexpr absl::Duration kStartLimit = absl::Minutes(2);
constexpr int kPartOfJoin = 2;

// Of Convene; "": no variable tells.
std::string CacheFolder(const std::map<std::string, std::string>& environment) {
  const auto cache = environment.find("XDG_CACHE_HOME");
  // The XDG specification ignores a relative path.
  if (cache != environment.end() && cache->second.substr(0, 1) == "/") {
    return absl::StrCat(cache->second, "/convene");
  }
  const auto home = environment.find("HOME");
  if (home == environment.end() || home->second.empty()) return "";
  return absl::StrCat(home->second, "/.cache/convene");
}

}  // namespace

std::vector<std::string> Node::ArgumentsOf(int local_rank) const {
  std::vector<std::string> arguments = options_.command;
  for (size_t i = 1; options_.local_rank_in_arguments && i < arguments.size(); ++i) {
    arguments[i] = WithLocalRank(arguments[i], local_rank);
  }
  return arguments;
}

void Node::StartWarmPool() {
  std::string why = WarmRefusal(options_.command);
  if (why.empty() && options_.numa_binding != NumaBinding::kNone) {
    why = BindingRefusal(environment_);
  }
  if (ArgumentsOf(0) != ArgumentsOf(1)) why = "their arguments have ${local_rank} in them";
  int count = options_.warm_workers;
  const int workers = options_.hello.local_world_size;
  if (why.empty() && sessions_ == nullptr) why = "the agent has no folder for its socket";
  if (why.empty() && terminal_worker_.has_value()) {
    count = std::min(count, workers - 1);
    const std::string cold = absl::StrCat("the worker of local rank ", *terminal_worker_,
                                          " has this command's terminal");
    if (count == 0) {
      why = cold;
    } else {
      Log(absl::StrCat("--warm-workers: ", cold, ", so it starts cold"));
    }
  }
  if (why.empty()) {
    WarmPool::Options options;
    options.slots = SpareSlots(count, workers, terminal_worker_);
    options.own_device = options_.virtual_local_rank;
    options.directory = sessions_->warm_path();
    options.on_start = [this] {
      std::optional<RunHealthCheck> check = std::exchange(held_check_, std::nullopt);
      if (check.has_value()) Do(*check);
    };
    auto pool =
        WarmPool::Start(loop_, std::move(options), [this](const std::string& line) { Log(line); });
    if (pool.ok()) {
      warm_pool_ = *std::move(pool);
      return BeginFromRecord();
    }
    why = std::string(pool.status().message());
  }
  Log(absl::StrCat("--warm-workers ", options_.warm_workers, ": all workers start cold: ", why));
}

void Node::BeginFromRecord() {
  // Of no epoch: the parent of spares has no variable of a rank.
  const absl::StatusOr<WorkerGroup::Worker> worker = MakeWorker({}, 0, "");
  const std::string cache = CacheFolder(environment_);
  if (cache.empty() || !worker.ok()) return;  // The launch tells the error.
  warm_pool_->BeginFromRecord(worker->spawn, cache,
                              std::min(kStartLimit, options_.hello.join_timeout / kPartOfJoin));
}

absl::StatusOr<WorkerGroup::Worker> Node::MakeWorker(const StartWorkers& action, int local_rank,
                                                     const std::string& progress_path) {
  WorkerPlace place = {.assignment = action.assignment,
                       .epoch = action.epoch,
                       .local_rank = local_rank,
                       .local_world_size = options_.hello.local_world_size,
                       .run_id = options_.hello.job_id,
                       .role = options_.hello.role,
                       .progress_path = progress_path,
                       .memory_path = memory_.path(),
                       .topology = options_.hello.topology,
                       .max_nodes = options_.hello.nodes_max,
                       .shares_agent_store = shares_store_,
                       .agent_token = custody_.token(),
                       .virtual_local_rank = options_.virtual_local_rank,
                       .usable_cpus = CountUsableCpus(),
                       .terminal = console_.IsTerminal(OutputStream::kStdout)};
  if (sessions_ != nullptr) place.session_path = sessions_->path();
  if (timer_file_ != nullptr) place.timer_file = timer_file_->path();
  std::map<std::string, std::string> environment = environment_;
  if (options_.virtual_local_rank) {
    CONVENE_RETURN_IF_ERROR(LeaveOneDevice(environment, local_rank));
  }
  place.error_file = logs_->ErrorFile(local_rank);
  const LineSource source = {options_.hello.role, local_rank,
                             action.assignment.first_global_rank + local_rank, HostName()};
  WorkerGroup::Worker worker;
  worker.spawn.program = program_;
  worker.spawn.arguments = ArgumentsOf(local_rank);
  worker.out = logs_->OutputOf(OutputStream::kStdout, source);
  worker.err = logs_->OutputOf(OutputStream::kStderr, source);
  worker.out.recent = worker.err.recent = &recent_lines_;
  const bool has_terminal = local_rank == terminal_worker_;
  if (has_terminal || input_.facts().is_shared()) worker.spawn.stdin_fd = input_.fd();
  if (has_terminal) {
    worker.out.as_terminal = worker.out.on_console && console_.IsTerminal(OutputStream::kStdout);
    worker.err.as_terminal = worker.err.on_console && console_.IsTerminal(OutputStream::kStderr);
  }
  worker.spawn.environment = WorkerEnvironment(std::move(environment), place);
  if (options_.numa_binding != NumaBinding::kNone) {
    if (cpus_.empty()) {
      CONVENE_ASSIGN_OR_RETURN(
          cpus_, BindWorkers(options_.numa_binding, environment_, options_.hello.local_world_size));
    }
    worker.spawn.cpus = cpus_[local_rank];
  }
  return worker;
}

void Node::Do(StartWorkers& action) {
  const int count = options_.hello.local_world_size;
  const rendezvous::Assignment& assignment = action.assignment;
  Log(absl::StrCat("epoch ", action.epoch.value(), ": node ", assignment.group_rank, " of ",
                   assignment.group_world_size, ", ranks ", assignment.first_global_rank, " to ",
                   assignment.first_global_rank + count - 1, " of ", assignment.world_size,
                   " start here (", action.why, ")"));
  if (store_ != nullptr && assignment.group_rank == 0) {
    if (assignment.store_clients.empty() && !options_.open_store) {
      Log("the store takes clients from every address: a node of this epoch has --open-store, or "
          "does not know by which address others see it");
    }
    store_->Admit(assignment.store_clients);
  } else if (store_ != nullptr) {
    // Nobody of this epoch asks it, and the next one has a fresh one.
    if (options_.store_at_rendezvous && link_->is_hosting()) link_->ServeStore(nullptr);
    store_.reset();
  }
  if (!BeginSessions(action.epoch)) return;
  WorkerGroup::Listener listener;
  listener.on_exit = [this](WorkerExited exited) {
    if (sessions_ != nullptr) sessions_->HearAll();
    hang_watch_.WorkerEnded(exited.local_rank,
                            exited.status.signal == 0 && exited.status.exit_code == 0);
    ended_.push_back(std::move(exited));
  };
  listener.on_gone = [this] {
    ReportEnds();
    input_.Restore();
    TakeEnd(WorkersGone{}, false);
  };
  listener.on_say = [this](const std::string& line) { Log(line); };
  if (warm_pool_ != nullptr) {
    listener.spawn = [this](const SpawnRequest& request, int local_rank) {
      return warm_pool_->SpawnWorker(request, local_rank);
    };
  }
  group_ = std::make_unique<WorkerGroup>(loop_, console_, custody_, options_.leftovers,
                                         std::move(listener));
  const absl::Status status = Launch(action);
  // It goes before WorkersGone, which may be waiting already.
  if (!status.ok()) events_.push_front(SpawnFailed{status});
}

absl::Status Node::Launch(const StartWorkers& action) {
  const int count = options_.hello.local_world_size;
  const std::vector<std::string> pages = hang_watch_.BeginEpoch(
      action.epoch, action.assignment.first_global_rank, action.assignment.world_size, count);
  std::vector<WorkerGroup::Worker> workers;
  absl::Status status = logs_->BeginEpoch(action.assignment.attempt);
  for (int i = 0; status.ok() && i < count; ++i) {
    absl::StatusOr<WorkerGroup::Worker> worker = MakeWorker(action, i, pages[i]);
    status = worker.status();
    if (status.ok()) workers.push_back(*std::move(worker));
  }
  if (!status.ok()) workers.clear();  // Without workers the group is gone at once.
  status.Update(group_->Start(workers));
  hang_watch_.Watch(group_->pids());
  const int warm = warm_pool_ == nullptr ? 0 : warm_pool_->TakeUsed();
  if (warm > 0) Log(absl::StrCat(warm, " of ", count, " workers start from spares"));
  return status;
}

void Node::Do(RunHealthCheck& action) {
  if (warm_pool_ != nullptr && warm_pool_->HoldsStart()) {
    held_check_ = action;
    return;
  }
  if (options_.health_check.command.empty()) return Take(HealthChecked{absl::OkStatus()});
  std::map<std::string, std::string> table = environment_;
  LeaveNoRank(table);  // A look at the node is no rank, of whichever job.
  table[contract::kEpoch] = absl::StrCat(action.last_epoch.value());
  table[contract::kRunId] = options_.hello.job_id;
  table[contract::kAgentToken] = custody_.token();
  table[contract::kLocalWorldSize] = absl::StrCat(options_.hello.local_world_size);
  auto check = StartHealthCheck(loop_, options_.health_check, EnvironmentStrings(table),
                                [this](const absl::Status& status) {
                                  health_check_.reset();
                                  custody_.NoteHealthCheck();
                                  TakeEnd(HealthChecked{status}, !status.ok());
                                });
  if (!check.ok()) return Take(HealthChecked{check.status()});
  health_check_ = *std::move(check);
}

void Node::Do(CancelHealthCheck&) {
  held_check_.reset();
  health_check_.reset();
}

}  // namespace convene::agent
