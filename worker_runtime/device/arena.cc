#include "worker_runtime/device/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace convene::worker {
namespace {

constexpr size_t kHugePageBytes = size_t{2} << 20;
// Below two pages' worth a huge page wastes more than it saves.
constexpr size_t kHugeFromBytes = size_t{4} << 20;

size_t RoundUp(size_t value, size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

Arena::~Arena() {
  if (mapping_ != nullptr) munmap(mapping_, mapping_bytes_);
}

int Arena::DeclareBytes(std::string block_name, size_t count, size_t element_bytes) {
  CONVENE_CHECK(!built_);
  size_t bytes = 0;
  size_t end = 0;
  // The last summand leaves room for rounding up.
  if (__builtin_mul_overflow(count, element_bytes, &bytes) ||
      __builtin_add_overflow(total_bytes_, bytes, &end) ||
      __builtin_add_overflow(end, 2 * kHugePageBytes, &end)) {
    overflowed_ = true;
    bytes = 0;
  }
  blocks_.push_back(
      {.name = std::move(block_name), .count = count, .bytes = bytes, .offset = total_bytes_});
  total_bytes_ += RoundUp(bytes, kAlignment);
  return static_cast<int>(blocks_.size()) - 1;
}

absl::Status Arena::Build() {
  CONVENE_CHECK(!built_);
  built_ = true;
  if (overflowed_) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "arena \"", name_, "\": a block is larger than the address space (shown as 0 bytes)\n",
        PlanToString()));
  }
  if (total_bytes_ == 0) return absl::OkStatus();
  const bool is_huge = total_bytes_ >= kHugeFromBytes;
  // mmap aligns to small pages only: take more, begin at the next huge page's border.
  const size_t bytes = is_huge ? total_bytes_ + kHugePageBytes : total_bytes_;
  void* mapping = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "arena \"", name_, "\": the system gave no ", bytes, " bytes (mmap: ", std::strerror(errno),
        "); use a smaller micro-batch, more ranks, or raise the memory limit\n", PlanToString()));
  }
  mapping_ = mapping;
  mapping_bytes_ = bytes;
  base_ = static_cast<char*>(mapping);
  if (is_huge) {
    base_ += RoundUp(reinterpret_cast<uintptr_t>(base_), kHugePageBytes) -
             reinterpret_cast<uintptr_t>(base_);
    // Advice only: without huge pages everything works, more slowly.
    (void)madvise(base_, total_bytes_, MADV_HUGEPAGE);
  }
  return absl::OkStatus();
}

Arena::Placed Arena::Place(int index) const {
  CONVENE_CHECK(index >= 0 && index < static_cast<int>(blocks_.size()));
  const Block& block = blocks_[static_cast<size_t>(index)];
  CONVENE_CHECK(base_ != nullptr || block.bytes == 0);
  return {.data = block.bytes == 0 ? nullptr : base_ + block.offset,
          .count = block.bytes == 0 ? 0 : block.count};
}

std::string Arena::PlanToString() const {
  std::vector<const Block*> sorted;
  size_t width = std::max(name_.size(), std::strlen("total"));
  for (const Block& block : blocks_) {
    sorted.push_back(&block);
    width = std::max(width, block.name.size());
  }
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const Block* a, const Block* b) { return a->bytes > b->bytes; });
  const int name_width = static_cast<int>(width);
  std::string table = absl::StrFormat("%-*s %15s  share\n", name_width, name_, "bytes");
  for (const Block* block : sorted) {
    const double share = total_bytes_ == 0 ? 0.0
                                           : 100.0 * static_cast<double>(block->bytes) /
                                                 static_cast<double>(total_bytes_);
    absl::StrAppendFormat(&table, "%-*s %15d %5.1f%%\n", name_width, block->name, block->bytes,
                          share);
  }
  absl::StrAppendFormat(&table, "%-*s %15d\n", name_width, "total", total_bytes_);
  return table;
}

}  // namespace convene::worker
