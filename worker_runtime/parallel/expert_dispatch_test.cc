#include "worker_runtime/parallel/expert_dispatch.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <random>
#include <vector>

#include "tools/base/testing/status_testing.h"

namespace convene::worker {
namespace {

constexpr int kRows = 13;

// Each token's experts, distinct; `skew`: so many of 8 tokens choose the first experts. Of those
// with `padding` each third goes to none.
std::vector<int32_t> Choices(const DispatchShape& shape, int skew, int seed, bool padding = false) {
  std::mt19937 random(seed);
  std::vector<int32_t> chosen, experts(shape.experts);
  for (int token = 0; token < shape.ranks * shape.rows; ++token) {
    for (int e = 0; e < shape.experts; ++e) experts[e] = e;
    if (static_cast<int>(random() % 8) >= skew) {
      std::shuffle(experts.begin(), experts.end(), random);
    }
    if (padding && token % 3 == 1) std::fill(experts.begin(), experts.end(), -1);
    chosen.insert(chosen.end(), experts.begin(), experts.begin() + shape.chosen);
  }
  return chosen;
}

// A row's rank, token and expert, as one number.
int64_t Row(int rank, int token, int expert) { return (rank * 1000 + token) * 1000 + expert; }

// Moves rows by the plans of one chunk of all ranks, as AllToAllV does.
struct Way {
  Way(std::vector<ExpertDispatch>& ranks, const DispatchShape& shape,
      const std::vector<int32_t>& chosen)
      : sent(ranks.size()), arrived(ranks.size()), sorted(ranks.size()) {
    for (size_t r = 0; r < ranks.size(); ++r) {
      const ExpertDispatch& plan = ranks[r];
      const int32_t* const arrays = plan.arrays().data();
      const int choices = plan.rows() * shape.chosen;
      REQUIRE(std::count_if(plan.Places(arrays), plan.Places(arrays) + choices,
                            [](int32_t place) { return place >= 0; }) == plan.sent());
      for (int i = 0; i < plan.sent(); ++i) {
        const int token = plan.row_begin() + plan.SentFrom(arrays)[i];
        const int choice = plan.SentChoices(arrays)[i];
        REQUIRE(choice / shape.chosen == plan.SentFrom(arrays)[i]);
        REQUIRE(plan.Places(arrays)[choice] == i);
        const size_t at = (r * shape.rows + token) * shape.chosen + choice % shape.chosen;
        sent[r].push_back(Row(static_cast<int>(r), token, chosen[at]));
      }
    }
    for (size_t r = 0; r < ranks.size(); ++r) {
      for (size_t from = 0; from < ranks.size(); ++from) {
        const int32_t* const begin = ranks[from].sent_begin();
        const int32_t* const own = ranks[r].arrived_begin();
        REQUIRE(begin[r + 1] - begin[r] == own[from + 1] - own[from]);
        arrived[r].insert(arrived[r].end(), sent[from].begin() + begin[r],
                          sent[from].begin() + begin[r + 1]);
      }
      const int32_t* const arrays = ranks[r].arrays().data();
      REQUIRE(static_cast<int>(arrived[r].size()) == ranks[r].received());
      for (int i = 0; i < ranks[r].received(); ++i) {
        sorted[r].push_back(arrived[r][ranks[r].SortedFrom(arrays)[i]]);
        REQUIRE(ranks[r].ArrivedAt(arrays)[ranks[r].SortedFrom(arrays)[i]] == i);
        const int expert = ranks[r].ExpertOf(arrays)[i];
        REQUIRE(expert >= 0);
        REQUIRE(expert < shape.local_experts());
        REQUIRE(ranks[r].sorted_begin()[expert] <= i);
        REQUIRE(i < ranks[r].sorted_begin()[expert + 1]);
      }
    }
  }
  std::vector<std::vector<int64_t>> sent, arrived, sorted;
};

// Every choice of every token reaches its expert once, over all chunks.
void CheckWay(DispatchShape shape, const std::vector<int32_t>& chosen, bool is_chunked) {
  Arena host("test");
  std::vector<ExpertDispatch> ranks;
  for (shape.rank = 0; shape.rank < shape.ranks; ++shape.rank) ranks.emplace_back(shape, host);
  REQUIRE_OK(host.Build());
  for (ExpertDispatch& rank : ranks) {
    REQUIRE(rank.Route(chosen).is_chunked == is_chunked);
    REQUIRE(rank.chunks() == ranks.front().chunks());
  }
  std::vector<int64_t> seen, wanted;
  for (int chunk = 0; chunk < ranks.front().chunks(); ++chunk) {
    for (ExpertDispatch& rank : ranks) rank.Plan(chosen, chunk);
    const Way way(ranks, shape, chosen);
    for (int r = 0; r < shape.ranks; ++r) {
      REQUIRE(ranks[r].received() <= shape.bound);
      for (int local = 0; local < shape.local_experts(); ++local) {
        const int expert = r * shape.local_experts() + local;
        const int32_t begin = ranks[r].sorted_begin()[local];
        const int32_t end = ranks[r].sorted_begin()[local + 1];
        REQUIRE(std::is_sorted(way.sorted[r].begin() + begin, way.sorted[r].begin() + end));
        for (int32_t i = begin; i < end; ++i) REQUIRE(way.sorted[r][i] % 1000 == expert);
      }
      seen.insert(seen.end(), way.sorted[r].begin(), way.sorted[r].end());
    }
  }
  for (int rank = 0; rank < shape.ranks; ++rank) {
    for (int i = 0; i < shape.rows * shape.chosen; ++i) {
      const int expert = chosen[rank * shape.rows * shape.chosen + i];
      if (expert >= 0) wanted.push_back(Row(rank, i / shape.chosen, expert));
    }
  }
  std::sort(seen.begin(), seen.end());
  std::sort(wanted.begin(), wanted.end());
  REQUIRE(seen == wanted);
}

TEST_CASE("each token reaches each of its experts once, whatever the load") {
  for (const int ranks : {1, 2, 4, 8}) {
    for (const int chosen : {1, 2, 5, 8}) {
      for (const int skew : {0, 4, 8}) {
        DispatchShape shape = {.ranks = ranks, .rows = kRows, .chosen = chosen, .experts = 8};
        INFO("ranks " << ranks << " chosen " << chosen << " skew " << skew);
        shape.bound = MostReceived(shape, kRows);
        for (const bool padding : {false, true}) {
          CheckWay(shape, Choices(shape, skew, ranks * 100 + chosen, padding), false);
        }
      }
    }
  }
}

TEST_CASE("more tokens than a rank has room for go in chunks") {
  for (const int ranks : {2, 4}) {
    for (const int chosen : {1, 3}) {
      DispatchShape shape = {.ranks = ranks, .rows = kRows, .chosen = chosen, .experts = 8};
      for (const int tokens : {1, 2, 5, kRows - 1}) {
        shape.bound = MostReceived(shape, tokens);
        INFO("ranks " << ranks << " chosen " << chosen << " tokens " << tokens);
        CheckWay(shape, Choices(shape, 8, 7), true);
        if (tokens <= kRows / 2) CheckWay(shape, Choices(shape, 8, 7, /*padding=*/true), true);
      }
    }
  }
}

TEST_CASE("the room follows the load that is planned for") {
  const DispatchShape shape = {.ranks = 4, .rows = 100, .chosen = 2, .experts = 8};
  CHECK(BoundOf(shape, 1) == 200);
  CHECK(BoundOf(shape, 1.5) == 300);
  CHECK(BoundOf(shape, 10) == 800);  // each of 400 tokens chooses both experts of a rank
  CHECK(BoundOf(shape, 0) == 8);     // one token of each rank
  const DispatchShape alone = {.ranks = 1, .rows = 100, .chosen = 2, .experts = 8};
  CHECK(BoundOf(alone, 3) == 200);
}

TEST_CASE("the load's spread is told") {
  DispatchShape shape = {.rows = 4, .chosen = 1, .experts = 4, .bound = 4};
  Arena host("test");
  ExpertDispatch dispatch(shape, host);
  REQUIRE_OK(host.Build());
  const ExpertLoad even = dispatch.Route({3, 1, 0, 2});
  CHECK(even.highest == 1);
  CHECK(even.entropy == Approx(std::log(4)));
  const ExpertLoad one = dispatch.Route({2, 2, 2, 2});
  CHECK(one.highest == 4);
  CHECK(one.entropy == 0);
  CHECK_FALSE(one.is_chunked);
}

TEST_CASE("tokens that go to no expert are no load, and take no room") {
  const DispatchShape shape = {.ranks = 2, .rows = 2, .chosen = 1, .experts = 2, .bound = 2};
  Arena host("test");
  ExpertDispatch dispatch(shape, host);
  REQUIRE_OK(host.Build());
  const ExpertLoad load = dispatch.Route({1, 0, -1, -1});
  CHECK(load.highest == 1);
  CHECK(load.entropy == Approx(std::log(2)));
  CHECK_FALSE(load.is_chunked);
  CHECK(dispatch.sent() == 2);
  const ExpertLoad nothing = dispatch.Route({-1, -1, -1, -1});
  CHECK(nothing.highest == 0);
  CHECK(nothing.entropy == 0);
  CHECK(dispatch.sent() == 0);
  CHECK(dispatch.received() == 0);
}

}  // namespace
}  // namespace convene::worker
