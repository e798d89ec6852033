#include "agent/custody/spawn.h"

#include <fcntl.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <set>

#include "absl/strings/str_cat.h"
#include "tools/base/check.h"
#include "tools/base/core_files.h"
#include "tools/base/files.h"
#include "tools/base/signals.h"
#include "tools/base/status_macros.h"

namespace convene::agent {
namespace {

// The child's data, made before the vfork: in the child only system calls are allowed.
struct ChildPlan {
  const SpawnRequest& request;
  char* const* argv;
  char* const* envp;
  int stdin_fd;
  pid_t parent;
  const std::vector<cpu_set_t>& cpus;  // empty: the parent's
};

// Undoes ignored and blocked signals: both would last over execve.
void RestoreSignals(bool ignores_term) {
  struct sigaction by_default = {};
  by_default.sa_handler = SIG_DFL;
  for (int signal = 1; signal < NSIG; ++signal) sigaction(signal, &by_default, nullptr);
  struct sigaction ignored = {};
  ignored.sa_handler = SIG_IGN;
  if (ignores_term) sigaction(SIGTERM, &ignored, nullptr);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
}

// Returns only on an error, with its errno value.
int BecomeWorker(const ChildPlan& plan) {
  if (setsid() < 0) return errno;
  const SpawnRequest& request = plan.request;
  if (request.pid_slot != nullptr) request.pid_slot->store(getpid());
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) return errno;
  // The parent may have died before the line above: then nothing would ever kill this process.
  if (getppid() != plan.parent) return ESRCH;
  if (!plan.cpus.empty() &&
      sched_setaffinity(0, plan.cpus.size() * sizeof(cpu_set_t), plan.cpus.data()) != 0) {
    return errno;
  }
  if (dup2(plan.stdin_fd, STDIN_FILENO) < 0 || dup2(request.stdout_fd, STDOUT_FILENO) < 0 ||
      dup2(request.stderr_fd, STDERR_FILENO) < 0) {
    return errno;
  }
  // Our descriptors are close-on-exec each; a library or our own parent may have left others open.
  // Linux before 5.11 refuses the flag.
  close_range(3, ~0U, CLOSE_RANGE_CLOEXEC);
  RestoreSignals(request.ignores_term);
  RestoreCoreLimit();
  execve(request.program.c_str(), plan.argv, plan.envp);
  return errno;
}

[[noreturn]] void RunChild(const ChildPlan& plan, volatile int* error) {
  *error = BecomeWorker(plan);
  _exit(127);
}

// vfork: the child borrows this address space until its execve, so that a start costs the same
// however large the agent has grown. In a function of its own, with nothing kept in registers
// across the two returns.
__attribute__((noinline)) pid_t VforkWorker(const ChildPlan& plan, volatile int* error) {
  const pid_t pid = vfork();
  if (pid == 0) RunChild(plan, error);
  return pid;
}

// clone3(2), returning twice like vfork. Must be inlined: the child goes on in this very frame, and
// would overwrite the return address of a deeper one. A negative errno value on failure.
__attribute__((always_inline)) inline long RawClone3(clone_args* arguments) {
#if defined(__x86_64__)
  long result = SYS_clone3;
  asm volatile("syscall"
               : "+a"(result)
               : "D"(arguments), "S"(sizeof(*arguments))
               : "rcx", "r11", "memory", "cc");
  return result;
#elif defined(__aarch64__)
  register long number asm("x8") = SYS_clone3;
  register long result asm("x0") = reinterpret_cast<long>(arguments);
  register long size asm("x1") = sizeof(*arguments);
  asm volatile("svc #0" : "+r"(result) : "r"(number), "r"(size) : "memory", "cc");
  return result;
#else
  (void)arguments;
  return -ENOSYS;
#endif
}

// The same, in another cgroup from its first moment: moving a process there later would make all
// forks of the machine wait.
__attribute__((noinline)) pid_t VforkWorkerInto(int cgroup_fd, const ChildPlan& plan,
                                                volatile int* error) {
  clone_args arguments = {};
  arguments.flags = CLONE_VM | CLONE_VFORK | CLONE_INTO_CGROUP;
  arguments.exit_signal = SIGCHLD;
  arguments.cgroup = static_cast<uint64_t>(cgroup_fd);
  const long pid = RawClone3(&arguments);
  if (pid == 0) RunChild(plan, error);
  return static_cast<pid_t>(pid);
}

std::set<pid_t>& Spawned() {
  static auto* const spawned = new std::set<pid_t>;
  return *spawned;
}

std::vector<char*> Pointers(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  pointers.reserve(strings.size() + 1);
  for (const std::string& text : strings) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

// A cpu_set_t is as long as the highest number needs.
std::vector<cpu_set_t> CpuSet(const std::vector<int>& cpus) {
  if (cpus.empty()) return {};
  const int highest = *std::max_element(cpus.begin(), cpus.end());
  std::vector<cpu_set_t> set(static_cast<size_t>(highest) / CPU_SETSIZE + 1);
  const size_t bytes = set.size() * sizeof(cpu_set_t);
  CPU_ZERO_S(bytes, set.data());
  for (const int cpu : cpus) CPU_SET_S(cpu, bytes, set.data());
  return set;
}

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
  if (error == ETXTBSY) {
    return absl::InvalidArgumentError(
        absl::StrCat("The program ", program,
                     " cannot be started: it is open for writing, so a copy may not be done yet "
                     "(`fuser -v ",
                     program, "` names the writer)."));
  }
  return ErrnoStatus(error, absl::StrCat("start ", program));
}

ExitStatus WaitFor(pid_t pid, int flags) {
  siginfo_t info = {};
  while (waitid(P_PID, pid, &info, WEXITED | flags) != 0) CONVENE_CHECK(errno == EINTR);
  ExitStatus status;
  if (info.si_code == CLD_EXITED) {
    status.exit_code = info.si_status;
  } else {
    status.signal = info.si_status;
    status.core_dumped = info.si_code == CLD_DUMPED;
  }
  return status;
}

}  // namespace

