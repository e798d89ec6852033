// A second stack inside one thread of the operating system, told to AddressSanitizer and
// ThreadSanitizer where the kernels are built with them.
#pragma once

#include <optional>

#include "worker_runtime/device/emulated/sanitizers.h"

namespace convene::emulated {

// Not thread-safe: Leave() goes back to the caller of Enter().
class Fiber {
 public:
  // `body` runs at the first Enter() and never returns.
  explicit Fiber(void (*body)());
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Goes on with the fiber until it calls Leave().
  void Enter();
  // Back from the fiber that runs to its Enter().
  static void Leave();
  // The next Enter() begins `body` anew; the frames on the fiber's stack are dropped without
  // destructors.
  void Restart();

 private:
  static void Begin();
  void MakeStack();

  void (*const body_)();
  void* stack_ = nullptr;  // lowest address, above an unreadable page
  void* stack_pointer_ = nullptr;
  std::optional<Actor> actor_;  // since `body` last began anew
};

}  // namespace convene::emulated
