// PURE. A bench for people: nccl-tests' columns, the table of pairs, and two runs side by side.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "worker_runtime/bench/bench_flags.h"
#include "worker_runtime/bench/result.h"

namespace convene::worker {

// nccl-tests' busbw, in bytes a second.
double BusBandwidth(const BenchRow& row, int ranks);

// Comment lines, each with its newline: where the ranks are, and the columns.
std::string BenchHead(const BenchResult& result, const BenchFlags& flags);
// One line, with its newline.
std::string BenchLine(const BenchRow& row, const BenchResult& result, const BenchFlags& flags);
// The arithmetic of a rank: a head of comment lines, and a line a row.
std::string ComputeText(const std::vector<ComputeRow>& rows);
// Comment lines: "# Out of bounds values : 0 OK" and "# Avg bus bandwidth    : 1.2", as nccl-tests
// has them.
std::string BenchFoot(const BenchResult& result);

// A link or a member that is slower than the rest, in words.
struct SlowSpots {
  double usual = 0;          // of the links' upper quartile, in bytes a second
  std::vector<int> members;  // whose median link has less than 0.7 of the usual
  // More than half of the members are so: none is named, for the reason is not one of theirs.
  bool is_uneven = false;
  // With less than 0.7 of the usual, and of the median links of both ends; the slowest first.
  std::vector<std::pair<int, int>> links;
};
SlowSpots FindSlowSpots(const PairTable& table);
// The table (of at most 16 members; else the slowest links alone) and the slow spots by name.
std::string PairsText(const PairTable& table);

// Each row that both have, with the ratio of their bandwidths, and the pairs likewise. The text
// says where the two runs differ in ranks, transport or type.
std::string ComparisonText(const BenchResult& before, const BenchResult& now);

}  // namespace convene::worker
