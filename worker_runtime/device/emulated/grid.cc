#include "worker_runtime/device/emulated/grid.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/base/check.h"
#include "worker_runtime/device/emulated/fiber.h"
#include "worker_runtime/device/emulated/sanitizers.h"
#include "worker_runtime/device/emulated/shared_memory.h"

uint3 threadIdx;
uint3 blockIdx;
dim3 blockDim;
dim3 gridDim;

namespace convene::emulated {
namespace {

enum class State { kReady, kAtBarrier, kAtExchange, kDone };

struct Thread {
  Fiber* fiber = nullptr;  // from its first instruction to its last
  State state = State::kReady;
  uint3 index = {};
  Location at;  // where it waits
  // The exchange that the thread waits for.
  bool is_sync = false;
  Exchange kind = {};
  uint32_t mask = 0;
  int operand = 0;
  int width = 0;
  uint64_t value = 0;  // what it gives; then what it gets
};

// ThreadSanitizer orders threads by these. Two take turns: a thread that ran ahead to the next
// barrier must not be taken for one that came to this barrier.
struct Phases {
  std::array<char, 2> places = {};
  int turn = 0;
  void* Place() { return &places[turn]; }
};

// The block that runs.
class Block {
 public:
  void Run(const Grid& grid, Order order);
  // Drops the remains of a block that failed.
  void Drop();

  std::string violation;

  // Called by threads.
  void Sync(const Location& at);
  uint64_t Meet(bool is_sync, Exchange kind, uint32_t mask, uint64_t value, int operand, int width,
                const Location& at);
  [[noreturn]] void Fail(const std::string& what);
  SharedMemory& shared() { return shared_; }
  // A kernel's threads have one bound.
  void CheckBounds(int threads_max);

 private:
  static void FiberBody();
  static uint3 IndexOf(int thread);
  int Pick();
  void MakeCurrent(int thread);
  void GoOn();
  void Finish();
  void MakeReady(int thread);
  void NotReady(int thread);
  void Wait(State state, const Location& at);
  void CheckMask(uint32_t mask, const Location& at);
  void CompleteExchange(int warp, uint32_t mask);
  int SourceLane(const Thread& thread, int lane) const;
  std::string Where(int thread) const;
  void ReportDeadlock();
  Fiber* TakeFiber();

  const Grid* grid_ = nullptr;
  Order order_ = Order::kForward;
  uint64_t random_ = 0x9E3779B97F4A7C15;
  std::vector<Thread> threads_;
  // One bit a lane, by warp.
  std::array<uint32_t, kWarpThreads> ready_ = {};
  std::array<uint32_t, kWarpThreads> alive_ = {};
  std::array<uint32_t, kWarpThreads> at_exchange_ = {};
  uint32_t ready_warps_ = 0;  // one bit for each warp with a ready lane
  int warps_ = 0;
  int current_ = -1;
  int done_ = 0;
  int at_barrier_ = 0;
  Location barrier_at_;
  Phases barrier_;
  std::array<Phases, kWarpThreads> warp_phases_;
  char begin_ = 0;  // Published before the block's first thread
  char end_ = 0;    // Published by each thread at its end
  SharedMemory shared_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> free_fibers_;
  size_t next_fiber_ = 0;

