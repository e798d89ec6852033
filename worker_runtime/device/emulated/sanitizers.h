// The emulation's words to the sanitizer that the kernels are built with. A program links one of
// three libraries that define them (BUILD.bazel): for none, where all of them do nothing, for
// AddressSanitizer, or for ThreadSanitizer. So all else of the emulation is compiled once.
#pragma once

#include <cstddef>

namespace convene::emulated {

extern const bool kAddressSanitizer;
extern const bool kThreadSanitizer;

// The bytes may not be touched from now on.
void Forbid(const void* begin, size_t bytes);
void Allow(const void* begin, size_t bytes);

// The calling fiber's acts before Publish(at) happen before any fiber's acts after Observe(at).
void Publish(void* at);
void Observe(void* at);

// To ThreadSanitizer what runs from Begin() to End() runs in a thread of its own, ordered with
// nothing but by Publish and Observe. Only ThreadSanitizer's notion of the thread is switched; the
// stack stays. REQUIRES: no other actor begins within it and ends after it.
class Actor {
 public:
  Actor();
  ~Actor();  // NOLINT(performance-trivially-destructible): not trivial under ThreadSanitizer
  Actor(const Actor&) = delete;
  Actor& operator=(const Actor&) = delete;

  void Begin();
  void End();
  template <typename Work>
  void Do(const Work& work) {
    Begin();
    work();
    End();
  }

 private:
  [[maybe_unused]] void* handle_ = nullptr;
  [[maybe_unused]] void* before_ = nullptr;
};

// A stack, as AddressSanitizer knows it.
struct Stack {
  const void* lowest = nullptr;
  size_t bytes = 0;
};
// Said on the stack that is left: `next` runs now. Returns what ArrivedOn takes when this stack
// runs again.
void* LeaveFor(const Stack& next);
// Said first on the stack that runs now, with null where it runs for the first time. Returns the
// stack that was left.
Stack ArrivedOn(void* left);

}  // namespace convene::emulated
