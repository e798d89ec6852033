#include "agent/process/worker_group.h"

#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "spdlog/spdlog.h"
#include "tools/base/status_macros.h"

namespace convene::agent {
namespace {

// How long the output of an ended worker may be held open by processes that are no longer in its
// group.
constexpr absl::Duration kDrainTime = absl::Milliseconds(200);
// How long what the workers left behind may take to die of SIGKILL: a process that held much memory
// gives it back for a while. What is not dead then hangs in the kernel, and nobody waits for it.
constexpr absl::Duration kSweepTime = absl::Seconds(2);

bool IsEmpty(pid_t group) { return kill(-group, 0) != 0 && errno == ESRCH; }

}  // namespace

WorkerGroup::WorkerGroup(EventLoop& loop, Console& console, Custody& custody, Listener listener)
    : loop_(loop), console_(console), custody_(custody), listener_(std::move(listener)) {}

WorkerGroup::~WorkerGroup() {
  if (gone_) return;
  for (const auto& member : members_) {
    if (!member->group_killed) KillGroup(*member);
    if (!member->running) continue;
    loop_.Forget(member->pidfd.get());
    // Not waited for: a process that hangs in the kernel would hang us. It dies with the agent at
    // the latest.
    Disown(member->pid);
  }
  custody_.KillAll();
  custody_.EndEpoch();
}

absl::Status WorkerGroup::Start(const std::string& program,
                                const std::vector<std::string>& arguments,
                                const std::vector<Worker>& workers) {
  custody_.BeginEpoch();
  absl::Status status;
  for (size_t i = 0; i < workers.size() && status.ok(); ++i) {
    status = StartOne(program, arguments, workers[i], static_cast<int>(i));
  }
  if (members_.empty()) CheckGone();
  return status;
}

absl::Status WorkerGroup::StartOne(const std::string& program,
                                   const std::vector<std::string>& arguments, const Worker& worker,
                                   int local_rank) {
  auto member = std::make_unique<Member>();
  member->local_rank = local_rank;
  const auto make_pump = [&](OutputStream stream, const StreamOutput& output) {
    return OutputPump::Create(loop_, console_, {stream, output, [this] { CheckGone(); }});
  };
  CONVENE_ASSIGN_OR_RETURN(member->out, make_pump(OutputStream::kStdout, worker.out));
  CONVENE_ASSIGN_OR_RETURN(member->err, make_pump(OutputStream::kStderr, worker.err));
  SpawnRequest request;
  request.program = program;
  request.arguments = arguments;
  request.environment = worker.environment;
  request.stdout_fd = member->out->write_end();
  request.stderr_fd = member->err->write_end();
  request.cpus = worker.cpus;
  request.cgroup_fd = custody_.cgroup_fd();
  request.pid_slot = custody_.SessionSlot(local_rank);
  CONVENE_ASSIGN_OR_RETURN(Child child, Spawn(request));
  member->out->CloseWriteEnd();
  member->err->CloseWriteEnd();
  member->pid = child.pid;
  member->pidfd = std::move(child.pidfd);
  member->running = true;
  Member& started = *member;
  loop_.Watch(started.pidfd.get(), [this, &started] { OnEnded(started); });
  members_.push_back(std::move(member));
  return absl::OkStatus();
}

void WorkerGroup::OnEnded(Member& member) {
  // Before the leader is reaped: until then nobody else can have its group's number.
  if (!stopping_) KillGroup(member);
  loop_.Forget(member.pidfd.get());
  member.pidfd.Reset();
  if (auto* const slot = custody_.SessionSlot(member.local_rank)) slot->store(0);
  const ExitStatus status = Reap(member.pid);
  custody_.ReapOrphans();
  NoteEmptyGroups();
  if (member.group_killed) member.drain_deadline = Clock::Real().Now() + kDrainTime;
  member.out->ReadAvailable();
  member.err->ReadAvailable();
  member.out->SetConsoleSlow(false);
  member.err->SetConsoleSlow(false);
  // What a worker dies of it says on stderr.
  listener_.on_exit(Exit{member.local_rank, member.pid, status, last_log_lines(member.local_rank)});
  member.running = false;
  CheckGone();
}

void WorkerGroup::KillGroup(Member& member) {
  kill(-member.pid, SIGKILL);
  member.group_killed = true;
}

void WorkerGroup::CheckGone() {
  if (gone_) return;
  bool output_open = false;
  bool group_left = false;
  for (const auto& member : members_) {
    if (member->running) return;
    if (!member->out->at_end() || !member->err->at_end()) output_open = true;
    if (!member->group_killed) group_left = true;
  }
  if (output_open) {
    // Only those that moved away can hold it now.
    if (!group_left) custody_.KillAll();
    return;
  }
  // Those that ended in order may have left some behind that wrote elsewhere.
  for (const auto& member : members_) {
    if (!member->group_killed) KillGroup(*member);
  }
  const int left = custody_.KillAll();
  if (left > 0) {
    const MonotonicTime now = Clock::Real().Now();
    sweep_deadline_ = std::min(sweep_deadline_, now + kSweepTime);
    if (now < sweep_deadline_) return;
    spdlog::warn(
        "{} processes that the workers left behind are still there {} after SIGKILL: they hang in "
        "the kernel (state D in `ps`), or are another user's",
        left, absl::FormatDuration(kSweepTime));
  }
  custody_.EndEpoch();
  gone_ = true;
  listener_.on_gone();
}

void WorkerGroup::Stop(int signal, const std::function<bool(int)>& chosen) {
  stopping_ = true;
  for (const auto& member : members_) {
    if (!chosen(member->local_rank) || member->group_killed) continue;
    kill(-member->pid, signal);
    kill(-member->pid, SIGCONT);  // One that is stopped would not see it.
  }
}

void WorkerGroup::PassOn(int signal) {
  for (const auto& member : members_) {
    if (!member->group_killed) kill(-member->pid, signal);
  }
}

void WorkerGroup::NoteEmptyGroups() {
  for (const auto& member : members_) {
    const bool is_reaped = !member->pidfd.valid();
    if (is_reaped && !member->group_killed) member->group_killed = IsEmpty(member->pid);
  }
}

void WorkerGroup::OnOrphanEnded() {
  NoteEmptyGroups();
  CheckGone();
}

void WorkerGroup::Kill() {
  const MonotonicTime now = Clock::Real().Now();
  for (const auto& member : members_) {
    if (!member->group_killed) KillGroup(*member);
    if (!member->running) member->drain_deadline = now + kDrainTime;
  }
  custody_.KillAll();
}

void WorkerGroup::SetPaused(bool paused) {
  for (const auto& member : members_) {
    if (!member->running) continue;
    member->out->SetConsoleSlow(paused);
    member->err->SetConsoleSlow(paused);
  }
}

void WorkerGroup::OnDiskRelief() {
  for (const auto& member : members_) {
    member->out->Reconsider();
    member->err->Reconsider();
  }
}

MonotonicTime WorkerGroup::next_deadline() const {
  MonotonicTime next = MonotonicTime::InfiniteFuture();
  if (gone_) return next;
  next = sweep_deadline_;
  for (const auto& member : members_) next = std::min(next, member->drain_deadline);
  return next;
}

void WorkerGroup::OnTime(MonotonicTime now) {
  for (const auto& member : members_) {
    if (now < member->drain_deadline) continue;
    member->drain_deadline = MonotonicTime::InfiniteFuture();
    member->out->Close();
    member->err->Close();
  }
  if (now >= sweep_deadline_) CheckGone();
}

std::vector<pid_t> WorkerGroup::pids() const {
  std::vector<pid_t> pids;
  for (const auto& member : members_) pids.push_back(member->pid);
  return pids;
}

std::vector<std::string> WorkerGroup::last_log_lines(int local_rank) const {
  const Member& member = *members_.at(local_rank);
  std::vector<std::string> lines = member.err->last_lines().Get();
  return lines.empty() ? member.out->last_lines().Get() : lines;
}

}  // namespace convene::agent
