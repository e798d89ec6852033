#include "worker_runtime/device/emulated/fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>

#include "tools/base/check.h"

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
Stack host_stack;

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
  actor_.reset();
  Allow(stack_, kStackBytes);
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  CONVENE_CHECK(munmap(static_cast<char*>(stack_) - page, page + kStackBytes) == 0);
}

void Fiber::MakeStack() {
  actor_.emplace();
  auto* const top = reinterpret_cast<uintptr_t*>(static_cast<char*>(stack_) + kStackBytes);
  top[-1] = 0;
  top[-2] = reinterpret_cast<uintptr_t>(&Fiber::Begin);  // where the first switch returns to
  for (int i = 0; i < kSavedRegisters; ++i) top[-3 - i] = 0;
  stack_pointer_ = top - 2 - kSavedRegisters;
}

void Fiber::Restart() {
  Allow(stack_, kStackBytes);
  MakeStack();
}

void Fiber::Begin() {
  host_stack = ArrivedOn(nullptr);
  current->body_();
  CONVENE_CHECK(false);  // bodies do not return
}

void Fiber::Enter() {
  current = this;
  actor_->Begin();
  void* const left = LeaveFor({stack_, kStackBytes});
  convene_emulated_switch_stack(&host_stack_pointer, stack_pointer_);
  (void)ArrivedOn(left);
}

void Fiber::Leave() {
  current->actor_->End();
  void* const left = LeaveFor(host_stack);
  convene_emulated_switch_stack(&current->stack_pointer_, host_stack_pointer);
  host_stack = ArrivedOn(left);
}

}  // namespace convene::emulated
