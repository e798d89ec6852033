#include "worker_runtime/bench/report.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "tools/base/text.h"
#include "worker_runtime/comm/collective.h"

namespace convene::worker {
namespace {

constexpr double kSlowShare = 0.7;
constexpr int kTableMembersMax = 16;
constexpr size_t kNamedMax = 8;
constexpr double kGiga = 1e9;

// The value below which this share of them lies; of an even number's middle the upper.
double Quantile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  const auto place =
      values.begin() + static_cast<std::ptrdiff_t>(static_cast<double>(values.size()) * share);
  std::nth_element(values.begin(), place, values.end());
  return *place;
}

// "node1 (ranks 0-3), node2 (rank 4)"
std::string Places(const std::vector<std::string>& hosts) {
  std::vector<std::string> places;
  for (size_t first = 0; first < hosts.size();) {
    size_t end = first;
    while (end < hosts.size() && hosts[end] == hosts[first]) ++end;
    const std::string ranks = end - first == 1 ? absl::StrCat("rank ", first)
                                               : absl::StrCat("ranks ", first, "-", end - 1);
    places.push_back(absl::StrCat(Printable(hosts[first]), " (", ranks, ")"));
    first = end;
  }
  return JoinCapped(places, kNamedMax);
}

std::string LinkText(const PairTable& table, int from, int to) {
  return absl::StrFormat("%s - %s: %.3f GB/s", Printable(table.members[from]),
                         Printable(table.members[to]),
                         table.bytes_per_second[from * table.members.size() + to] / kGiga);
}

// Each link once, the slowest first.
std::vector<std::pair<int, int>> LinksBySpeed(const PairTable& table) {
  const int size = static_cast<int>(table.members.size());
  std::vector<std::pair<int, int>> links;
  for (int from = 0; from < size; ++from) {
    for (int to = from + 1; to < size; ++to) links.emplace_back(from, to);
  }
  std::stable_sort(links.begin(), links.end(), [&](const auto& a, const auto& b) {
    return table.bytes_per_second[a.first * size + a.second] <
           table.bytes_per_second[b.first * size + b.second];
  });
  return links;
}

std::string Matrix(const PairTable& table, const std::vector<double>& values, double unit) {
  const size_t size = table.members.size();
  std::string text = "#     ";
  for (size_t to = 0; to < size; ++to) absl::StrAppendFormat(&text, " %8d", to);
  text += "\n";
  for (size_t from = 0; from < size; ++from) {
    absl::StrAppendFormat(&text, "%5d ", from);
    for (size_t to = 0; to < size; ++to) {
      if (from == to) {
        absl::StrAppendFormat(&text, " %8s", "-");
      } else {
        absl::StrAppendFormat(&text, " %8.3f", values[from * size + to] / unit);
      }
    }
    absl::StrAppend(&text, "   ", Printable(table.members[from]), "\n");
  }
  return text;
}

std::string Change(double before, double now) {
  return absl::StrFormat("%12.3f %12.3f %8.2fx%s\n", before / kGiga, now / kGiga, now / before,
                         now < 0.9 * before ? "  slower" : "");
}

// Lines of Change, under their head. `unit`: a billion of it a second.
void AddCompared(const char* what, const char* unit, const std::string& lines, std::string* text) {
  if (lines.empty()) return;
  const auto column = [unit](const char* when) { return absl::StrCat(when, " (", unit, ")"); };
  absl::StrAppendFormat(text, "#%-28s %12s %12s %9s\n", what, column("then"), column("now"),
                        "now/then");
  *text += lines;
}

// One rank alone moves nothing to others: the size it was asked for counts.
double ComparedBandwidth(const BenchRow& row, int ranks) {
  return ranks == 1 ? row.algorithm_bandwidth() : BusBandwidth(row, ranks);
}

// The row of `before` with the same operation and size; null: there is none. Sizes are whole shards
// (sweep.cc), so another number of ranks makes of one size two that differ by less than a shard's
// element for each rank.
const BenchRow* RowLike(const BenchRow& row, int ranks, const BenchResult& before) {
  const int64_t element = row.count > 0 ? row.bytes / row.count : 1;
  const int64_t slack = ranks == before.ranks ? 0 : std::max(ranks, before.ranks) * element - 1;
  const BenchRow* nearest = nullptr;
  const auto distance = [&row](const BenchRow& other) { return std::abs(other.bytes - row.bytes); };
  for (const BenchRow& each : before.rows) {
    if (each.operation != row.operation || distance(each) > slack) continue;
    if (nearest == nullptr || distance(each) < distance(*nearest)) nearest = &each;
  }
  return nearest;
}

void CompareRows(const BenchResult& before, const BenchResult& now, std::string* text) {
  std::string lines;
  for (const BenchRow& row : now.rows) {
    const BenchRow* const then = RowLike(row, now.ranks, before);
    if (then == nullptr) continue;
    absl::StrAppendFormat(&lines, " %-15s %12d ", row.operation, row.bytes);
    lines += Change(ComparedBandwidth(*then, before.ranks), ComparedBandwidth(row, now.ranks));
  }
  AddCompared(" operation            size(B)", "GB/s", lines, text);
  if (!now.rows.empty() && lines.empty()) {
    *text += "# The saved run has none of these operations at these sizes.\n";
  }
}

// Products and attention by their FLOPs, passes by their bytes.
void CompareCompute(const BenchResult& before, const BenchResult& now, std::string* text) {
  const auto speed = [](const ComputeRow& row) {
    return (row.flops > 0 ? row.flops : row.bytes) / row.seconds;
  };
  std::map<std::tuple<std::string, DType, int64_t, int64_t>, double> rows;
  for (const ComputeRow& row : before.compute) {
    rows[{row.operation, row.dtype, row.rows, row.width}] = speed(row);
  }
  std::string with_flops, passes;
  for (const ComputeRow& row : now.compute) {
    const auto then = rows.find({row.operation, row.dtype, row.rows, row.width});
    if (then == rows.end()) continue;
    std::string& lines = row.flops > 0 ? with_flops : passes;
    absl::StrAppendFormat(&lines, " %-9s %4s %6d %6d ", row.operation, DTypeName(row.dtype),
                          row.rows, row.width);
    lines += Change(then->second, speed(row));
  }
  const char* const head = " compute   type   rows  width";
  AddCompared(head, "GFLOP/s", with_flops, text);
  AddCompared(head, "GB/s", passes, text);
  if (!now.compute.empty() && with_flops.empty() && passes.empty()) {
    *text += "# The saved run has none of this arithmetic.\n";
  }
}

// The members may stand in another order.
std::pair<std::string, std::string> LinkOf(const PairTable& table, int from, int to) {
  return std::minmax({table.members[from], table.members[to]});
}

void ComparePairs(const PairTable& before, const PairTable& now, std::string* text) {
  std::map<std::pair<std::string, std::string>, double> links;
  for (const auto& [from, to] : LinksBySpeed(before)) {
    links[LinkOf(before, from, to)] = before.bytes_per_second[from * before.members.size() + to];
  }
  std::string lines;
  for (const auto& [from, to] : LinksBySpeed(now)) {
    const auto then = links.find(LinkOf(now, from, to));
    if (then == links.end()) continue;
    absl::StrAppendFormat(
        &lines, " %-28s ",
        absl::StrCat(Printable(then->first.first), " - ", Printable(then->first.second)));
    lines += Change(then->second, now.bytes_per_second[from * now.members.size() + to]);
  }
  AddCompared(" pair", "GB/s", lines, text);
  if (lines.empty()) *text += "# The saved run has none of these pairs.\n";
}

}  // namespace