 public:
  void* begin() { return &begin_; }
  void* end() { return &end_; }
  uint64_t Random();
};

// Never destroyed: kernels may run until the process ends.
Block& TheBlock() {
  static auto* const block = new Block;
  return *block;
}

std::string Text(const Location& at) { return absl::StrCat(at.file, ":", at.line); }

uint64_t Block::Random() {  // xorshift64
  random_ ^= random_ << 13;
  random_ ^= random_ >> 7;
  random_ ^= random_ << 17;
  return random_;
}

uint3 Block::IndexOf(int thread) {
  const auto i = static_cast<unsigned int>(thread);
  return {i % blockDim.x, i / blockDim.x % blockDim.y, i / (blockDim.x * blockDim.y)};
}

void Block::FiberBody() {
  for (;;) {
    Block& block = TheBlock();
    Observe(block.begin());
    block.grid_->thread();
    Publish(block.end());
    block.Finish();
    block.GoOn();
  }
}

// Under ThreadSanitizer a block's threads are different fibers, and the same place in the next
// block is another fiber, because ThreadSanitizer takes all that one fiber does as ordered.
Fiber* Block::TakeFiber() {
  if (kThreadSanitizer) {
    constexpr size_t kFibers = 2 * kBlockThreadsMax - 1;
    if (fibers_.size() == kFibers) return fibers_[next_fiber_++ % kFibers].get();
    fibers_.push_back(std::make_unique<Fiber>(&FiberBody));
    return fibers_.back().get();
  }
  if (free_fibers_.empty()) {
    fibers_.push_back(std::make_unique<Fiber>(&FiberBody));
    return fibers_.back().get();
  }
  Fiber* const fiber = free_fibers_.back();
  free_fibers_.pop_back();
  return fiber;
}

void Block::Run(const Grid& grid, Order order) {
  grid_ = &grid;
  order_ = order;
  const int count = static_cast<int>(grid.threads.x * grid.threads.y * grid.threads.z);
  threads_.assign(count, Thread());
  warps_ = (count + kWarpThreads - 1) / kWarpThreads;
  ready_ = {};
  ready_warps_ = 0;
  at_exchange_ = {};
  for (int i = 0; i < count; ++i) {
    threads_[i].index = IndexOf(i);
    MakeReady(i);
  }
  alive_ = ready_;
  done_ = 0;
  at_barrier_ = 0;
  shared_.BeginBlock(grid.dynamic_shared_bytes);
  Publish(&begin_);
  MakeCurrent(Pick());
  threads_[current_].fiber->Enter();
  if (!violation.empty()) return;
  if (done_ < count) {
    ReportDeadlock();
    return;
  }
  violation = shared_.EndBlock(&end_);
}

void Block::Drop() {
  for (Thread& thread : threads_) {
    if (thread.fiber == nullptr) continue;
    thread.fiber->Restart();
    if (!kThreadSanitizer) free_fibers_.push_back(thread.fiber);
    thread.fiber = nullptr;
  }
  (void)shared_.EndBlock(&end_);
}

int Block::Pick() {
  if (ready_warps_ == 0) return -1;
  if (order_ == Order::kForward) {
    const int warp = std::countr_zero(ready_warps_);
    return warp * kWarpThreads + std::countr_zero(ready_[warp]);
  }
  if (order_ == Order::kReverse) {
    const int warp = kWarpThreads - 1 - std::countl_zero(ready_warps_);
    return warp * kWarpThreads + kWarpThreads - 1 - std::countl_zero(ready_[warp]);
  }
  const auto first = static_cast<int>(Random() % warps_);
  const uint32_t from_first = ready_warps_ >> first << first;
  const int warp = std::countr_zero(from_first != 0 ? from_first : ready_warps_);
  const int turn = static_cast<int>(Random() % kWarpThreads);
  return warp * kWarpThreads +
         (std::countr_zero(std::rotr(ready_[warp], turn)) + turn) % kWarpThreads;
}

void Block::MakeCurrent(int thread) {
  Thread& next = threads_[thread];
  if (next.fiber == nullptr) next.fiber = TakeFiber();
  current_ = thread;
  threadIdx = next.index;
}

// By a thread that waits or has ended: returns when it may go on, or when its fiber is to begin
// another thread.
void Block::GoOn() {
  Thread& thread = threads_[current_];
  Fiber* const fiber = thread.fiber;
  if (thread.state == State::kDone) {
    thread.fiber = nullptr;
    if (!kThreadSanitizer) free_fibers_.push_back(fiber);  // the next thread begins on it
  }
  const int next = violation.empty() ? Pick() : -1;
  if (next < 0) {
    Fiber::Leave();  // Run() says why
    return;
  }
  MakeCurrent(next);
  if (threads_[next].fiber != fiber) Fiber::SwitchTo(*threads_[next].fiber);
}

uint32_t BitOf(int thread) { return uint32_t{1} << (thread % kWarpThreads); }

void Block::MakeReady(int thread) {
  threads_[thread].state = State::kReady;
  ready_[thread / kWarpThreads] |= BitOf(thread);
  ready_warps_ |= uint32_t{1} << (thread / kWarpThreads);
  at_exchange_[thread / kWarpThreads] &= ~BitOf(thread);
}

void Block::NotReady(int thread) {
  const int warp = thread / kWarpThreads;
  ready_[warp] &= ~BitOf(thread);
  if (ready_[warp] == 0) ready_warps_ &= ~(uint32_t{1} << warp);
}

void Block::Wait(State state, const Location& at) {
  Thread& thread = threads_[current_];
  thread.state = state;
  thread.at = at;
  NotReady(current_);
  if (state == State::kAtExchange) at_exchange_[current_ / kWarpThreads] |= BitOf(current_);
}

void Block::Finish() {
  const int warp = current_ / kWarpThreads;
  threads_[current_].state = State::kDone;
  NotReady(current_);
  alive_[warp] &= ~BitOf(current_);
  ++done_;
  if (at_barrier_ > 0) {
    violation = absl::StrCat(Where(current_), " returned while ", at_barrier_,
                             " threads of its block wait at __syncthreads, ", Text(barrier_at_));
  }
  for (uint32_t waiting = at_exchange_[warp]; waiting != 0; waiting &= waiting - 1) {
    const int other = warp * kWarpThreads + std::countr_zero(waiting);
    if ((threads_[other].mask & BitOf(current_)) == 0) continue;
    violation = absl::StrCat(Where(current_), " returned, but ", Where(other),
                             " names its lane in the mask of ", Text(threads_[other].at));
  }
}

void Block::Sync(const Location& at) {
  if (done_ > 0) {
    Fail(absl::StrCat("waits at __syncthreads, ", Text(at), ", but ", done_,
                      " threads of its block have returned already"));
  }
  if (at_barrier_ > 0 &&
      (barrier_at_.line != at.line || std::strcmp(barrier_at_.file, at.file) != 0)) {
    Fail(absl::StrCat("waits at __syncthreads, ", Text(at),
                      ", while other threads wait at that of ", Text(barrier_at_)));
  }
  void* const place = barrier_.Place();
  Publish(place);
  barrier_at_ = at;
  Wait(State::kAtBarrier, at);
  if (++at_barrier_ == static_cast<int>(threads_.size())) {
    at_barrier_ = 0;
    barrier_.turn ^= 1;
    for (int i = 0; i < static_cast<int>(threads_.size()); ++i) MakeReady(i);
  }
  GoOn();
  Observe(place);
}

void Block::CheckMask(uint32_t mask, const Location& at) {
  if ((mask & BitOf(current_)) == 0) {
    Fail(absl::StrCat("calls ", Text(at),
                      " with a mask without its own lane: ", absl::Hex(mask, absl::kZeroPad8)));
  }
  const int warp = current_ / kWarpThreads;
  const uint32_t missing = mask & ~alive_[warp];
  if (missing == 0) return;
  const int lane = std::countr_zero(missing);
  const bool is_there = warp * kWarpThreads + lane < static_cast<int>(threads_.size());
  Fail(absl::StrCat("names lane ", lane, " in its mask at ", Text(at), ", but that thread ",
                    is_there ? "has returned" : "does not exist"));
}

uint64_t Block::Meet(bool is_sync, Exchange kind, uint32_t mask, uint64_t value, int operand,
                     int width, const Location& at) {
  CheckMask(mask, at);
  const int warp = current_ / kWarpThreads;
  const int begin = warp * kWarpThreads;
  Thread& thread = threads_[current_];
  thread.is_sync = is_sync;
  thread.kind = kind;
  thread.mask = mask;
  thread.value = value;
  thread.operand = operand;
  thread.width = width;
  Wait(State::kAtExchange, at);
  // The lanes that wait already agree with each other, so it is enough to look at one of them.
  const uint32_t others = at_exchange_[warp] & mask & ~BitOf(current_);
  if (others != 0) {
    const int other = begin + std::countr_zero(others);
    const Thread& waiting = threads_[other];
    if (waiting.is_sync != is_sync || waiting.mask != mask ||
        (!is_sync && (waiting.kind != kind || waiting.at.line != at.line))) {
      Fail(absl::StrCat("is at ", Text(at), " with mask ", absl::Hex(mask, absl::kZeroPad8),
                        ", but ", Where(other), ", which the mask names, is at ", Text(waiting.at),
                        " with mask ", absl::Hex(waiting.mask, absl::kZeroPad8)));
    }
  }
  const bool all_here = (at_exchange_[warp] & mask) == mask;
  // Only __syncwarp orders memory; a shuffle does not (CUDA C++ Programming Guide, "Warp Shuffle
  // Functions").
  Phases& phases = warp_phases_[warp];
  void* const place = phases.Place();
  if (is_sync) Publish(place);
  if (all_here) {
    if (is_sync) phases.turn ^= 1;
    CompleteExchange(warp, mask);
  }
  GoOn();
  if (is_sync) Observe(place);
  return threads_[current_].value;
}

int Block::SourceLane(const Thread& thread, int lane) const {
  const int group = lane / thread.width * thread.width;
  const int last = group + thread.width - 1;
  switch (thread.kind) {
    case Exchange::kFromLane:
      return group + (thread.operand & (thread.width - 1));
    case Exchange::kFromXor:
      return (lane ^ thread.operand) > last ? lane : lane ^ thread.operand;
    case Exchange::kFromAbove:
      return lane + thread.operand > last ? lane : lane + thread.operand;
    case Exchange::kFromBelow:
      return lane - thread.operand < group ? lane : lane - thread.operand;
    case Exchange::kBallot:
      return lane;
  }
  return lane;
}

void Block::CompleteExchange(int warp, uint32_t mask) {
  Thread* const lanes = &threads_[warp * kWarpThreads];
  std::array<uint64_t, kWarpThreads> given = {};
  uint64_t ballot = 0;
  for (int lane = 0; lane < kWarpThreads; ++lane) {
    if ((mask >> lane & 1) == 0) continue;
    given[lane] = lanes[lane].value;
    if (given[lane] != 0) ballot |= uint64_t{1} << lane;
  }
  for (int lane = 0; lane < kWarpThreads; ++lane) {
    if ((mask >> lane & 1) == 0) continue;
    const int source = SourceLane(lanes[lane], lane);
    if (!lanes[lane].is_sync && (mask >> source & 1) == 0) {
      Fail(absl::StrCat("takes part in ", Text(lanes[lane].at), ", where lane ", lane,
                        " reads lane ", source, ", which the mask leaves out"));
    }
    lanes[lane].value = lanes[lane].kind == Exchange::kBallot ? ballot : given[source];
    MakeReady(warp * kWarpThreads + lane);
  }
}

void Block::CheckBounds(int threads_max) {
  if (static_cast<int>(threads_.size()) > threads_max) {
    Fail(absl::StrCat("runs in a block of ", threads_.size(),
                      " threads, but __launch_bounds__ says ", threads_max));
  }
}

std::string Block::Where(int thread) const {
  const uint3& index = threads_[thread].index;
  return absl::StrCat("thread (", index.x, ", ", index.y, ", ", index.z, ") of block (", blockIdx.x,
                      ", ", blockIdx.y, ", ", blockIdx.z, ")");
}

void Block::ReportDeadlock() {
  violation = "no thread can go on";
  std::vector<std::string> seen;
  for (int i = 0; i < static_cast<int>(threads_.size()); ++i) {
    const Thread& thread = threads_[i];
    if (thread.state == State::kDone) continue;
    const std::string place = absl::StrCat(
        thread.state == State::kAtBarrier ? "__syncthreads, " : "an exchange of its warp, ",
        Text(thread.at));
    if (std::find(seen.begin(), seen.end(), place) != seen.end()) continue;
    seen.push_back(place);
    absl::StrAppend(&violation, "; ", Where(i), " waits at ", place);
  }
}

void Block::Fail(const std::string& what) {
  violation = absl::StrCat(Where(current_), " ", what);
  Fiber::Leave();
  CONVENE_CHECK(false);  // a thread of a failed block is never resumed
}

// The blocks' numbers in the order in which they run.
std::vector<int64_t> BlockOrder(int64_t count, Order order, Block& block) {
  std::vector<int64_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(), 0);
  if (order == Order::kReverse) std::reverse(numbers.begin(), numbers.end());
  if (order == Order::kRandom) {
    for (int64_t i = count - 1; i > 0; --i) {
      std::swap(numbers[i], numbers[block.Random() % (i + 1)]);
    }
  }
  return numbers;
}

}  // namespace

