#include "worker_runtime/profile/comm_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "worker_runtime/comm/collective.h"

namespace convene::worker {
namespace {

// The same line of several ranks.
using OfRanks = std::vector<std::pair<int, const CommLine*>>;

bool IsMessage(absl::string_view operation) { return operation == kSend || operation == kReceive; }

const CommLine& Median(const OfRanks& line) { return *line[(line.size() - 1) / 2].second; }

// Each line's ranks by their times, the shortest first; the lines by their medians, the longest
// first.
std::vector<OfRanks> Sorted(const std::vector<CommSheet>& sheets) {
  std::vector<OfRanks> lines;
  for (size_t rank = 0; rank < sheets.size(); ++rank) {
    for (const CommLine& one : sheets[rank].lines) {
      auto line = std::find_if(lines.begin(), lines.end(), [&](const OfRanks& known) {
        return IsSameLine(*known.front().second, one);
      });
      if (line == lines.end()) line = lines.insert(line, OfRanks());
      line->emplace_back(static_cast<int>(rank), &one);
    }
  }
  for (OfRanks& line : lines) {
    std::stable_sort(line.begin(), line.end(), [](const auto& a, const auto& b) {
      return a.second->seconds < b.second->seconds;
    });
  }
  std::stable_sort(lines.begin(), lines.end(), [](const OfRanks& a, const OfRanks& b) {
    return Median(a).seconds > Median(b).seconds;
  });
  return lines;
}

std::string BandwidthText(const CommLine& line) {
  if (IsMessage(line.operation) || line.seconds <= 0) {
    return absl::StrFormat("%11s %11s %7s", "-", "-", "-");
  }
  const double algbw = static_cast<double>(line.bytes) / line.seconds / 1e9;
  return absl::StrFormat("%11.3f %11.3f %6.1f%%", algbw,
                         algbw * BusFactor(line.operation, static_cast<int>(line.ranks)),
                         100 * line.hidden_seconds / line.seconds);
}

}  // namespace

std::string CommTable(const std::vector<CommSheet>& sheets, int64_t steps) {
  if (steps == 0) return "";
  const auto per_step = [&](double value) { return value / static_cast<double>(steps); };
  std::string text = absl::StrFormat("%-28s %5s %10s %10s %9s %11s %11s %7s  %s\n",
                                     absl::StrFormat("communication of %d steps", steps), "ranks",
                                     "calls/step", "MB/call", "ms/step", "algbw GB/s", "busbw GB/s",
                                     "hidden", "shortest, longest ms/step");
  for (const OfRanks& line : Sorted(sheets)) {
    const CommLine& median = Median(line);
    const auto calls = static_cast<double>(median.calls);
    absl::StrAppendFormat(&text, "%-28s %5d %10.1f %10.3f %9.2f %s  %.2f rank %d, %.2f rank %d\n",
                          absl::StrCat(median.axis, " ", median.operation), line.size(),
                          per_step(calls), static_cast<double>(median.bytes) / calls / 1e6,
                          per_step(1e3 * median.seconds), BandwidthText(median),
                          per_step(1e3 * line.front().second->seconds), line.front().first,
                          per_step(1e3 * line.back().second->seconds), line.back().first);
  }
  int64_t left_out = 0;
  for (const CommSheet& sheet : sheets) left_out += sheet.left_out;
  if (left_out > 0) {
    absl::StrAppendFormat(&text, "not in this table: %d calls, for which a step had no room\n",
                          left_out);
  }
  return text;
}

}  // namespace convene::worker
