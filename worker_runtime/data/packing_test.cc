#include "worker_runtime/data/packing.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "tools/base/testing/status_testing.h"

namespace convene::worker {
namespace {

using Lengths = std::vector<int64_t>;
using Rows = std::vector<std::vector<uint32_t>>;

Packing Pack(int row_tokens, const Lengths& lengths, bool drop_too_long = false) {
  auto packing =
      Packing::Pack(row_tokens, static_cast<int64_t>(lengths.size()),
                    [&](int64_t i) { return lengths[i]; }, {.drop_too_long = drop_too_long});
  REQUIRE_OK(packing);
  return *std::move(packing);
}

Rows RowsOf(const Packing& packing) {
  Rows rows;
  for (int64_t row = 0; row < packing.row_count(); ++row) {
    rows.emplace_back(packing.Row(row).begin(), packing.Row(row).end());
  }
  return rows;
}

TEST_CASE("each document goes where it leaves the least room") {
  // 7 opens a row with 3 left, 6 one with 4; the first 4 fills the second, 3 the first.
  CHECK(RowsOf(Pack(10, {3, 4, 6, 7})) == Rows{{0, 3}, {1, 2}});
  // Equal lengths in their own order.
  CHECK(RowsOf(Pack(4, {2, 2, 2, 2, 2})) == Rows{{0, 1}, {2, 3}, {4}});
  CHECK(RowsOf(Pack(4, {4, 4})) == Rows{{0}, {1}});
}

TEST_CASE("documents that are too long are cut or dropped, too short ones dropped, all counted") {
  const Lengths lengths = {0, 1, 2, 5, 9};
  const Packing cut = Pack(5, lengths);
  CHECK(RowsOf(cut) == Rows{{3}, {4}, {2}});
  CHECK(cut.counts().documents == 5);
  CHECK(cut.counts().rows == 3);
  CHECK(cut.counts().tokens == 12);
  CHECK(cut.counts().cut == 1);
  CHECK(cut.counts().dropped == 0);
  CHECK(cut.counts().too_short == 2);
  CHECK(cut.counts().lost_tokens == 5);
  const Packing dropped = Pack(5, lengths, /*drop_too_long=*/true);
  CHECK(RowsOf(dropped) == Rows{{3}, {2}});
  CHECK(dropped.counts().cut == 0);
  CHECK(dropped.counts().dropped == 1);
  CHECK(dropped.counts().lost_tokens == 10);
}

TEST_CASE("no documents, no rows") {
  CHECK(Pack(5, {}).row_count() == 0);
  CHECK(Pack(5, {0, 1, 1}).row_count() == 0);
  CHECK(Pack(1, {2, 3}).row_count() == 2);
}

TEST_CASE("no row overflows, no document is lost, and few tokens are padding") {
  std::mt19937 random(7);
  for (const int row_tokens : {2, 63, 64, 65, 1000, 4096, 5000, 300000}) {
    Lengths lengths(3000);
    // Most are short, some as long as a row.
    for (int64_t& length : lengths) {
      length = 2 + static_cast<int64_t>(random() % (1 + random() % row_tokens));
      length = std::min<int64_t>(length, row_tokens);
    }
    INFO("rows of " << row_tokens);
    const Packing packing = Pack(row_tokens, lengths);
    std::vector<int> seen(lengths.size());
    for (const std::vector<uint32_t>& row : RowsOf(packing)) {
      int64_t tokens = 0;
      for (const uint32_t document : row) {
        ++seen[document];
        tokens += lengths[document];
      }
      CHECK(tokens <= row_tokens);
      CHECK(std::is_sorted(row.begin(), row.end()));
      CHECK_FALSE(row.empty());
    }
    CHECK(seen == std::vector<int>(lengths.size(), 1));
    const int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
    CHECK(packing.counts().tokens == tokens);
    const double filled =
        static_cast<double>(tokens) / (static_cast<double>(packing.row_count()) * row_tokens);
    CHECK(filled > 0.98);
  }
}

TEST_CASE("the same documents are packed alike every time") {
  std::mt19937 random(8);
  Lengths lengths(500);
  for (int64_t& length : lengths) length = static_cast<int64_t>(random() % 200);
  CHECK(RowsOf(Pack(128, lengths)) == RowsOf(Pack(128, lengths)));
}

}  // namespace
}  // namespace convene::worker