double BusBandwidth(const BenchRow& row, int ranks) {
  const auto kind = OperationNamed(row.operation);
  const double factor = kind.has_value() ? BusFactor(CollectiveName(*kind), ranks) : 1;
  return row.algorithm_bandwidth() * factor;
}

std::string BenchHead(const BenchResult& result, const BenchFlags& flags) {
  std::string text = absl::StrCat(
      "# convene bench: ", result.ranks, result.ranks == 1 ? " rank" : " ranks", " over ",
      result.transport, ": ", Places(result.hosts), "\n# rank 0: ", Printable(result.device), "\n");
  if (!TimesOperations(flags)) return text;
  absl::StrAppend(&text, "# ", flags.warmup_iterations, " warmup iters, ", flags.iterations,
                  " iters, the slowest rank's mean; results are ",
                  flags.check ? "checked" : "not checked", "\n");
  absl::StrAppendFormat(&text, "#%-15s %12s %12s %9s %6s %5s %11s %9s %9s %7s\n", " operation",
                        "size(B)", "count", "type", "redop", "root", "time(us)", "algbw", "busbw",
                        "#wrong");
  absl::StrAppendFormat(&text, "#%-15s %12s %12s %9s %6s %5s %11s %9s %9s %7s\n", "", "", "", "",
                        "", "", "", "(GB/s)", "(GB/s)", "");
  return text;
}

std::string BenchLine(const BenchRow& row, const BenchResult& result, const BenchFlags& flags) {
  const bool reduces = row.operation == "all_reduce" || row.operation == "reduce_scatter";
  // As in nccl-tests: of these the elements of one rank's part.
  const bool is_cut = row.operation == "all_gather" || row.operation == "reduce_scatter" ||
                      row.operation == "all_to_all";
  return absl::StrFormat(
      " %-15s %12d %12d %9s %6s %5s %11.2f %9.3f %9.3f %7s\n", row.operation, row.bytes,
      is_cut ? row.count / result.ranks : row.count, result.dtype, reduces ? result.op : "none",
      row.operation == "broadcast" ? absl::StrCat(flags.root) : "-1", row.seconds * 1e6,
      row.algorithm_bandwidth() / kGiga, BusBandwidth(row, result.ranks) / kGiga,
      row.wrong.has_value() ? absl::StrCat(*row.wrong) : "N/A");
}

