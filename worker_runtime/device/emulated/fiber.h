// A second stack inside one thread of the operating system, told to AddressSanitizer and
// ThreadSanitizer where the kernels are built with them.
#pragma once

#include <cstddef>
#include <optional>

#include "worker_runtime/device/emulated/sanitizers.h"

namespace convene::emulated {

// Not thread-safe. The host is the stack that calls Enter().
class Fiber {
 public:
  // `body` runs at the first Enter() and never returns.
  explicit Fiber(void (*body)());
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // From the host: goes on with the fiber until a fiber calls Leave().
  void Enter();
  // From the fiber that runs: goes on with `next` in its place, without a turn of the host.
  static void SwitchTo(Fiber& next);
  // From the fiber that runs: back to the host.
  static void Leave();
  // The next Enter() begins `body` anew; the frames on the fiber's stack are dropped without
  // destructors.
  void Restart();

 private:
  static void Begin();
  void MakeStack();

  void (*const body_)();
  void* stack_ = nullptr;  // lowest address, above an unreadable page
  const size_t offset_;    // of the first frame below the stack's end
  void* stack_pointer_ = nullptr;
  std::optional<Actor> actor_;  // since `body` last began anew
};

}  // namespace convene::emulated