absl::StatusOr<Child> Spawn(const SpawnRequest& request) {
  const UniqueFd null(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!null.valid()) return ErrnoStatus(errno, "open /dev/null");
  const std::vector<char*> argv = Pointers(request.arguments);
  const std::vector<char*> envp = Pointers(request.environment);
  const std::vector<cpu_set_t> cpus = CpuSet(request.cpus);
  const int stdin_fd = request.stdin_fd >= 0 ? request.stdin_fd : null.get();
  const ChildPlan plan = {request, argv.data(), envp.data(), stdin_fd, getpid(), cpus};
  volatile int exec_error = 0;
  pid_t pid = -1;
  int fork_error = 0;
  {
    // No handler may run in the child while it borrows our memory.
    const ScopedAllSignalsBlocked blocked;
    if (request.cgroup_fd >= 0) pid = VforkWorkerInto(request.cgroup_fd, plan, &exec_error);
    // This is also the way when the kernel is too old, or a container forbids clone3.
    if (pid < 0) pid = VforkWorker(plan, &exec_error);
    fork_error = errno;
  }
  if (pid < 0) return ErrnoStatus(fork_error, "vfork");
  Child child;
  child.pid = pid;
  // Not reaped yet, so the number cannot belong to another process.
  if (exec_error == 0) child.pidfd.Reset(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!child.pidfd.valid()) {
    const absl::Status status =
        exec_error != 0 ? ExecError(exec_error, request.program) : ErrnoStatus(errno, "pidfd_open");
    kill(-pid, SIGKILL);
    if (request.pid_slot != nullptr) request.pid_slot->store(0);
    waitpid(pid, nullptr, 0);  // It has ended, or does so now: vfork returned.
    return status;
  }
  Spawned().insert(pid);
  return child;
}

absl::Status Adopt(const SpawnRequest& request, pid_t pid) {
  const std::vector<cpu_set_t> cpus = CpuSet(request.cpus);
  if (!cpus.empty() && sched_setaffinity(pid, cpus.size() * sizeof(cpu_set_t), cpus.data()) != 0) {
    return ErrnoStatus(errno, "sched_setaffinity");
  }
  if (request.cgroup_fd >= 0) {
    const UniqueFd procs(openat(request.cgroup_fd, "cgroup.procs", O_WRONLY | O_CLOEXEC));
    if (!procs.valid()) return ErrnoStatus(errno, "open cgroup.procs");
    CONVENE_RETURN_IF_ERROR(WriteAll(procs.get(), absl::StrCat(pid), "cgroup.procs"));
  }
  if (request.pid_slot != nullptr) request.pid_slot->store(pid);
  Spawned().insert(pid);
  return absl::OkStatus();
}

bool IsSpawned(pid_t pid) { return Spawned().count(pid) > 0; }

void Disown(pid_t pid) { Spawned().erase(pid); }

ExitStatus Reap(pid_t pid) {
  Spawned().erase(pid);
  return WaitFor(pid, 0);
}

ExitStatus Peek(pid_t pid) { return WaitFor(pid, WNOWAIT); }

}  // namespace convene::agent
