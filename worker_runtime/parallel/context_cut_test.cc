#include "worker_runtime/parallel/context_cut.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>
#include <string>
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

TEST_CASE("at each step of a ring all pairs meet that see each other, and no others") {
  for (const int size : {2, 3, 5}) {
    const int length = 6 * size;
    for (int rank = 0; rank < size; ++rank) {
      const ContextCut cut = {ContextMethod::kRing, size, rank, length};
      const std::vector<int32_t> queries = cut.Positions();
      for (int owner = 0; owner < size; ++owner) {
        INFO(size << " ranks, the keys of " << owner << " on " << rank);
        const auto keys = ContextPositions(ContextMethod::kRing, length, size, owner);
        const RingPart part = RingPartOf(cut, owner);
        CHECK(part.is_in_order == (owner == rank));
        for (int i = 0; i < cut.local_length(); ++i) {
          for (int j = 0; j < cut.local_length(); ++j) {
            const bool meets = i >= part.first_query && i < part.first_query + part.queries &&
                               j >= part.first_key && j < part.first_key + part.keys;
            const bool is_seen = keys[j] <= queries[i];
            CHECK(is_seen == (part.is_in_order ? meets && j <= i : meets));
          }
        }
      }
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

TEST_CASE("heads that do not come out even are refused with sizes that do") {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  for (const ContextMethod method : kMethods) {
    CHECK_OK(ValidateContextHeads(method, 1, 8, 7, 3, 1));
    CHECK(ContextMultiple(method, 1) == 1);
  }
  CHECK(ContextMultiple(ContextMethod::kRing, 4) == 8);
  CHECK(ContextMultiple(ContextMethod::kUlysses, 4) == 4);
  CHECK_OK(ValidateContextHeads(ContextMethod::kRing, 4, 8, 16, 3, 1));
  CHECK_OK(ValidateContextHeads(ContextMethod::kUlysses, 4, 8, 100, 8, 4));
  const auto refused = [](int size_max, int64_t length) {
    return ValidateContextHeads(ContextMethod::kUlysses, 3, size_max, length, 8, 8);
  };
  CHECK_STATUS(refused(8, 24), kInvalid,
               "cp_method ulysses splits the 8 query and 8 key-value heads of a tensor-parallel "
               "rank over cp_size 3, which does not come out even: cp_size can be 1, 2, 4, 8; or "
               "choose cp_method ring or allgather");
  const std::string few(refused(3, 128).message());
  CHECK_THAT(few, Catch::EndsWith("cp_size can be 1, 2"));
}

}  // namespace
}  // namespace convene::worker