Order OrderFromEnvironment() {
  const char* const value = std::getenv("CONVENE_EMULATED_ORDER");
  const std::string order = value == nullptr ? "forward" : value;
  if (order == "forward") return Order::kForward;
  if (order == "reverse") return Order::kReverse;
  if (order == "random") return Order::kRandom;
  std::fprintf(stderr, "CONVENE_EMULATED_ORDER is \"%s\": use forward, reverse or random\n",
               order.c_str());
  CONVENE_CHECK(false);
}

std::string RunGrid(const Grid& grid, Order order) {
  Block& block = TheBlock();
  block.violation.clear();
  gridDim = grid.blocks;
  blockDim = grid.threads;
  const int64_t count = int64_t{gridDim.x} * gridDim.y * gridDim.z;
  for (const int64_t number : BlockOrder(count, order, block)) {
    const auto i = static_cast<uint64_t>(number);
    blockIdx = {static_cast<unsigned int>(i % gridDim.x),
                static_cast<unsigned int>(i / gridDim.x % gridDim.y),
                static_cast<unsigned int>(i / (uint64_t{gridDim.x} * gridDim.y))};
    block.Run(grid, order);
    if (block.violation.empty()) continue;
    block.Drop();
    break;
  }
  Observe(block.end());
  return block.violation;
}

