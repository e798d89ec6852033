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
constexpr size_t kCacheLineBytes = 64;
constexpr size_t kOffsets = 64;

Fiber* current = nullptr;
void* host_stack_pointer = nullptr;
Stack host_stack;
bool is_from_host = false;

// The stacks lie a multiple of 4 KiB apart. Without offsets the frames that a switch touches would
// all stand in the same few sets of the first cache. The odd factor spreads neighbours.
size_t NextOffset() {
  static size_t fibers = 0;
  return fibers++ * 7 % kOffsets * kCacheLineBytes;
}

// First on the stack that runs now.
void Arrive(void* left) {
  const Stack before = ArrivedOn(left);
  if (is_from_host) host_stack = before;
  is_from_host = false;
}

}  // namespace

Fiber::Fiber(void (*body)()) : body_(body), offset_(NextOffset()) {
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
  auto* const top =
      reinterpret_cast<uintptr_t*>(static_cast<char*>(stack_) + kStackBytes - offset_);
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
  Arrive(nullptr);
  current->body_();
  CONVENE_CHECK(false);  // bodies do not return
}

void Fiber::Enter() {
  current = this;
  is_from_host = true;
  actor_->Begin();
  void* const left = LeaveFor({stack_, kStackBytes});
  convene_emulated_switch_stack(&host_stack_pointer, stack_pointer_);
  (void)ArrivedOn(left);
}

void Fiber::SwitchTo(Fiber& next) {
  Fiber* const before = current;
  before->actor_->End();
  current = &next;
  next.actor_->Begin();
  void* const left = LeaveFor({next.stack_, kStackBytes});
  convene_emulated_switch_stack(&before->stack_pointer_, next.stack_pointer_);
  Arrive(left);
}

void Fiber::Leave() {
  current->actor_->End();
  void* const left = LeaveFor(host_stack);
  convene_emulated_switch_stack(&current->stack_pointer_, host_stack_pointer);
  Arrive(left);
}

}  // namespace convene::emulated