std::string ComputeText(const std::vector<ComputeRow>& rows) {
  std::string text = absl::StrFormat("#%-15s %9s %12s %12s %11s %9s %9s\n", " compute", "type",
                                     "rows", "width", "time(us)", "TFLOP/s", "GB/s");
  for (const ComputeRow& row : rows) {
    absl::StrAppendFormat(&text, " %-15s %9s %12d %12d %11.2f %9.3f %9.3f\n", row.operation,
                          DTypeName(row.dtype), row.rows, row.width, row.seconds * 1e6,
                          row.flops / row.seconds / 1e12, row.bytes / row.seconds / kGiga);
  }
  return text;
}

std::string BenchFoot(const BenchResult& result) {
  int64_t wrong = 0;
  double sum = 0;
  for (const BenchRow& row : result.rows) {
    wrong += row.wrong.value_or(0);
    sum += BusBandwidth(row, result.ranks);
  }
  const double mean = result.rows.empty() ? 0 : sum / static_cast<double>(result.rows.size());
  return absl::StrFormat("# Out of bounds values : %d %s\n# Avg bus bandwidth    : %g\n", wrong,
                         wrong == 0 ? "OK" : "FAILED", mean / kGiga);
}

SlowSpots FindSlowSpots(const PairTable& table) {
  const int size = static_cast<int>(table.members.size());
  const auto speed = [&](int from, int to) { return table.bytes_per_second[from * size + to]; };
  SlowSpots spots;
  std::vector<double> all;
  for (const auto& [from, to] : LinksBySpeed(table)) all.push_back(speed(from, to));
  // One slow member of three has two thirds of the links: the median would be slow as well.
  spots.usual = Quantile(all, 0.75);
  std::vector<double> medians;
  for (int member = 0; member < size; ++member) {
    std::vector<double> own;
    for (int other = 0; other < size; ++other) {
      if (other != member) own.push_back(speed(member, other));
    }
    medians.push_back(Quantile(own, 0.5));
    if (medians.back() < kSlowShare * spots.usual) spots.members.push_back(member);
  }
  spots.is_uneven = static_cast<int>(spots.members.size()) * 2 > size;
  if (spots.is_uneven) spots.members.clear();
  for (const auto& [from, to] : LinksBySpeed(table)) {
    // A slow member's links are as slow as itself.
    const double expected = std::min({spots.usual, medians[from], medians[to]});
    if (speed(from, to) < kSlowShare * expected) spots.links.emplace_back(from, to);
  }
  return spots;
}

std::string PairsText(const PairTable& table) {
  const int size = static_cast<int>(table.members.size());
  std::string text;
  if (size <= kTableMembersMax) {
    absl::StrAppend(&text, "# GB/s of each direction, both at once, in messages of ",
                    HumanBytes(static_cast<double>(table.bytes)), "\n",
                    Matrix(table, table.bytes_per_second, kGiga),
                    "# microseconds of a small message each way\n",
                    Matrix(table, table.latency_seconds, 1e-6));
  } else {
    text = "# The slowest links:\n";
    const auto links = LinksBySpeed(table);
    for (size_t i = 0; i < std::min(links.size(), kNamedMax); ++i) {
      absl::StrAppend(&text, "  ", LinkText(table, links[i].first, links[i].second), "\n");
    }
  }
  const SlowSpots spots = FindSlowSpots(table);
  absl::StrAppendFormat(&text, "# A usual link (upper quartile) has %.3f GB/s.\n",
                        spots.usual / kGiga);
  if (spots.is_uneven) {
    text +=
        "# Most links of more than half of the members have less than 0.7 of that: the links "
        "differ by place (racks, switches), or other work runs on the nodes. Measure again when "
        "they are idle.\n";
  }
  for (const int member : spots.members) {
    absl::StrAppend(&text, "# SLOW: ", Printable(table.members[member]),
                    ": most of its links have less than 0.7 of that. Look at its network "
                    "card, cable, and NUMA place (`convene doctor` there).\n");
  }
  for (size_t i = 0; i < std::min(spots.links.size(), kNamedMax); ++i) {
    absl::StrAppend(&text, "# SLOW: the link ",
                    LinkText(table, spots.links[i].first, spots.links[i].second),
                    ", much less than both have with others. Look at the switches and cables "
                    "between the two.\n");
  }
  if (spots.members.empty() && spots.links.empty() && !spots.is_uneven && size > 2) {
    text += "# No link has less than 0.7 of that.\n";
  }
  return text;
}

std::string ComparisonText(const BenchResult& before, const BenchResult& now) {
  std::string text = "#\n# Compared with the saved run\n";
  const auto differ = [&](const std::string& what, const auto& then, const auto& here) {
    if (then == here) return;
    absl::StrAppend(&text, "# The saved run has another ", what, ": ",
                    Printable(absl::StrCat(then)), ", now ", here, ".\n");
  };
  differ("number of ranks", before.ranks, now.ranks);
  differ("transport", before.transport, now.transport);
  differ("type of elements", before.dtype, now.dtype);
  CompareRows(before, now, &text);
  CompareCompute(before, now, &text);
  if (before.pairs.has_value() && now.pairs.has_value()) {
    ComparePairs(*before.pairs, *now.pairs, &text);
  }
  return text;
}

}  // namespace convene::worker
