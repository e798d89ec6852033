#include "worker_runtime/device/arena.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace convene::worker {
namespace {

// What rounding up may add, here and in the memory below.
constexpr size_t kRoundingRoom = size_t{8} << 20;

size_t RoundUp(size_t value, size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

Arena::~Arena() {
  if (base_ != nullptr) memory_.Free(base_, total_bytes_);
}

int Arena::DeclareBytes(std::string block_name, size_t count, size_t element_bytes) {
  CONVENE_CHECK(!built_);
  size_t bytes = 0;
  size_t end = 0;
  if (__builtin_mul_overflow(count, element_bytes, &bytes) ||
      __builtin_add_overflow(total_bytes_, bytes, &end) ||
      __builtin_add_overflow(end, kRoundingRoom, &end)) {
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
  absl::StatusOr<void*> base = memory_.Allocate(total_bytes_);
  if (!base.ok()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "arena \"", name_, "\": ", base.status().message(),
        "; use a smaller micro-batch, --recompute, more ranks, or more memory\n", PlanToString()));
  }
  base_ = static_cast<char*>(*base);
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
