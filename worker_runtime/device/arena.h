// Memory for many named blocks, planned before training starts: no allocation inside a step, and a
// table of the bytes that each block takes.
#pragma once

#include <cstddef>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "tools/base/check.h"
#include "tools/base/rounding.h"
#include "worker_runtime/device/device.h"

namespace convene::worker {

// An arena is two pieces of memory. Blocks that collectives work on lie in a piece of their own,
// because NCCL registers that piece, whole, with every communicator and network device that touches
// any of it (comm/nccl/nccl_memory.h).
enum class ArenaPart { kLocal, kCollective };

// A declared block of T: empty, or of an arena. Cheap to copy; borrows the arena.
template <typename T>
class ArenaBlock {
 public:
  ArenaBlock() = default;

  // Any thread. Lives as long as the arena. REQUIRES: the arena's Build() succeeded.
  absl::Span<T> span() const {
    CONVENE_CHECK(count_ == 0 || *base_ != nullptr);
    return {count_ == 0 ? nullptr : reinterpret_cast<T*>(*base_ + offset_), count_};
  }
  size_t size() const { return count_; }

  // REQUIRES: first + count <= size().
  ArenaBlock Slice(size_t first, size_t count) const {
    CONVENE_CHECK(first + count <= count_);
    return {base_, offset_ + first * sizeof(T), count};
  }

 private:
  friend class Arena;
  ArenaBlock(char* const* base, size_t offset, size_t count)
      : base_(base), offset_(offset), count_(count) {}

  char* const* base_ = nullptr;  // where the arena's part begins
  size_t offset_ = 0;            // in the part, in bytes
  size_t count_ = 0;
};

// Where a block lies: see span().
template <typename T>
T* At(const ArenaBlock<T>& block) {
  return block.span().data();
}

// Declare blocks, Build() once, then use them. Every block starts at a multiple of 64 bytes, in the
// order of declaration within its part: equal declarations give equal offsets on all ranks. Not
// thread-safe.
//
//   Arena arena("activations");
//   const ArenaBlock<float> hidden = arena.Declare<float>("hidden", rows * columns);
//   CONVENE_RETURN_IF_ERROR(arena.Build());
//   absl::Span<float> x = hidden.span();
class Arena {
 public:
  // Borrows the memory that Build() will ask.
  explicit Arena(std::string name, Memory& memory = HostMemory())
      : Arena(std::move(name), memory, memory) {}
  Arena(std::string name, Memory& local, Memory& collective)
      : name_(std::move(name)), parts_{{&local}, {&collective}} {}
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // A count of 0 is fine: an empty span. REQUIRES: Build() has not been called.
  template <typename T>
  ArenaBlock<T> Declare(std::string block_name, size_t count, ArenaPart part = ArenaPart::kLocal) {
    static_assert(std::is_trivial_v<T>, "the arena's memory starts as zeros, without constructors");
    static_assert(alignof(T) <= kAlignment);
    if (count > 0 && count <= lent_.count_ / sizeof(T)) {
      lent_.count_ = (lent_.count_ - count * sizeof(T)) / kAlignment * kAlignment;
      in_lent_bytes_ += RoundUp(count * sizeof(T), kAlignment);
      return {lent_.base_, lent_.offset_ + lent_.count_, count};
    }
    Part& memory = parts_[static_cast<size_t>(part)];
    const size_t offset = memory.bytes;
    DeclareBytes(std::move(block_name), count, sizeof(T), part);
    return {&memory.base, offset, count};
  }

  // Blocks that are declared from now on take their places in `block`, from its end on, as far as
  // they fit in, and no memory of their own: for two uses of which one is over when the other
  // begins. An empty block ends it. REQUIRES: `block` is of this arena and starts at a multiple of
  // 64 bytes.
  template <typename T>
  void Lend(const ArenaBlock<T>& block) {
    lent_ = {block.base_, block.offset_, block.count_ * sizeof(T)};
  }
  // The bytes that are left of what was lent last.
  size_t lent_bytes() const { return lent_.size(); }

  // The one allocation of each part that has blocks; all zeros. ResourceExhausted when there is too
  // little memory or the sum overflows; the text holds PlanToString(). Other errors: the memory's.
  // REQUIRES: called once.
  absl::Status Build();

  // The sum of all blocks with their padding, known before Build().
  size_t total_bytes() const { return parts_[0].bytes + parts_[1].bytes; }

  // A table for people: a line for all blocks of one name and part, the largest first, with its
  // size and its share of the total; then one line for all those below a hundredth, and the total.
  // One unit for all, as the total needs it. A star marks blocks for collectives. A last line tells
  // the bytes of the blocks that lie in lent ones, which the total does not count.
  std::string PlanToString() const;

 private:
  static constexpr size_t kAlignment = 64;

  struct Block {
    std::string name;
    ArenaPart part = ArenaPart::kLocal;
    size_t bytes = 0;
  };
  struct Part {
    Memory* memory;
    size_t bytes = 0;
    char* base = nullptr;
  };

  void DeclareBytes(std::string block_name, size_t count, size_t element_bytes, ArenaPart part);

  const std::string name_;
  std::vector<Block> blocks_;
  Part parts_[2];          // by ArenaPart
  std::string too_large_;  // the first block that is larger than the address space
  ArenaBlock<char> lent_;
  size_t in_lent_bytes_ = 0;
  bool built_ = false;
};

}  // namespace convene::worker
