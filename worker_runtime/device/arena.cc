#include "worker_runtime/device/arena.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/base/rounding.h"

namespace convene::worker {
namespace {

// The most bytes that rounding up may add, here and in Memory::Allocate.
constexpr size_t kRoundingRoom = size_t{8} << 20;

}  // namespace

Arena::~Arena() {
  for (const Part& part : parts_) {
    if (part.base != nullptr) part.memory->Free(part.base, part.bytes);
  }
}

int Arena::DeclareBytes(std::string block_name, size_t count, size_t element_bytes,
                        ArenaPart part) {
  CONVENE_CHECK(!built_);
  size_t bytes = 0;
  size_t end = 0;
  if (__builtin_mul_overflow(count, element_bytes, &bytes) ||
      __builtin_add_overflow(total_bytes(), bytes, &end) ||
      __builtin_add_overflow(end, kRoundingRoom, &end)) {
    overflowed_ = true;
    bytes = 0;
  }
  size_t& part_bytes = parts_[static_cast<size_t>(part)].bytes;
  blocks_.push_back({.name = std::move(block_name),
                     .part = part,
                     .count = count,
                     .bytes = bytes,
                     .offset = part_bytes});
  part_bytes += RoundUp(bytes, kAlignment);
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
  for (Part& part : parts_) {
    if (part.bytes == 0) continue;
    const absl::StatusOr<void*> base = part.memory->Allocate(part.bytes);
    if (!base.ok() && !absl::IsResourceExhausted(base.status())) return base.status();
    if (!base.ok()) {
      return absl::ResourceExhaustedError(
          absl::StrCat("arena \"", name_, "\": ", base.status().message(),
                       "; use a smaller micro-batch, --recompute, more ranks, or more memory\n",
                       PlanToString()));
    }
    part.base = static_cast<char*>(*base);
  }
  return absl::OkStatus();
}

Arena::Placed Arena::Place(int index) const {
  CONVENE_CHECK(index >= 0 && index < static_cast<int>(blocks_.size()));
  const Block& block = blocks_[static_cast<size_t>(index)];
  char* const base = part(block.part).base;
  CONVENE_CHECK(base != nullptr || block.bytes == 0);
  return {.data = block.bytes == 0 ? nullptr : base + block.offset,
          .count = block.bytes == 0 ? 0 : block.count};
}

std::string Arena::PlanToString() const {
  struct Line {
    std::string name;
    ArenaPart part = ArenaPart::kLocal;
    size_t bytes = 0;
    int blocks = 0;
  };
  std::vector<Line> lines;
  for (const Block& block : blocks_) {
    const auto same = std::find_if(lines.begin(), lines.end(), [&](const Line& line) {
      return line.name == block.name && line.part == block.part;
    });
    Line& line = same != lines.end()
                     ? *same
                     : lines.emplace_back(Line{.name = block.name, .part = block.part});
    line.bytes += block.bytes;
    ++line.blocks;
  }
  std::stable_sort(lines.begin(), lines.end(),
                   [](const Line& a, const Line& b) { return a.bytes > b.bytes; });
  constexpr char kOfCollectives[] = "* for collectives";
  size_t width = std::max(name_.size(), std::strlen("total"));
  if (collective_bytes() > 0) width = std::max(width, std::strlen(kOfCollectives));
  for (Line& line : lines) {
    if (line.blocks > 1) absl::StrAppend(&line.name, " x ", line.blocks);
    if (line.part == ArenaPart::kCollective) absl::StrAppend(&line.name, " *");
    width = std::max(width, line.name.size());
  }
  const int name_width = static_cast<int>(width);
  std::string table = absl::StrFormat("%-*s %15s  share\n", name_width, name_, "bytes");
  for (const Line& line : lines) {
    const double share = total_bytes() == 0 ? 0.0
                                            : 100.0 * static_cast<double>(line.bytes) /
                                                  static_cast<double>(total_bytes());
    absl::StrAppendFormat(&table, "%-*s %15d %5.1f%%\n", name_width, line.name, line.bytes, share);
  }
  absl::StrAppendFormat(&table, "%-*s %15d\n", name_width, "total", total_bytes());
  if (collective_bytes() > 0) {
    absl::StrAppendFormat(&table, "%-*s %15d\n", name_width, kOfCollectives, collective_bytes());
  }
  return table;
}

}  // namespace convene::worker
