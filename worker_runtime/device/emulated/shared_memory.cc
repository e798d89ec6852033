#include "worker_runtime/device/emulated/shared_memory.h"

#include <algorithm>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "tools/base/check.h"
#include "worker_runtime/device/emulated/grid.h"

namespace convene::emulated {
namespace {

constexpr size_t kMarginBytes = 256;
constexpr int kVariablesMax = 64;
// CUDA promises no more, so a kernel that needs more is found.
constexpr size_t kDynamicAlignment = 16;
constexpr size_t kMemoryBytes =
    kSharedBytesMax + kSharedBytesDefault + (kVariablesMax + 2) * 2 * kMarginBytes;
constexpr unsigned char kPoison = 0xff;  // NaN, -1

// Not by memset: ThreadSanitizer would take it for the running thread's write.
void Fill(void* begin, size_t bytes) {
  asm volatile("rep stosb" : "+D"(begin), "+c"(bytes) : "a"(kPoison) : "memory");
}

}  // namespace

void SharedMemory::BeginBlock(size_t dynamic_bytes) {
  dynamic_bytes_ = dynamic_bytes;
  used_ = kMarginBytes;
  pieces_.clear();
  variables_bytes_ = 0;
}

void* SharedMemory::Find(const void* key, size_t bytes, size_t alignment) {
  if (memory_ == nullptr) {
    allocator_.Do([&] {
      memory_ = static_cast<char*>(std::aligned_alloc(kMarginBytes, kMemoryBytes));
      CONVENE_CHECK(memory_ != nullptr);
      Publish(&allocated_);
    });
    Forbid(memory_, kMemoryBytes);
  }
  Observe(&allocated_);
  for (const Piece& piece : pieces_) {
    if (piece.key == key) return piece.begin;
  }
  // The piece is aligned as was asked for, and no better.
  const size_t begin = (used_ + 2 * alignment - 1) / (2 * alignment) * (2 * alignment) + alignment;
  CONVENE_CHECK(begin + bytes + kMarginBytes <= kMemoryBytes);
  char* const place = memory_ + begin;
  Allow(place, bytes);
  if (kAddressSanitizer) {
    Fill(place, bytes);
  } else {
    Fill(memory_ + used_, begin - used_ + bytes + kMarginBytes);
  }
  used_ = begin + bytes + kMarginBytes;
  pieces_.push_back({key, place, bytes});
  return place;
}

void* SharedMemory::Dynamic() { return Find(&dynamic_bytes_, dynamic_bytes_, kDynamicAlignment); }

void* SharedMemory::Variable(const void* key, size_t bytes, size_t alignment) {
  const size_t pieces = pieces_.size();
  if (variables_bytes_ + bytes > kSharedBytesDefault || pieces >= kVariablesMax) {
    const auto is_there = [key](const Piece& piece) { return piece.key == key; };
    if (std::none_of(pieces_.begin(), pieces_.end(), is_there)) return nullptr;
  }
  void* const place = Find(key, bytes, alignment);
  if (pieces_.size() > pieces) variables_bytes_ += bytes;
  return place;
}

std::string SharedMemory::EndBlock(void* last_words) {
  std::string wrong;
  for (const Piece& piece : pieces_) {
    if (kAddressSanitizer) break;  // it saw the write, and forbids to read here
    const auto* const end = reinterpret_cast<const unsigned char*>(piece.begin + piece.bytes);
    if (std::all_of(end, end + kMarginBytes, [](unsigned char c) { return c == kPoison; }))
      continue;
    wrong = absl::StrCat("a block wrote past the end of ", piece.bytes, " bytes of shared memory");
  }
  if (memory_ == nullptr) return wrong;
  Forbid(memory_, used_);
  // Under ThreadSanitizer each block gets new memory: another block's accesses to the same bytes
  // must not look like a race.
  if (kThreadSanitizer) {
    janitor_.Do([&] {
      Observe(last_words);
      std::free(memory_);
    });
    memory_ = nullptr;
  }
  return wrong;
}

}  // namespace convene::emulated
