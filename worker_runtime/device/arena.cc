#include "worker_runtime/device/arena.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/base/rounding.h"

namespace convene::worker {
namespace {

// The most bytes that rounding up may add, here and in Memory::Allocate.
constexpr size_t kRoundingRoom = size_t{8} << 20;
// A plan's lines below so small a part of the whole are added up in one.
constexpr size_t kSmallestShare = 100;

// Lines of a name, a size and its share of the total, in one unit.
class PlanTable {
 public:
  PlanTable(const std::string& title, size_t total_bytes) : total_(total_bytes) {
    constexpr const char* kUnits[] = {"bytes", "KiB", "MiB", "GiB"};
    size_t unit = 0;
    for (; unit + 1 < std::size(kUnits) && total_ >= 1024 * divisor_; ++unit) divisor_ *= 1024;
    decimals_ = unit > 0 ? 1 : 0;
    rows_.push_back({title, kUnits[unit], "share"});
  }

  void Add(std::string name, size_t bytes) {
    const double size = static_cast<double>(bytes);
    const double share = total_ > 0 ? 100 * size / total_ : 0;
    rows_.push_back({std::move(name), absl::StrFormat("%.*f", decimals_, size / divisor_),
                     absl::StrFormat("%.1f%%", share)});
  }

  std::string ToString() const {
    size_t width = 0;
    for (const Row& row : rows_) width = std::max(width, row.name.size());
    std::string table;
    for (const Row& row : rows_) {
      absl::StrAppendFormat(&table, "%-*s %10s %7s\n", static_cast<int>(width), row.name, row.size,
                            row.share);
    }
    return table;
  }

 private:
  struct Row {
    std::string name, size, share;
  };
  const double total_;
  double divisor_ = 1;
  int decimals_ = 0;
  std::vector<Row> rows_;
};

}  // namespace

Arena::~Arena() {
  for (const Part& part : parts_) {
    if (part.base != nullptr) part.memory->Free(part.base, part.bytes);
  }
}

void Arena::DeclareBytes(std::string block_name, size_t count, size_t element_bytes,
                         ArenaPart part) {
  CONVENE_CHECK(!built_);
  size_t bytes = 0;
  size_t end = 0;
  if (__builtin_mul_overflow(count, element_bytes, &bytes) ||
      __builtin_add_overflow(total_bytes(), bytes, &end) ||
      __builtin_add_overflow(end, kRoundingRoom, &end)) {
    if (too_large_.empty()) too_large_ = block_name;
    bytes = 0;
  }
  blocks_.push_back({.name = std::move(block_name), .part = part, .bytes = bytes});
  parts_[static_cast<size_t>(part)].bytes += RoundUp(bytes, kAlignment);
}

absl::Status Arena::Build() {
  CONVENE_CHECK(!built_);
  built_ = true;
  if (!too_large_.empty()) {
    return absl::ResourceExhaustedError(absl::StrCat("arena \"", name_, "\": block \"", too_large_,
                                                     "\" is larger than the address space\n",
                                                     PlanToString()));
  }
  for (Part& part : parts_) {
    if (part.bytes == 0) continue;
    const absl::StatusOr<void*> base = part.memory->Allocate(part.bytes);
    if (!base.ok() && !absl::IsResourceExhausted(base.status())) return base.status();
    if (!base.ok()) {
      return absl::ResourceExhaustedError(
          absl::StrCat("arena \"", name_, "\": ", base.status().message(), "\n", PlanToString()));
    }
    part.base = static_cast<char*>(*base);
  }
  return absl::OkStatus();
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
    line.bytes += RoundUp(block.bytes, kAlignment);
    ++line.blocks;
  }
  std::stable_sort(lines.begin(), lines.end(),
                   [](const Line& a, const Line& b) { return a.bytes > b.bytes; });
  PlanTable table(name_, total_bytes());
  size_t shown = 0;
  size_t shown_bytes = 0;
  for (const Line& line : lines) {
    // The last line of few bytes stands for itself.
    if (line.bytes < total_bytes() / kSmallestShare && shown + 1 < lines.size()) break;
    table.Add(absl::StrCat(line.name, line.blocks > 1 ? absl::StrCat(" x ", line.blocks) : "",
                           line.part == ArenaPart::kCollective ? " *" : ""),
              line.bytes);
    shown_bytes += line.bytes;
    ++shown;
  }
  if (shown < lines.size()) {
    table.Add(absl::StrCat(lines.size() - shown, " smaller"), total_bytes() - shown_bytes);
  }
  table.Add("total", total_bytes());
  const size_t collective_bytes = parts_[static_cast<size_t>(ArenaPart::kCollective)].bytes;
  if (collective_bytes > 0) table.Add("* for collectives", collective_bytes);
  if (in_lent_bytes_ > 0) table.Add("besides, in lent blocks", in_lent_bytes_);
  return table.ToString();
}

}  // namespace convene::worker
