#include "worker_runtime/session/stack_dump.h"

#include <execinfo.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>

#include "absl/debugging/symbolize.h"
#include "tools/base/check.h"
#include "tools/base/directory_entries.h"

namespace convene::worker {
namespace {

constexpr int kFramesMax = 48;
constexpr int kThreadsMax = 256;
constexpr int64_t kThreadPatienceNs = 100'000'000;
constexpr int64_t kWholePatienceNs = 3'000'000'000;

// The thread that has to write its stack now; 0: none. The thread answers by setting 0.
std::atomic<int> thread_in_turn{0};
std::atomic<bool> dump_is_running{false};
static_assert(std::atomic<int>::is_always_lock_free);

int64_t NowNs() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * int64_t{1'000'000'000} + now.tv_nsec;
}

// A line of text and numbers, built without an allocation and written in one piece.
class Line {
 public:
  Line& Text(const char* text) {
    while (*text != '\0' && length_ < sizeof(buffer_) - 1) buffer_[length_++] = *text++;
    return *this;
  }
  Line& Number(uint64_t value, unsigned base) {
    char digits[20];
    int count = 0;
    do {
      digits[count++] = "0123456789abcdef"[value % base];
      value /= base;
    } while (value != 0);
    while (count > 0 && length_ < sizeof(buffer_) - 1) buffer_[length_++] = digits[--count];
    return *this;
  }
  void Write() {
    buffer_[length_++] = '\n';
    // Nothing can be done about an error here.
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, buffer_, length_);
  }

 private:
  char buffer_[400];
  size_t length_ = 0;
};

void WriteOwnStack(int thread) {
  char name[16] = "?";
  prctl(PR_GET_NAME, name);
  Line().Text("thread ").Number(static_cast<uint64_t>(thread), 10).Text(" ").Text(name).Write();
  void* frames[kFramesMax];
  const int depth = backtrace(frames, kFramesMax);
  // The first two are this function and the handler.
  for (int i = 2; i < depth; ++i) {
    char symbol[300];
    const bool known = absl::Symbolize(frames[i], symbol, sizeof(symbol));
    Line()
        .Text("  #")
        .Number(static_cast<uint64_t>(i - 2), 10)
        .Text(" 0x")
        .Number(reinterpret_cast<uint64_t>(frames[i]), 16)
        .Text(" ")
        .Text(known ? symbol : "?")
        .Write();
  }
}

void AwaitTurnOf(int thread) {
  const int64_t deadline = NowNs() + kThreadPatienceNs;
  while (thread_in_turn.load() == thread && NowNs() < deadline) {
    poll(nullptr, 0, 1);  // A condition variable is not for signal handlers.
  }
  int expected = thread;
  // The exchange fails when the thread has answered; a handler that begins after it finds that its
  // turn is over.
  if (!thread_in_turn.compare_exchange_strong(expected, 0)) return;
  Line().Text("thread ").Number(static_cast<uint64_t>(thread), 10).Text(" does not answer").Write();
}

void DumpThreads(int self) {
  const int directory = open("/proc/self/task", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory < 0) return WriteOwnStack(self);
  const int64_t deadline = NowNs() + kWholePatienceNs;
  int asked = 0;
  ForEachEntry(directory, [&](const dirent64& entry) {
    int thread = 0;
    for (const char* c = entry.d_name; *c >= '0' && *c <= '9'; ++c) {
      thread = thread * 10 + (*c - '0');
    }
    if (thread == 0) return;
    if (++asked > kThreadsMax || NowNs() > deadline) return;
    if (thread == self) return WriteOwnStack(self);
    thread_in_turn.store(thread);
    if (syscall(SYS_tgkill, getpid(), thread, SIGUSR2) == 0) AwaitTurnOf(thread);
    thread_in_turn.store(0);
  });
  close(directory);
  if (asked > kThreadsMax) Line().Text("and more threads").Write();
}

void OnSignal(int, siginfo_t* info, void*) {
  const int saved_errno = errno;
  const int self = static_cast<int>(syscall(SYS_gettid));
  bool idle = false;
  if (info->si_code == SI_TKILL && info->si_pid == getpid()) {
    int turn = self;
    if (thread_in_turn.load() == self) {
      WriteOwnStack(self);
      thread_in_turn.compare_exchange_strong(turn, 0);  // Too slow, it is another's turn by now.
    }
  } else if (dump_is_running.compare_exchange_strong(idle, true)) {
    Line().Text("SIGUSR2: the stacks of all threads; the program goes on").Write();
    DumpThreads(self);
    dump_is_running.store(false);  // First: the reader of the last line may ask again.
    Line().Text("SIGUSR2: all stacks are written").Write();
  }
  errno = saved_errno;
}

}  // namespace

void InstallStackDump(const char* program) {
  absl::InitializeSymbolizer(program);
  // The first call loads the unwinder, which allocates.
  void* frame = nullptr;
  backtrace(&frame, 1);
  struct sigaction action = {};
  action.sa_sigaction = OnSignal;
  action.sa_flags = SA_RESTART | SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  CONVENE_CHECK(sigaction(SIGUSR2, &action, nullptr) == 0);
}

}  // namespace convene::worker