void Violation(const std::string& what) { TheBlock().Fail(what); }
void SyncThreads(const Location& at) { TheBlock().Sync(at); }
void SyncWarp(uint32_t mask, const Location& at) {
  (void)TheBlock().Meet(/*is_sync=*/true, Exchange::kFromLane, mask, 0, 0, kWarpThreads, at);
}
uint64_t ExchangeInWarp(Exchange kind, uint32_t mask, uint64_t value, int operand, int width,
                        const Location& at) {
  return TheBlock().Meet(/*is_sync=*/false, kind, mask, value, operand, width, at);
}
void* SharedBytes(const void* key, size_t bytes, size_t alignment) {
  SharedMemory& shared = TheBlock().shared();
  void* const place = shared.Variable(key, bytes, alignment);
  if (place == nullptr) {
    TheBlock().Fail(absl::StrCat("needs more than the ", kSharedBytesDefault,
                                 " bytes that a block's __shared__ variables may take"));
  }
  return place;
}
void* DynamicSharedBytes() { return TheBlock().shared().Dynamic(); }
void CheckLaunchBounds(int threads_max, int /*blocks_of_a_multiprocessor*/) {
  TheBlock().CheckBounds(threads_max);
}
void CheckAligned(const void* address, size_t alignment) {
  if (reinterpret_cast<uintptr_t>(address) % alignment == 0) return;
  Violation(absl::StrCat("accesses ", alignment, " bytes at once at an address that is ",
                         reinterpret_cast<uintptr_t>(address) % alignment,
                         " bytes past a multiple"));
}

}  // namespace convene::emulated
