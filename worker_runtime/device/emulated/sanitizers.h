// The emulation's words to the sanitizers. Each function is empty where the kernels are built
// without that sanitizer (emulated.bzl), so that callers need no #if.
#pragma once

#include <cstddef>

#ifdef CONVENE_EMULATED_ADDRESS
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef CONVENE_EMULATED_THREAD
#include <sanitizer/tsan_interface.h>
#endif

namespace convene::emulated {

#ifdef CONVENE_EMULATED_THREAD
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif

// The bytes may not be touched from now on.
inline void Forbid([[maybe_unused]] const void* begin, [[maybe_unused]] size_t bytes) {
#ifdef CONVENE_EMULATED_ADDRESS
  __asan_poison_memory_region(begin, bytes);
#endif
}
inline void Allow([[maybe_unused]] const void* begin, [[maybe_unused]] size_t bytes) {
#ifdef CONVENE_EMULATED_ADDRESS
  __asan_unpoison_memory_region(begin, bytes);
#endif
}

// The calling fiber's acts before Publish(at) happen before any fiber's acts after Observe(at).
inline void Publish([[maybe_unused]] void* at) {
#ifdef CONVENE_EMULATED_THREAD
  __tsan_release(at);
#endif
}
inline void Observe([[maybe_unused]] void* at) {
#ifdef CONVENE_EMULATED_THREAD
  __tsan_acquire(at);
#endif
}

// To ThreadSanitizer this scope runs in a thread of its own, ordered with nothing but by Publish
// and Observe. REQUIRES: no other scope begins within it and ends after it.
class Actor {
 public:
  Actor() {
#ifdef CONVENE_EMULATED_THREAD
    handle_ = __tsan_create_fiber(0);
#endif
  }
  ~Actor() {
#ifdef CONVENE_EMULATED_THREAD
    __tsan_destroy_fiber(handle_);
#endif
  }
  Actor(const Actor&) = delete;
  Actor& operator=(const Actor&) = delete;

  // Switches only ThreadSanitizer's notion of the thread; the stack stays.
  template <typename Work>
  void Do(const Work& work) {
#ifdef CONVENE_EMULATED_THREAD
    void* const before = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(handle_, __tsan_switch_to_fiber_no_sync);
    work();
    __tsan_switch_to_fiber(before, __tsan_switch_to_fiber_no_sync);
#else
    work();
#endif
  }

 private:
  [[maybe_unused]] void* handle_ = nullptr;
};

}  // namespace convene::emulated
