#include "launcher/launch/host_link.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "agent/custody/spawn.h"
#include "agent/workers/environment.h"
#include "tools/base/clock.h"
#include "tools/base/exit_code.h"
#include "tools/base/status_macros.h"

namespace convene::launcher {
namespace {

struct Pipe {
  UniqueFd ours;    // does not block
  UniqueFd theirs;  // blocks, as programs expect
};

absl::StatusOr<Pipe> MakePipe(bool we_write) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe2");
  Pipe pipe{UniqueFd(ends[we_write ? 1 : 0]), UniqueFd(ends[we_write ? 0 : 1])};
  fcntl(pipe.ours.get(), F_SETFL, O_NONBLOCK | (we_write ? O_WRONLY : O_RDONLY));
  return pipe;
}

}  // namespace

HostLink::HostLink(EventLoop& loop, std::string input, Listener listener)
    : loop_(loop), listener_(std::move(listener)), input_(std::move(input)) {
  err_.kind = agent::OutputStream::kStderr;
}

absl::StatusOr<std::unique_ptr<HostLink>> HostLink::Start(EventLoop& loop,
                                                          const std::string& program,
                                                          const std::vector<std::string>& words,
                                                          std::string input, Listener listener) {
  std::unique_ptr<HostLink> link(new HostLink(loop, std::move(input), std::move(listener)));
  CONVENE_ASSIGN_OR_RETURN(Pipe in, MakePipe(true));
  CONVENE_ASSIGN_OR_RETURN(Pipe out, MakePipe(false));
  CONVENE_ASSIGN_OR_RETURN(Pipe err, MakePipe(false));
  agent::SpawnRequest request;
  request.program = program;
  request.arguments = words;
  request.environment = agent::EnvironmentStrings(agent::ParseEnvironment(environ));
  request.stdin_fd = in.theirs.get();
  request.stdout_fd = out.theirs.get();
  request.stderr_fd = err.theirs.get();
  CONVENE_ASSIGN_OR_RETURN(agent::Child child, agent::Spawn(request));
  link->pid_ = child.pid;
  link->pidfd_ = std::move(child.pidfd);
  link->stdin_ = std::move(in.ours);
  link->out_.read_end = std::move(out.ours);
  link->err_.read_end = std::move(err.ours);
  HostLink* const raw = link.get();
  CONVENE_RETURN_IF_ERROR(
      loop.Add(raw->pidfd_.get(), EPOLLIN, [raw](uint32_t) { raw->OnEnded(); }));
  for (Stream* stream : {&raw->out_, &raw->err_}) {
    CONVENE_RETURN_IF_ERROR(loop.Add(stream->read_end.get(), EPOLLIN,
                                     [raw, stream](uint32_t) { raw->ReadOnce(*stream); }));
  }
  CONVENE_RETURN_IF_ERROR(
      loop.Add(raw->stdin_.get(), EPOLLOUT, [raw](uint32_t) { raw->WriteInput(); }));
  return link;
}

HostLink::~HostLink() {
  for (UniqueFd* fd : {&stdin_, &out_.read_end, &err_.read_end}) Close(*fd);
  if (!pidfd_.valid()) return;
  Kill();
  agent::Disown(pid_);  // Not waited for: it may hang in the kernel.
  Close(pidfd_);
}

void HostLink::Close(UniqueFd& fd) {
  if (!fd.valid()) return;
  loop_.Forget(fd.get());
  fd.Reset();
}

void HostLink::Kill() {
  // The whole group: ssh may have started a ProxyCommand.
  if (pidfd_.valid()) kill(-pid_, SIGKILL);
}

void HostLink::Send(Request request) {
  if (!stdin_.valid() || (request == Request::kNone && !input_.empty())) return;
  input_.push_back(static_cast<char>(request));
  loop_.Change(stdin_.get(), EPOLLOUT);
}

void HostLink::WriteInput() {
  const ssize_t n = write(stdin_.get(), input_.data(), input_.size());
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n < 0) return Close(stdin_);  // The process is about to end, and tells more.
  input_.erase(0, static_cast<size_t>(n));
  if (input_.empty()) loop_.Change(stdin_.get(), 0);
}

bool HostLink::ReadOnce(Stream& stream) {
  if (!stream.read_end.valid()) return false;
  char buffer[64 * 1024];
  const ssize_t n = read(stream.read_end.get(), buffer, sizeof(buffer));
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (n <= 0) {
    EndLines(stream);
    return false;
  }
  listener_.on_heard();
  std::string bytes(buffer, static_cast<size_t>(n));
  if (&stream == &err_) bytes = heartbeats_.Add(bytes);
  stream.lines.Add(bytes, Clock::Real().Now(),
                   [&](absl::string_view line) { listener_.on_line(stream.kind, line); });
  return true;
}

void HostLink::EndLines(Stream& stream) {
  const auto on_line = [&](absl::string_view line) { listener_.on_line(stream.kind, line); };
  if (&stream == &err_) stream.lines.Add(heartbeats_.End(), Clock::Real().Now(), on_line);
  stream.lines.End(on_line);
  Close(stream.read_end);
}

void HostLink::OnEnded() {
  Close(pidfd_);
  const agent::ExitStatus status = agent::Reap(pid_);
  // Not until the pipes' end: a process that ssh left behind (ControlPersist) may hold them.
  for (Stream* stream : {&out_, &err_}) {
    while (ReadOnce(*stream)) {
    }
    EndLines(*stream);
  }
  Close(stdin_);
  listener_.on_end(status.signal != 0 ? ExitCodeForSignal(status.signal) : status.exit_code);
}

void HostLink::SetPaused(bool paused) {
  for (Stream* stream : {&out_, &err_}) {
    if (stream->read_end.valid())
      loop_.Change(stream->read_end.get(), paused ? 0U : uint32_t{EPOLLIN});
  }
}

}  // namespace convene::launcher
