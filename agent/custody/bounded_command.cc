#include "agent/custody/bounded_command.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"

namespace convene::agent {
namespace {

// The time after SIGKILL: a program that is not gone then hangs in the kernel.
constexpr absl::Duration kKillPatience = absl::Seconds(1);
// Read at the end at most: a pipe's content.
constexpr int kLastReads = 64;

}  // namespace

BoundedCommand::BoundedCommand(EventLoop& loop, const Request& request,
                               std::function<void(Outcome)> on_done)
    : loop_(loop),
      first_bytes_(request.first_bytes),
      last_bytes_(request.last_bytes),
      on_done_(std::move(on_done)),
      timer_(loop, [this] { OnTime(); }) {}

absl::StatusOr<std::unique_ptr<BoundedCommand>> BoundedCommand::Start(
    EventLoop& loop, const Request& request, std::function<void(Outcome)> on_done) {
  std::unique_ptr<BoundedCommand> command(new BoundedCommand(loop, request, std::move(on_done)));
  if (!command->timer_.valid()) return absl::ResourceExhaustedError("no descriptor for a timer");
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe2");
  command->output_.Reset(ends[0]);
  const UniqueFd write_end(ends[1]);
  fcntl(ends[0], F_SETFL, O_NONBLOCK);
  SpawnRequest spawn = request.spawn;
  spawn.stdout_fd = spawn.stderr_fd = write_end.get();
  CONVENE_ASSIGN_OR_RETURN(Child child, Spawn(spawn));
  command->pid_ = child.pid;
  command->pidfd_ = std::move(child.pidfd);
  BoundedCommand* const raw = command.get();
  loop.Watch(raw->output_.get(), [raw] { raw->ReadOnce(); });
  loop.Watch(raw->pidfd_.get(), [raw] { raw->OnEnded(); });
  raw->timer_.Set(request.timeout);
  return command;
}

BoundedCommand::~BoundedCommand() {
  StopReading();
  if (!pidfd_.valid()) return;
  loop_.Forget(pidfd_.get());
  kill(-pid_, SIGKILL);
  Disown(pid_);  // Not waited for: it may hang in the kernel.
}

void BoundedCommand::StopReading() {
  if (!output_.valid()) return;
  loop_.Forget(output_.get());
  output_.Reset();
}

bool BoundedCommand::ReadOnce() {
  if (!output_.valid()) return false;
  char buffer[4096];
  const ssize_t n = read(output_.get(), buffer, sizeof(buffer));
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (n <= 0) {
    StopReading();
    return false;
  }
  const size_t to_first = std::min(first_bytes_ - first_.size(), static_cast<size_t>(n));
  first_.append(buffer, to_first);
  last_.append(buffer + to_first, n - to_first);
  if (last_.size() > last_bytes_) {
    has_left_out_ = true;
    last_.erase(0, last_.size() - last_bytes_);
  }
  return true;
}

void BoundedCommand::OnEnded() {
  // The group is killed before the program is reaped: until then no other group can have its
  // number.
  kill(-pid_, SIGKILL);
  loop_.Forget(pidfd_.get());
  pidfd_.Reset();
  outcome_.status = Reap(pid_);
  for (int i = 0; i < kLastReads && ReadOnce(); ++i) {
  }
  Finish();
}

void BoundedCommand::OnTime() {
  if (outcome_.timed_out) return Finish();
  outcome_.timed_out = true;
  kill(-pid_, SIGKILL);
  timer_.Set(kKillPatience);
}

void BoundedCommand::Finish() {
  timer_.Cancel();
  StopReading();
  outcome_.output = absl::StrCat(first_, has_left_out_ ? "\n...\n" : "", last_);
  const auto on_done = std::move(on_done_);
  on_done_ = nullptr;
  if (on_done != nullptr) on_done(std::move(outcome_));
}

}  // namespace convene::agent
