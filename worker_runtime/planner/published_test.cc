// The planner against step times that other systems have published. testing/published.h says which
// rows were fitted and which are judged.
#include <cmath>
#include <map>
#include <string>

#include "catch2/catch.hpp"
#include "worker_runtime/planner/testing/published.h"

namespace convene::worker {
namespace {

constexpr double kTolerance = 0.15;

// Judged rows beyond 15 %, each with the planned step time over the published one, and a likely
// reason. The test fails where one of them comes within, too, so that the list stays true.
const std::map<std::string, std::string>& RowsBeyond() {
  static const auto* const rows = new std::map<std::string, std::string>{
      {"megatron 4",
       "1.22: a rank's one network card has 4 billion gradients and weights to carry beside the "
       "one "
       "micro batch that the planner finds best; the table has no micro batch"},
      {"bridge 4", "0.79: the fitted rows are of H100, this one is of B200"},
      {"bridge-moe 2", "none: ep spans tp there; here it divides dp x cp, so it is not legal"},
      {"bridge-moe 4",
       "2.7: each tp rank sends half of the tokens there, all of them here, and products run "
       "beside the messages there"},
      {"nanotron 10",
       "0.36: the layout is no cause: the table has this model at twice the MFU on twice the GPUs; "
       "66 GB of 80 were taken, and the table does not say how tp's sums were sent"},
      {"nanotron 14",
       "0.80: the same, a little: with twice the stages, so with a larger bubble, the table has a "
       "higher MFU"},
      {"nanotron 24",
       "1.26: 127 hops for each bucket are half of the step; the table does not say how many of a "
       "bucket's tensors go at once"},
      {"nanotron 26",
       "0.85: tp 16 spans two nodes, whose sums are taken for as well hidden as those of one"},
  };
  return *rows;
}

TEST_CASE("judged rows are within 15 %, but for those that are listed") {
  std::map<std::string, int> numbers;
  for (const testing::PublishedRow& row : testing::PublishedRows()) {
    const int number = ++numbers[row.system];
    if (number % 2 == 1) continue;
    const std::string name = row.system + " " + std::to_string(number);
    const double ratio = testing::RatioOf(row);
    INFO(name << ", " << row.what << ": published " << row.tokens_per_gpu
              << " tokens/s a GPU, planned " << ratio << " of it");
    const double step = ratio > 0 ? 1 / ratio : 0;  // the planned step over the published one
    const bool is_within = std::abs(step - 1) <= kTolerance;
    CHECK(is_within == (RowsBeyond().count(name) == 0));
  }
}

TEST_CASE("rows that the constants never saw are within 8 %") {
  for (const testing::PublishedRow& row : testing::BlindRows()) {
    const double ratio = testing::RatioOf(row);
    INFO(row.what << ": " << ratio << " of the published tokens/s");
    CHECK(ratio == Approx(1).epsilon(0.08));
  }
}

TEST_CASE("the constants of a system are the mean of its odd rows") {
  std::map<std::string, int> numbers;
  std::map<std::string, std::pair<double, int>> sums;
  for (const testing::PublishedRow& row : testing::PublishedRows()) {
    if (++numbers[row.system] % 2 == 0) continue;
    const double ratio = testing::RatioOf(row);
    INFO(row.system << ", " << row.what);
    REQUIRE(ratio > 0);
    sums[row.system].first += std::log(ratio);
    ++sums[row.system].second;
  }
  CHECK(sums.size() == 8);
  for (const auto& [system, sum] : sums) {
    INFO(system);
    CHECK(std::exp(sum.first / sum.second) == Approx(1).epsilon(0.02));
  }
}

TEST_CASE("a weak scaling from 8 to 128 GPUs loses as little as torchtitan's") {
  const std::vector<testing::PublishedRow> rows = testing::PublishedRows();
  // Published: 6,514 of 6,667 tokens/s a GPU.
  const double published = rows[2].tokens_per_gpu / rows[0].tokens_per_gpu;
  const double planned = testing::RatioOf(rows[2]) / testing::RatioOf(rows[0]) * published;
  CHECK(planned == Approx(published).epsilon(0.03));
}

}  // namespace
}  // namespace convene::worker
