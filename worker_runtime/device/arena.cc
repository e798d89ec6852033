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
  struct Line {
    std::string name;
    size_t bytes = 0;
    int blocks = 0;
  };
  std::vector<Line> lines;
  for (const Block& block : blocks_) {
    const auto same = std::find_if(lines.begin(), lines.end(),
                                   [&](const Line& line) { return line.name == block.name; });
    Line& line = same != lines.end() ? *same : lines.emplace_back(Line{.name = block.name});
    line.bytes += block.bytes;
    ++line.blocks;
  }
  std::stable_sort(lines.begin(), lines.end(),
                   [](const Line& a, const Line& b) { return a.bytes > b.bytes; });
  size_t width = std::max(name_.size(), std::strlen("total"));
  for (Line& line : lines) {
    if (line.blocks > 1) absl::StrAppend(&line.name, " x ", line.blocks);
    width = std::max(width, line.name.size());
  }
  const int name_width = static_cast<int>(width);
  std::string table = absl::StrFormat("%-*s %15s  share\n", name_width, name_, "bytes");
  for (const Line& line : lines) {
    const double share = total_bytes_ == 0 ? 0.0
                                           : 100.0 * static_cast<double>(line.bytes) /
                                                 static_cast<double>(total_bytes_);
    absl::StrAppendFormat(&table, "%-*s %15d %5.1f%%\n", name_width, line.name, line.bytes, share);
  }
  absl::StrAppendFormat(&table, "%-*s %15d\n", name_width, "total", total_bytes_);
  return table;
}

}  // namespace convene::worker
