#include "agent/process/spawn.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "tools/base/check.h"
#include "tools/base/status_macros.h"

namespace convene::agent {
namespace {

// All that the child needs, made before the vfork: in the child only system calls are allowed.
struct ChildPlan {
  const char* program;
  char* const* argv;
  char* const* envp;
  int stdin_fd;
  int stdout_fd;
  int stderr_fd;
  pid_t parent;
};

// Signals that the parent ignores stay ignored over execve, and blocked ones blocked: both are
// taken back.
void RestoreSignals() {
  struct sigaction by_default = {};
  by_default.sa_handler = SIG_DFL;
  for (int signal = 1; signal < NSIG; ++signal) sigaction(signal, &by_default, nullptr);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
}

// Returns an errno value when it returns at all.
int BecomeWorker(const ChildPlan& plan) {
  if (setpgid(0, 0) != 0) return errno;
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) return errno;
  // The parent may have died before the line above: then nothing would ever kill this process.
  if (getppid() != plan.parent) return ESRCH;
  if (dup2(plan.stdin_fd, STDIN_FILENO) < 0 || dup2(plan.stdout_fd, STDOUT_FILENO) < 0 ||
      dup2(plan.stderr_fd, STDERR_FILENO) < 0) {
    return errno;
  }
  // Ours are close-on-exec each; this is for those that a library or our own parent left open.
  // Linux before 5.11 refuses the flag.
  syscall(SYS_close_range, 3U, ~0U, CLOSE_RANGE_CLOEXEC);
  RestoreSignals();
  execve(plan.program, plan.argv, plan.envp);
  return errno;
}

// vfork: the child borrows this address space until its execve, so that a start costs the same
// however large the agent has grown. In a function of its own, with nothing kept in registers
// across the two returns.
__attribute__((noinline)) pid_t VforkWorker(const ChildPlan& plan, volatile int* error) {
  const pid_t pid = vfork();
  if (pid == 0) {
    *error = BecomeWorker(plan);
    _exit(127);
  }
  return pid;
}

std::vector<char*> Pointers(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  pointers.reserve(strings.size() + 1);
  for (const std::string& text : strings) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

// No handler may run in the child while it borrows our memory.
class ScopedAllSignalsBlocked {
 public:
  ScopedAllSignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    CONVENE_CHECK(pthread_sigmask(SIG_SETMASK, &all, &before_) == 0);
  }
  ~ScopedAllSignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

absl::Status ExecError(int error, const std::string& program) {
  if (error == ENOEXEC) {
    return absl::InvalidArgumentError(
        absl::StrCat("The program ", program,
                     " is neither a binary of this machine nor a script with a \"#!\" line. Name "
                     "its interpreter first."));
  }
  if (error == ENOENT) {
    return absl::NotFoundError(absl::StrCat(
        "The program ", program,
        " cannot be started: it, or the interpreter that its first line names, does not exist."));
  }
  if (error == E2BIG) {
    return absl::InvalidArgumentError(
        absl::StrCat("The program ", program,
                     " cannot be started: arguments and environment are too long for execve."));
  }
  return ErrnoStatus(error, absl::StrCat("start ", program));
}

}  // namespace

absl::StatusOr<Child> Spawn(const SpawnRequest& request) {
  const UniqueFd null(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!null.valid()) return ErrnoStatus(errno, "open /dev/null");
  const std::vector<char*> argv = Pointers(request.arguments);
  const std::vector<char*> envp = Pointers(request.environment);
  const ChildPlan plan = {request.program.c_str(), argv.data(),       envp.data(), null.get(),
                          request.stdout_fd,       request.stderr_fd, getpid()};
  volatile int exec_error = 0;
  pid_t pid = -1;
  int fork_error = 0;
  {
    const ScopedAllSignalsBlocked blocked;
    pid = VforkWorker(plan, &exec_error);
    fork_error = errno;
  }
  if (pid < 0) return ErrnoStatus(fork_error, "vfork");
  if (exec_error != 0) {
    waitpid(pid, nullptr, 0);  // It has ended: vfork returned.
    return ExecError(exec_error, request.program);
  }
  Child child;
  child.pid = pid;
  // Not reaped yet, so the number cannot belong to another process.
  child.pidfd.Reset(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!child.pidfd.valid()) {
    const absl::Status status = ErrnoStatus(errno, "pidfd_open");
    kill(-pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    return status;
  }
  fcntl(child.pidfd.get(), F_SETFD, FD_CLOEXEC);
  return child;
}

ExitStatus Reap(pid_t pid) {
  siginfo_t info = {};
  while (waitid(P_PID, pid, &info, WEXITED) != 0) CONVENE_CHECK(errno == EINTR);
  ExitStatus status;
  if (info.si_code == CLD_EXITED) {
    status.exit_code = info.si_status;
  } else {
    status.signal = info.si_status;
    status.core_dumped = info.si_code == CLD_DUMPED;
  }
  return status;
}

}  // namespace convene::agent
