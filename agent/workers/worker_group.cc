#include "agent/workers/worker_group.h"

#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "agent/workers/memory_kills.h"
#include "tools/base/status_macros.h"
#include "tools/base/text.h"

namespace convene::agent {
namespace {

// How long the output of workers that have ended may be held open by a process that does not come
// from them.
constexpr absl::Duration kDrainTime = absl::Milliseconds(200);
// Named in one line of the log.
constexpr size_t kMostNamed = 5;

bool IsEmpty(pid_t group) { return kill(-group, 0) != 0 && errno == ESRCH; }

}  // namespace

WorkerGroup::WorkerGroup(EventLoop& loop, Console& console, Custody& custody,
                         const LeftoverOptions& leftovers, Listener listener)
    : loop_(loop),
      console_(console),
      custody_(custody),
      leftovers_(leftovers),
      listener_(std::move(listener)),
      plan_(leftovers) {}

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

absl::Status WorkerGroup::Start(const std::vector<Worker>& workers) {
  custody_.BeginEpoch();
  memory_kills_before_ = MemoryKills();
  absl::Status status;
  for (size_t i = 0; i < workers.size() && status.ok(); ++i) {
    status = StartOne(workers[i], static_cast<int>(i));
  }
  if (members_.empty()) EndEpoch();
  return status;
}

absl::Status WorkerGroup::StartOne(const Worker& worker, int local_rank) {
  auto member = std::make_unique<Member>();
  member->local_rank = local_rank;
  const auto make_pump = [&](OutputStream stream, const StreamOutput& output) {
    return OutputPump::Create(loop_, console_, {stream, output, [this] { CheckGone(); }});
  };
  auto& [out, err] = member->pumps;
  CONVENE_ASSIGN_OR_RETURN(out, make_pump(OutputStream::kStdout, worker.out));
  CONVENE_ASSIGN_OR_RETURN(err, make_pump(OutputStream::kStderr, worker.err));
  SpawnRequest request = worker.spawn;
  request.stdout_fd = out->write_end();
  request.stderr_fd = err->write_end();
  request.cgroup_fd = custody_.cgroup_fd();
  request.pid_slot = custody_.SessionSlot(local_rank);
  CONVENE_ASSIGN_OR_RETURN(Child child, listener_.spawn(request, local_rank));
  for (const auto& pump : member->pumps) pump->CloseWriteEnd();
  custody_.AddWorker(child.pid);
  member->pid = child.pid;
  member->pidfd = std::move(child.pidfd);
  member->running = true;
  Member& started = *member;
  loop_.Watch(started.pidfd.get(), [this, &started] { OnEnded(started); });
  members_.push_back(std::move(member));
  return absl::OkStatus();
}

void WorkerGroup::OnEnded(Member& member) {
  const ExitStatus peeked = Peek(member.pid);
  const bool is_well = !stopping_ && peeked.signal == 0 && peeked.exit_code == 0;
  // This comes before the leader is reaped: until then no other group can have its number.
  if (!stopping_ && !is_well) TellGroup(member, SIGTERM);
  member.ended_in_stop = stopping_;
  all_well_ = all_well_ && is_well;
  loop_.Forget(member.pidfd.get());
  member.pidfd.Reset();
  if (auto* const slot = custody_.SessionSlot(member.local_rank)) slot->store(0);
  ExitStatus status = Reap(member.pid);
  // A worker that ends by itself may do so because a process of its was killed.
  const bool may_lack_memory = status.signal == SIGKILL || (!stopping_ && !is_well);
  if (may_lack_memory && memory_kills_before_.has_value()) {
    const std::optional<int64_t> now = MemoryKills();
    if (now.has_value()) status.memory_kills = *now - *memory_kills_before_;
  }
  custody_.ReapOrphans();
  NoteEmptyGroups();
  for (const auto& pump : member.pumps) {
    pump->ReadAvailable();
    pump->SetConsoleSlow(false);
  }
  // A worker writes on stderr why it dies: these lines belong to its end.
  listener_.on_exit(
      {member.local_rank, member.pid, status, last_log_lines(member.local_rank), {}, {}});
  member.running = false;
  CheckGone();
}

void WorkerGroup::KillGroup(Member& member) {
  kill(-member.pid, SIGKILL);
  member.group_killed = true;
}

void WorkerGroup::TellGroup(Member& member, int signal) {
  if (member.group_killed || std::exchange(member.told, signal) == signal) return;
  kill(-member.pid, signal);
  if (!resting_) kill(-member.pid, SIGCONT);  // A stopped process would not see the signal.
}

void WorkerGroup::CheckGone() {
  if (gone_) return;
  LeftoverFacts facts;
  for (const auto& member : members_) {
    if (member->running) return;
    const bool is_open = !absl::c_all_of(member->pumps, [](auto& pump) { return pump->at_end(); });
    if (is_open && member->ended_in_stop && !member->group_killed) return;  // Until Kill.
    facts.output_open = facts.output_open || is_open;
  }
  facts.any_left = custody_.AnyLeft();
  facts.all_well = all_well_ && !stopping_;
  NoteEmptyGroups();
  const MonotonicTime now = Clock::Real().Now();
  switch (plan_.Next(facts, now)) {
    case LeftoverDeed::kWait:
      return;
    case LeftoverDeed::kAnnounce:
      return SayLeft(
          absl::StrCat("the workers have ended; their background processes may go on for up to ",
                       absl::FormatDuration(leftovers_.grace), " (--leftover-grace)"));
    case LeftoverDeed::kAsk:
      return Ask();
    case LeftoverDeed::kKill:
      SayLeft(absl::StrCat(
          "killing processes that the workers left behind, because they are still there ",
          absl::FormatDuration(LeftoverPlan::kAskedTime), " after SIGTERM"));
      custody_.KillAll();
      return;
    case LeftoverDeed::kKillMore:
      custody_.KillAll();
      return;
    case LeftoverDeed::kGiveUp:
      SayLeft(absl::StrCat("processes that the workers left behind are still there ",
                           absl::FormatDuration(LeftoverPlan::kKillTime),
                           " after SIGKILL: they hang in the kernel (state D in `ps`), or "
                           "are another user's"));
      return EndEpoch();
    case LeftoverDeed::kRelease:
      SayLeft(
          "the workers have ended; their background processes are left alone, as under torchrun");
      custody_.Release();
      return EndEpoch();
    case LeftoverDeed::kDone:
      // A cgroup may know of more processes, and new ones may have started meanwhile.
      if (custody_.KillAll() > 0) return;
      if (!facts.output_open) return EndEpoch();
      // The output is held by a process that does not come from the workers.
      for (const auto& member : members_) {
        member->drain_deadline = std::min(member->drain_deadline, now + kDrainTime);
      }
      return;
  }
}

void WorkerGroup::Ask() {
  if (all_well_ && !stopping_)
    SayLeft("--leftover-grace is over: ending processes that the workers left behind");
  for (const auto& member : members_) {
    for (const auto& pump : member->pumps) pump->SetConsoleSlow(false);
  }
  custody_.SignalLeft(SIGTERM, [this](pid_t group) {
    return std::any_of(members_.begin(), members_.end(), [&](const auto& member) {
      return member->pid == group && member->told == SIGTERM;
    });
  });
}

void WorkerGroup::SayLeft(const std::string& what) {
  const std::vector<std::string> names = custody_.NamesOfLeft();
  if (!names.empty()) listener_.on_say(absl::StrCat(what, ": ", JoinCapped(names, kMostNamed)));
}

void WorkerGroup::EndEpoch() {
  gone_ = true;
  for (const auto& member : members_) {
    member->group_killed = true;  // From now on its number may become a stranger's.
    for (const auto& pump : member->pumps) pump->Close();
  }
  custody_.EndEpoch();
  listener_.on_gone();
}

void WorkerGroup::Stop(int signal, const std::function<bool(int)>& chosen) {
  stopping_ = true;
  for (const auto& member : members_) {
    if (chosen(member->local_rank)) TellGroup(*member, signal);
  }
  CheckGone();  // Processes that were left to finish their work are now to end.
}

void WorkerGroup::Rest() {
  resting_ = true;
  PassOn(SIGSTOP);
  custody_.PassOn(SIGSTOP);  // Also what has left the workers' groups.
}

void WorkerGroup::Wake() {
  resting_ = false;
  custody_.PassOn(SIGCONT);
  PassOn(SIGCONT);
}

void WorkerGroup::PassOn(int signal) {
  if (resting_ && signal == SIGCONT) return;
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
  SayLeft("killing");
  for (const auto& member : members_) {
    if (!member->group_killed) KillGroup(*member);
  }
  custody_.KillAll();
}

void WorkerGroup::SetPaused(bool paused) {
  for (const auto& member : members_) {
    if (!member->running && !plan_.is_finishing()) continue;
    for (const auto& pump : member->pumps) pump->SetConsoleSlow(paused);
  }
}

void WorkerGroup::OnDiskRelief() {
  for (const auto& member : members_) {
    for (const auto& pump : member->pumps) pump->Reconsider();
  }
}

MonotonicTime WorkerGroup::next_deadline() const {
  MonotonicTime next = MonotonicTime::InfiniteFuture();
  if (gone_) return next;
  next = plan_.deadline();
  for (const auto& member : members_) {
    next = std::min(next, member->drain_deadline);
    for (const auto& pump : member->pumps) next = std::min(next, pump->next_deadline());
  }
  return next;
}

void WorkerGroup::OnTime(MonotonicTime now) {
  for (const auto& member : members_) {
    for (const auto& pump : member->pumps) pump->OnTime(now);
    if (now < member->drain_deadline) continue;
    member->drain_deadline = MonotonicTime::InfiniteFuture();
    for (const auto& pump : member->pumps) pump->Close();
  }
  if (now >= plan_.deadline()) CheckGone();
}

std::vector<pid_t> WorkerGroup::pids() const {
  std::vector<pid_t> pids;
  for (const auto& member : members_) pids.push_back(member->pid);
  return pids;
}

std::vector<std::string> WorkerGroup::last_log_lines(int local_rank) const {
  const auto& [out, err] = members_.at(local_rank)->pumps;
  std::vector<std::string> lines = err->last_lines().Get();
  return lines.empty() ? out->last_lines().Get() : lines;
}

}  // namespace convene::agent
