#include "worker_runtime/tokenizer/pair_merges.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <utility>
#include <vector>

namespace convene::worker {
namespace {

using Merge = PairMerges::Merge;

std::vector<int32_t> Applied(const PairMerges& merges, std::vector<int32_t> symbols) {
  PairMerges::Scratch scratch;
  merges.Apply(&symbols, &scratch);
  return symbols;
}

// The definition, word for word.
std::vector<int32_t> Naive(const std::vector<Merge>& merges, std::vector<int32_t> symbols) {
  std::map<std::pair<int32_t, int32_t>, Merge> table;
  for (const Merge& merge : merges) table[{merge.left, merge.right}] = merge;
  for (;;) {
    const Merge* best = nullptr;
    size_t place = 0;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto found = table.find({symbols[i], symbols[i + 1]});
      if (found == table.end()) continue;
      if (best != nullptr && best->rank <= found->second.rank) continue;
      best = &found->second;
      place = i;
    }
    if (best == nullptr) return symbols;
    symbols[place] = best->merged;
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(place) + 1);
  }
}

TEST_CASE("the lowest rank goes first, and of equal ranks the leftmost") {
  const PairMerges merges(
      std::vector<Merge>{{1, 2, 10, 5}, {2, 3, 11, 4}, {10, 3, 12, 6}, {4, 4, 13, 1}});
  CHECK(Applied(merges, {1, 2, 3}) == std::vector<int32_t>{1, 11});
  CHECK(Applied(merges, {1, 2, 2, 3}) == std::vector<int32_t>{10, 11});
  CHECK(Applied(merges, {4, 4, 4}) == std::vector<int32_t>{13, 4});
  CHECK(Applied(merges, {4, 4, 4, 4, 4}) == std::vector<int32_t>{13, 13, 4});
  CHECK(Applied(merges, {}).empty());
  CHECK(Applied(merges, {7}) == std::vector<int32_t>{7});
  CHECK(Applied(merges, {-1, -1, 1, 2}) == std::vector<int32_t>{-1, -1, 10});
}

TEST_CASE("of two merges of one pair the last counts, and no table merges nothing") {
  const PairMerges merges(std::vector<Merge>{{1, 2, 10, 5}, {1, 2, 11, 7}});
  REQUIRE(merges.Find(1, 2) != nullptr);
  CHECK(merges.Find(1, 2)->merged == 11);
  CHECK(merges.Find(2, 1) == nullptr);
  CHECK(merges.Find(-1, -1) == nullptr);
  CHECK(Applied(PairMerges(std::vector<Merge>()), {1, 2, 1}) == std::vector<int32_t>{1, 2, 1});
}

TEST_CASE("short and long words merge as the definition says, on random tables") {
  std::mt19937 random(7);
  const auto below = [&random](size_t limit) { return static_cast<int32_t>(random() % limit); };
  for (int round = 0; round < 60; ++round) {
    const size_t letters = 2 + random() % 4;
    std::vector<Merge> merges;
    auto ids = static_cast<int32_t>(letters);
    const size_t count = random() % 60;
    for (size_t i = 0; i < count; ++i) {
      // Ranks repeat, and a merge may come before the merges that make its halves.
      const int32_t left = below(static_cast<size_t>(ids));
      const int32_t right = below(static_cast<size_t>(ids));
      merges.push_back({left, right, random() % 8 == 0 ? below(letters) : ids++, below(40)});
    }
    const PairMerges table(merges);
    PairMerges::Scratch scratch;
    for (const size_t size : {2, 3, 17, 99, 100, 101, 102, 350}) {
      std::vector<int32_t> symbols(size);
      for (int32_t& symbol : symbols) symbol = below(letters);
      const std::vector<int32_t> expected = Naive(merges, symbols);
      table.Apply(&symbols, &scratch);
      REQUIRE(symbols == expected);
    }
  }
}

TEST_CASE("a word of a million letters ends soon, also when each merge changes the best one") {
  // a a -> b, b b -> c, ...: every level halves the word.
  std::vector<Merge> merges;
  for (int32_t level = 0; level < 20; ++level) merges.push_back({level, level, level + 1, level});
  CHECK(Applied(PairMerges(merges), std::vector<int32_t>(1 << 20, 0)) == std::vector<int32_t>{20});
  // A snowball: 0 1 -> 2, 2 1 -> 2, which only the leftmost place can go on with.
  const PairMerges snowball(std::vector<Merge>{{0, 1, 2, 0}, {2, 1, 2, 1}});
  std::vector<int32_t> word(1'000'000, 1);
  word[0] = 0;
  CHECK(Applied(snowball, word) == std::vector<int32_t>{2});
}

}  // namespace
}  // namespace convene::worker
