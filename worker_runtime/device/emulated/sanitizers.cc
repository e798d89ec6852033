#include "worker_runtime/device/emulated/sanitizers.h"

#ifdef CONVENE_EMULATED_ADDRESS
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef CONVENE_EMULATED_THREAD
#include <sanitizer/tsan_interface.h>
#endif

namespace convene::emulated {

#ifdef CONVENE_EMULATED_ADDRESS
const bool kAddressSanitizer = true;
void Forbid(const void* begin, size_t bytes) { __asan_poison_memory_region(begin, bytes); }
void Allow(const void* begin, size_t bytes) { __asan_unpoison_memory_region(begin, bytes); }
void* LeaveFor(const Stack& next) {
  void* left = nullptr;
  __sanitizer_start_switch_fiber(&left, next.lowest, next.bytes);
  return left;
}
Stack ArrivedOn(void* left) {
  const void* lowest = nullptr;
  size_t bytes = 0;
  __sanitizer_finish_switch_fiber(left, &lowest, &bytes);
  return {lowest, bytes};
}
#else
const bool kAddressSanitizer = false;
void Forbid(const void* /*begin*/, size_t /*bytes*/) {}
void Allow(const void* /*begin*/, size_t /*bytes*/) {}
void* LeaveFor(const Stack& /*next*/) { return nullptr; }
Stack ArrivedOn(void* /*left*/) { return {}; }
#endif

#ifdef CONVENE_EMULATED_THREAD
const bool kThreadSanitizer = true;
void Publish(void* at) { __tsan_release(at); }
void Observe(void* at) { __tsan_acquire(at); }
Actor::Actor() : handle_(__tsan_create_fiber(0)) {}
Actor::~Actor() { __tsan_destroy_fiber(handle_); }
void Actor::Begin() {
  before_ = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(handle_, __tsan_switch_to_fiber_no_sync);
}
void Actor::End() { __tsan_switch_to_fiber(before_, __tsan_switch_to_fiber_no_sync); }
#else
const bool kThreadSanitizer = false;
void Publish(void* /*at*/) {}
void Observe(void* /*at*/) {}
Actor::Actor() = default;
Actor::~Actor() = default;
void Actor::Begin() {}
void Actor::End() {}
#endif

}  // namespace convene::emulated
