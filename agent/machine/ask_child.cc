#include "agent/machine/ask_child.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "tools/base/clock.h"
#include "tools/base/files.h"
#include "tools/base/unique_fd.h"

namespace convene::agent {
namespace {

constexpr size_t kMostAnswer = 1 << 20;

// Reads until the other end closes; nullopt where the deadline comes first.
std::optional<std::string> ReadToEnd(int fd, MonotonicTime deadline) {
  std::string text;
  char part[4096];
  while (text.size() < kMostAnswer) {
    const auto left = absl::ToInt64Milliseconds(deadline - Clock::Real().Now());
    pollfd ready = {.fd = fd, .events = POLLIN};
    if (left <= 0 || poll(&ready, 1, static_cast<int>(left)) <= 0) return std::nullopt;
    const ssize_t count = read(fd, part, sizeof(part));
    if (count <= 0) break;
    text.append(part, count);
  }
  return text;
}

// A child that hangs for ever holds no pipe open at whose other end somebody waits.
void LetGoOfAllBut(int fd) {
  const UniqueFd nothing(open("/dev/null", O_RDWR | O_CLOEXEC));
  for (int standard = STDIN_FILENO; standard <= STDERR_FILENO; ++standard) {
    dup2(nothing.get(), standard);
  }
  close_range(STDERR_FILENO + 1, fd - 1, 0);
  close_range(fd + 1, ~0U, 0);
}

}  // namespace

std::optional<std::string> AskInChild(absl::FunctionRef<std::string()> ask,
                                      absl::Duration timeout) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return std::nullopt;
  const UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  const pid_t child = fork();
  if (child < 0) return std::nullopt;
  if (child == 0) {
    LetGoOfAllBut(writer.get());
    WriteAll(writer.get(), ask(), "pipe").IgnoreError();
    _exit(0);
  }
  writer.Reset();
  std::optional<std::string> answer = ReadToEnd(reader.get(), Clock::Real().Now() + timeout);
  kill(child, SIGKILL);
  // A child that hangs in the kernel cannot be waited for.
  waitpid(child, nullptr, answer.has_value() ? 0 : WNOHANG);
  return answer;
}

}  // namespace convene::agent
