#include "worker_runtime/parallel/context_cut.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>
#include <vector>

#include "tools/base/testing/status_testing.h"

namespace convene::worker {
namespace {

constexpr ContextMethod kMethods[] = {ContextMethod::kRing, ContextMethod::kAllGather,
                                      ContextMethod::kUlysses};

TEST_CASE("ranks have an early and a late chunk each, or one part") {
  using Positions = std::vector<int32_t>;
  for (const ContextMethod method : {ContextMethod::kRing, ContextMethod::kAllGather}) {
    CHECK(ContextPositions(method, 8, 2, 0) == Positions{0, 1, 6, 7});
    CHECK(ContextPositions(method, 8, 2, 1) == Positions{2, 3, 4, 5});
    CHECK(ContextPositions(method, 6, 3, 1) == Positions{1, 4});
  }
  CHECK(ContextPositions(ContextMethod::kUlysses, 8, 2, 1) == Positions{4, 5, 6, 7});
  CHECK(ContextPositions(ContextMethod::kUlysses, 3, 3, 2) == Positions{2});
}

TEST_CASE("the ranks' tokens rise, and together they are the row; a rank alone has an odd one") {
  for (const ContextMethod method : kMethods) {
    for (const int size : {1, 2, 3, 4, 8}) {
      const int length = size == 1 ? 7 : size * 6;
      std::vector<int32_t> all;
      for (int rank = 0; rank < size; ++rank) {
        const std::vector<int32_t> own = ContextPositions(method, length, size, rank);
        CHECK(static_cast<int>(own.size()) == length / size);
        CHECK(std::is_sorted(own.begin(), own.end()));
        all.insert(all.end(), own.begin(), own.end());
      }
      std::sort(all.begin(), all.end());
      std::vector<int32_t> row(length);
      std::iota(row.begin(), row.end(), 0);
      CHECK(all == row);
    }
  }
}

TEST_CASE("causal attention is the same work on every rank of a ring") {
  for (const int size : {2, 3, 8}) {
    for (int rank = 0; rank < size; ++rank) {
      const auto positions = ContextPositions(ContextMethod::kRing, size * 10, size, rank);
      CHECK(std::accumulate(positions.begin(), positions.end(), 0) ==
            static_cast<int>(positions.size()) * (size * 10 - 1) / 2);
    }
  }
}

TEST_CASE("a rank takes its tokens of every row; by heads the op has all queries") {
  const std::vector<int32_t> rows = {0, 1, 2, 3, 10, 11, 12, 13};
  const ContextCut ring = {ContextMethod::kRing, 2, 1, 4};
  std::vector<int32_t> own(4);
  CutRows(ring.Positions(), 4, 2, rows.data(), own.data());
  CHECK(own == std::vector<int32_t>{1, 2, 11, 12});
  CHECK(ring.QueryPositions() == ring.Positions());
  const ContextCut ulysses = {ContextMethod::kUlysses, 2, 1, 4};
  CHECK(ulysses.Positions() == std::vector<int32_t>{2, 3});
  CHECK(ulysses.QueryPositions() == std::vector<int32_t>{0, 1, 2, 3});
}

TEST_CASE("a cut that does not come out even names the nearest that do") {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  for (const ContextMethod method : kMethods) CHECK_OK(ValidateContext(method, 1, 7, 3, 1));
  CHECK_OK(ValidateContext(ContextMethod::kRing, 4, 16, 3, 1));
  CHECK_STATUS(ValidateContext(ContextMethod::kRing, 4, 100, 8, 8), kInvalid,
               "cp_method ring cuts sequence_length 100 into 8 equal chunks for cp_size 4, which "
               "does not come out even: choose sequence_length 96 or 104");
  CHECK_STATUS(ValidateContext(ContextMethod::kAllGather, 4, 7, 8, 8), kInvalid,
               "choose sequence_length 8");
  CHECK_OK(ValidateContext(ContextMethod::kUlysses, 4, 100, 8, 4));
  CHECK_STATUS(ValidateContext(ContextMethod::kUlysses, 4, 101, 8, 4), kInvalid,
               "into 4 equal chunks for cp_size 4, which does not come out even: choose "
               "sequence_length 100 or 104");
  CHECK_STATUS(ValidateContext(ContextMethod::kUlysses, 4, 16, 8, 2), kInvalid,
               "cp_method ulysses splits the 8 query and 2 key-value heads of a tensor-parallel "
               "rank over cp_size 4, which does not come out even: cp_size can be 1, 2; or "
               "choose cp_method ring or allgather");
}

}  // namespace
}  // namespace convene::worker
