// A thread with an owner and a name.
#pragma once

#include <functional>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace convene {

// Owns one std::thread. The owner stops it by its own means (a flag, a closed descriptor), then
// calls Join(). The destructor CHECKs that it was joined: a detached thread is a bug. Movable, not
// copyable. `name` is at most 15 characters (the kernel's limit) and shows in `top -H` and gdb.
class Thread {
 public:
  Thread() = default;
  // ResourceExhausted when the system has no thread left; the text names the thread and the limits
  // to raise.
  static absl::StatusOr<Thread> Start(const std::string& name, std::function<void()> body);
  // For a thread without which the process cannot go on: when it cannot be started, that text goes
  // to stderr and the process ends with exit code 71 (no destructors, no exit handlers).
  Thread(const std::string& name, std::function<void()> body);
  Thread(Thread&&) = default;
  Thread& operator=(Thread&& other) noexcept;
  ~Thread();

  bool joinable() const { return thread_.joinable(); }
  void Join();

 private:
  absl::Status Begin(const std::string& name, std::function<void()> body);

  std::thread thread_;
};

// While it lives, no thread of this name can be started. Tests only; one at a time; a process that
// is forked meanwhile has the fault too.
class ScopedThreadFault {
 public:
  explicit ScopedThreadFault(const std::string& name);
  ~ScopedThreadFault();
  ScopedThreadFault(const ScopedThreadFault&) = delete;
  ScopedThreadFault& operator=(const ScopedThreadFault&) = delete;
};

}  // namespace convene
