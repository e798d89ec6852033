// Memory for many named blocks, planned before training starts: no allocation inside a step, and a
// table of the bytes that each block takes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "tools/base/check.h"
#include "worker_runtime/device/device.h"

namespace convene::worker {

// An arena is two pieces of memory. Blocks that collectives work on lie in a piece of their own,
// because NCCL registers that piece, whole, with every communicator and network device that touches
// any of it (comm/nccl/nccl_memory.h).
enum class ArenaPart { kLocal, kCollective };

// Names a declared block of T. Cheap to copy; belongs to the arena that gave it out.
template <typename T>
class ArenaBlock {
 public:
  ArenaBlock() = default;

 private:
  friend class Arena;
  explicit ArenaBlock(int index) : index_(index) {}
  int index_ = -1;
};

// Declare blocks, Build() once, then View() them. Every block starts at a multiple of 64 bytes, in
// the order of declaration within its part: equal declarations give equal offsets on all ranks. Not
// thread-safe; View() may be called from any thread after Build().
//
//   Arena arena("activations");
//   const ArenaBlock<float> hidden = arena.Declare<float>("hidden", rows * columns);
//   CONVENE_RETURN_IF_ERROR(arena.Build());
//   absl::Span<float> x = arena.View(hidden);
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
    return ArenaBlock<T>(DeclareBytes(std::move(block_name), count, sizeof(T), part));
  }

  // The one allocation of each part that has blocks; all zeros. ResourceExhausted when there is too
  // little memory or the sum overflows; the text holds PlanToString(). Other errors: the memory's.
  // REQUIRES: called once.
  absl::Status Build();

  // REQUIRES: Build() succeeded. The span lives as long as the arena.
  template <typename T>
  absl::Span<T> View(ArenaBlock<T> block) const {
    const Placed placed = Place(block.index_);
    return absl::Span<T>(static_cast<T*>(placed.data), placed.count);
  }

  // The sum of all blocks with their padding, known before Build().
  size_t total_bytes() const { return parts_[0].bytes + parts_[1].bytes; }

  // A table for people: a line for all blocks of one name and part, the largest first, with its
  // size and its share of the total; then one line for all those below a hundredth, and the total.
  // One unit for all, as the total needs it. A star marks blocks for collectives.
  std::string PlanToString() const;

 private:
  static constexpr size_t kAlignment = 64;

  struct Block {
    std::string name;
    ArenaPart part = ArenaPart::kLocal;
    size_t count = 0;
    size_t bytes = 0;
    size_t offset = 0;  // in its part
  };
  struct Part {
    Memory* memory;
    size_t bytes = 0;
    char* base = nullptr;
  };
  struct Placed {
    void* data;
    size_t count;
  };

  int DeclareBytes(std::string block_name, size_t count, size_t element_bytes, ArenaPart part);
  const Part& part(ArenaPart part) const { return parts_[static_cast<size_t>(part)]; }
  size_t collective_bytes() const { return part(ArenaPart::kCollective).bytes; }
  Placed Place(int index) const;

  const std::string name_;
  std::vector<Block> blocks_;
  Part parts_[2];          // by ArenaPart
  std::string too_large_;  // the first block that is larger than the address space
  bool built_ = false;
};

}  // namespace convene::worker
