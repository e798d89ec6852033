#include "agent/process/worker_group.h"

#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"

namespace convene::agent {
namespace {

// How long the output of an ended worker may be held open by processes that are no longer in its
// group.
constexpr absl::Duration kDrainTime = absl::Milliseconds(200);

}  // namespace

WorkerGroup::WorkerGroup(EventLoop& loop, Console& console, Listener listener)
    : loop_(loop), console_(console), listener_(std::move(listener)) {}

WorkerGroup::~WorkerGroup() {
  for (const auto& member : members_) {
    if (!member->group_killed) KillGroup(*member);
    if (!member->running) continue;
    loop_.Forget(member->pidfd.get());
    // Not waited for: a process that hangs in the kernel would hang us. It dies with the agent at
    // the latest.
    waitpid(member->pid, nullptr, WNOHANG);
  }
}

absl::Status WorkerGroup::Start(const std::string& program,
                                const std::vector<std::string>& arguments,
                                const std::vector<Worker>& workers) {
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
  const auto make_pump = [&](OutputStream stream, const std::string& log_file) {
    OutputPump::Options options;
    options.stream = stream;
    options.prefix = worker.prefix;
    options.log_file = log_file;
    options.in_place = worker.in_place;
    options.on_end = [this] { CheckGone(); };
    return OutputPump::Create(loop_, console_, member->last_lines, std::move(options));
  };
  CONVENE_ASSIGN_OR_RETURN(member->out, make_pump(OutputStream::kStdout, worker.stdout_log_file));
  CONVENE_ASSIGN_OR_RETURN(member->err, make_pump(OutputStream::kStderr, worker.stderr_log_file));
  SpawnRequest request;
  request.program = program;
  request.arguments = arguments;
  request.environment = worker.environment;
  request.stdout_fd = member->out->write_end();
  request.stderr_fd = member->err->write_end();
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
  const ExitStatus status = Reap(member.pid);
  if (kill(-member.pid, 0) != 0 && errno == ESRCH) member.group_killed = true;  // Nobody is left.
  if (member.group_killed) member.drain_deadline = Clock::Real().Now() + kDrainTime;
  member.out->ReadAvailable();
  member.err->ReadAvailable();
  member.out->SetPaused(false);
  member.err->SetPaused(false);
  listener_.on_exit(Exit{member.local_rank, member.pid, status, member.last_lines.Get()});
  member.running = false;
  CheckGone();
}

void WorkerGroup::KillGroup(Member& member) {
  kill(-member.pid, SIGKILL);
  member.group_killed = true;
}

void WorkerGroup::CheckGone() {
  if (gone_) return;
  for (const auto& member : members_) {
    if (member->running || !member->out->at_end() || !member->err->at_end()) return;
  }
  // Those that ended in order may have left some behind that wrote elsewhere.
  for (const auto& member : members_) {
    if (!member->group_killed) KillGroup(*member);
  }
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

void WorkerGroup::Kill() {
  const MonotonicTime now = Clock::Real().Now();
  for (const auto& member : members_) {
    if (!member->group_killed) KillGroup(*member);
    if (!member->running) member->drain_deadline = now + kDrainTime;
  }
}

void WorkerGroup::SetPaused(bool paused) {
  for (const auto& member : members_) {
    if (!member->running) continue;
    member->out->SetPaused(paused);
    member->err->SetPaused(paused);
  }
}

MonotonicTime WorkerGroup::next_deadline() const {
  MonotonicTime next = MonotonicTime::InfiniteFuture();
  if (gone_) return next;
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
}

std::vector<pid_t> WorkerGroup::pids() const {
  std::vector<pid_t> pids;
  for (const auto& member : members_) pids.push_back(member->pid);
  return pids;
}

}  // namespace convene::agent
