#include "tools/base/thread.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tools/base/check.h"
#include "tools/base/exit_code.h"

namespace convene {
namespace {

// Null but in tests.
std::atomic<const std::string*> g_fault{nullptr};

absl::Status NoThread(const std::string& name, int error) {
  return absl::ResourceExhaustedError(
      absl::StrCat("cannot start the thread \"", name, "\" (", strerror(error),
                   "): look at `ulimit -u`, the cgroup's pids.max, "
                   "/proc/sys/kernel/threads-max and the free memory of this node"));
}

}  // namespace

absl::Status Thread::Begin(const std::string& name, std::function<void()> body) {
  CONVENE_CHECK(name.size() <= 15);
  const std::string* const fault = g_fault.load(std::memory_order_acquire);
  if (fault != nullptr && *fault == name) return NoThread(name, EAGAIN);
  try {
    thread_ = std::thread([name, body = std::move(body)] {
      pthread_setname_np(pthread_self(), name.c_str());
      body();
    });
  } catch (const std::system_error& error) {
    return NoThread(name, error.code().value());
  }
  return absl::OkStatus();
}

absl::StatusOr<Thread> Thread::Start(const std::string& name, std::function<void()> body) {
  Thread thread;
  if (absl::Status begun = thread.Begin(name, std::move(body)); !begun.ok()) return begun;
  return thread;
}

Thread::Thread(const std::string& name, std::function<void()> body) {
  const absl::Status begun = Begin(name, std::move(body));
  if (begun.ok()) return;
  std::fprintf(stderr, "convene: this process ends: %s\n", std::string(begun.message()).c_str());
  _exit(static_cast<int>(ExitCode::kUnfitNode));
}

Thread& Thread::operator=(Thread&& other) noexcept {
  CONVENE_CHECK(!thread_.joinable());
  thread_ = std::move(other.thread_);
  return *this;
}

Thread::~Thread() { CONVENE_CHECK(!thread_.joinable()); }

void Thread::Join() {
  if (thread_.joinable()) thread_.join();
}

ScopedThreadFault::ScopedThreadFault(const std::string& name) {
  CONVENE_CHECK(g_fault.load() == nullptr);
  g_fault = new std::string(name);
}

ScopedThreadFault::~ScopedThreadFault() { delete g_fault.exchange(nullptr); }

}  // namespace convene
