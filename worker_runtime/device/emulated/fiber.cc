#include "worker_runtime/device/emulated/fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>

#include "tools/base/check.h"
#include "worker_runtime/device/emulated/sanitizers.h"

#ifndef __x86_64__
#error "the emulated GPU switches stacks in x86-64 assembly: write SwitchStack for this processor"
#endif

// void convene_emulated_switch_stack(void** save, void* load): keeps the registers that a call
// keeps by the System V ABI. swapcontext would make two system calls.
asm(R"(
.text
.type convene_emulated_switch_stack, @function
convene_emulated_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size convene_emulated_switch_stack, .-convene_emulated_switch_stack
)");
extern "C" void convene_emulated_switch_stack(void** save, void* load);

namespace convene::emulated {
namespace {

constexpr size_t kStackBytes = size_t{256} << 10;
constexpr int kSavedRegisters = 6;

Fiber* current = nullptr;
void* host_stack_pointer = nullptr;
#ifdef CONVENE_EMULATED_ADDRESS
const void* host_stack = nullptr;
size_t host_stack_bytes = 0;
#endif
#ifdef CONVENE_EMULATED_THREAD
void* host_tsan_fiber = nullptr;
#endif

}  // namespace

Fiber::Fiber(void (*body)()) : body_(body) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* const memory = mmap(nullptr, page + kStackBytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  CONVENE_CHECK(memory != MAP_FAILED);
  CONVENE_CHECK(mprotect(memory, page, PROT_NONE) == 0);
  stack_ = static_cast<char*>(memory) + page;
  MakeStack();
}

Fiber::~Fiber() {
#ifdef CONVENE_EMULATED_THREAD
  __tsan_destroy_fiber(tsan_fiber_);
#endif
  Allow(stack_, kStackBytes);
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  CONVENE_CHECK(munmap(static_cast<char*>(stack_) - page, page + kStackBytes) == 0);
}

void Fiber::MakeStack() {
#ifdef CONVENE_EMULATED_THREAD
  tsan_fiber_ = __tsan_create_fiber(0);
#endif
  auto* const top = reinterpret_cast<uintptr_t*>(static_cast<char*>(stack_) + kStackBytes);
  top[-1] = 0;
  top[-2] = reinterpret_cast<uintptr_t>(&Fiber::Begin);  // where the first switch returns to
  for (int i = 0; i < kSavedRegisters; ++i) top[-3 - i] = 0;
  stack_pointer_ = top - 2 - kSavedRegisters;
}

void Fiber::Restart() {
#ifdef CONVENE_EMULATED_THREAD
  __tsan_destroy_fiber(tsan_fiber_);
#endif
  Allow(stack_, kStackBytes);
  MakeStack();
}

void Fiber::Begin() {
#ifdef CONVENE_EMULATED_ADDRESS
  __sanitizer_finish_switch_fiber(nullptr, &host_stack, &host_stack_bytes);
#endif
  current->body_();
  CONVENE_CHECK(false);  // bodies do not return
}

void Fiber::Enter() {
  current = this;
#ifdef CONVENE_EMULATED_THREAD
  host_tsan_fiber = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(tsan_fiber_, __tsan_switch_to_fiber_no_sync);
#endif
#ifdef CONVENE_EMULATED_ADDRESS
  void* fake_stack = nullptr;
  __sanitizer_start_switch_fiber(&fake_stack, stack_, kStackBytes);
#endif
  convene_emulated_switch_stack(&host_stack_pointer, stack_pointer_);
#ifdef CONVENE_EMULATED_ADDRESS
  __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
}

void Fiber::Leave() {
#ifdef CONVENE_EMULATED_THREAD
  __tsan_switch_to_fiber(host_tsan_fiber, __tsan_switch_to_fiber_no_sync);
#endif
#ifdef CONVENE_EMULATED_ADDRESS
  void* fake_stack = nullptr;
  __sanitizer_start_switch_fiber(&fake_stack, host_stack, host_stack_bytes);
#endif
  convene_emulated_switch_stack(&current->stack_pointer_, host_stack_pointer);
#ifdef CONVENE_EMULATED_ADDRESS
  __sanitizer_finish_switch_fiber(fake_stack, &host_stack, &host_stack_bytes);
#endif
}

}  // namespace convene::emulated
