#include "worker_runtime/data/blend.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "tools/base/testing/status_testing.h"

namespace convene::worker {
namespace {

using Weights = std::vector<int64_t>;

// Goes through the first `positions` and checks that each source counts up from 0; returns the
// largest distance of a source from its share.
double LargestError(const Weights& weights, int64_t positions) {
  const Blend blend(weights);
  const auto sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<int64_t> counts(weights.size());
  double largest = 0.0;
  for (int64_t position = 0; position < positions; ++position) {
    const Blend::Place place = blend.At(position);
    REQUIRE(place.source >= 0);
    REQUIRE(place.source < static_cast<int>(weights.size()));
    REQUIRE(place.index == counts[place.source]);
    ++counts[place.source];
    for (size_t source = 0; source < weights.size(); ++source) {
      const double share =
          static_cast<double>(weights[source]) / sum * static_cast<double>(position + 1);
      largest = std::max(largest, std::abs(share - static_cast<double>(counts[source])));
    }
  }
  return largest;
}

TEST_CASE("every source has its share to within 2 at every position, whatever the weights") {
  std::mt19937_64 random(1);
  for (int run = 0; run < 60; ++run) {
    Weights weights(1 + random() % 40);
    // Even ones, uneven ones, and ones of very different size.
    for (int64_t& weight : weights) {
      weight = 1 + static_cast<int64_t>(random() % (int64_t{1} << (1 + random() % (1 + run / 2))));
    }
    INFO("run " << run << ", " << weights.size() << " sources");
    CHECK(LargestError(weights, 3000) < 2.0);
  }
  Weights chain;  // the deepest tree
  for (int i = 0; i < 40; ++i) chain.push_back(int64_t{1} << i);
  CHECK(LargestError(chain, 3000) < 2.0);
}

TEST_CASE("with counts as weights each source comes exactly as often as it counts") {
  std::mt19937_64 random(2);
  for (int run = 0; run < 50; ++run) {
    Weights counts(1 + random() % 12);
    for (int64_t& count : counts) count = 1 + static_cast<int64_t>(random() % 300);
    const Blend blend(counts);
    Weights seen(counts.size());
    const int64_t sum = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    for (int64_t position = 0; position < 2 * sum; ++position) {
      ++seen[blend.At(position).source];
      if (position == sum - 1) CHECK(seen == counts);
    }
    for (int64_t& count : counts) count *= 2;
    CHECK(seen == counts);
  }
}

TEST_CASE("a far position is as exact as a near one") {
  const Weights weights = WeightsOfShares(std::vector<double>{0.7, 0.2, 0.1});
  const Blend blend(weights);
  const int64_t far = int64_t{1} << 50;
  std::vector<int64_t> first(3, -1), last(3, -1);
  for (int64_t position = far; position < far + 1000; ++position) {
    const Blend::Place place = blend.At(position);
    if (first[place.source] < 0) first[place.source] = place.index;
    CHECK((last[place.source] < 0 || place.index == last[place.source] + 1));
    last[place.source] = place.index;
  }
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (int source = 0; source < 3; ++source) {
    const long double share = static_cast<long double>(weights[source]) / sum * far;
    CHECK(std::abs(static_cast<double>(first[source] - share)) < 12.0);  // its first within 10
  }
}

TEST_CASE("the mixture never changes: checkpoints resume in it") {
  const Blend blend(WeightsOfShares(std::vector<double>{5, 3, 2}));
  std::string order;
  for (int64_t position = 0; position < 30; ++position) {
    order += static_cast<char>('a' + blend.At(position).source);
  }
  CHECK(order == "bacabacababacabacababacabacaba");
  CHECK(blend.At(1'000'000'007).source == 0);
  CHECK(blend.At(1'000'000'007).index == 500'000'003);
}

TEST_CASE("one source is itself") {
  const Blend blend(Weights{7});
  for (const int64_t position : {int64_t{0}, int64_t{1}, int64_t{1} << 60}) {
    CHECK(blend.At(position).source == 0);
    CHECK(blend.At(position).index == position);
  }
}

TEST_CASE("shares of any unit give the same weights, and no share is nothing") {
  CHECK(WeightsOfShares(std::vector<double>{0.75, 0.25}) ==
        WeightsOfShares(std::vector<double>{3e200, 1e200}));
  for (const int64_t weight : WeightsOfShares(std::vector<double>{1e-300, 1.0, 1e300})) {
    CHECK(weight >= 1);
  }
}

std::string Parsed(const std::string& text) {
  const auto paths = ParseBlend(text);
  if (!paths.ok()) return std::string(paths.status().message());
  std::string all;
  for (const WeightedPath& path : *paths) {
    all += "[" + path.path + "]";
    if (path.weight.has_value()) all += std::to_string(*path.weight).substr(0, 4);
  }
  return all;
}

TEST_CASE("paths with shares are read") {
  CHECK(Parsed("a.bin:0.7,b-*.jsonl:3e-1") == "[a.bin]0.70[b-*.jsonl]0.30");
  CHECK(Parsed("one.txt") == "[one.txt]");
  CHECK(Parsed("{a,b}.txt,c.bin") == "[{a,b}.txt][c.bin]");
  CHECK(Parsed("x{a,b}:2,c:1") == "[x{a,b}]2.00[c]1.00");
  CHECK(Parsed("s3:bucket,dir:/x") == "[s3:bucket][dir:/x]");
  CHECK(Parsed("a{,b") == "[a{,b]");
  CHECK(Parsed("a:0.5,b") == "[a]0.50[b]");
  CHECK_THAT(Parsed("a:0,b:1"), Catch::Contains("the share in 'a:0' must be a number above 0"));
  CHECK_THAT(Parsed("a:inf"), Catch::Contains("above 0"));
  CHECK_THAT(Parsed("a:nan"), Catch::Contains("above 0"));
  CHECK_THAT(Parsed("a,,b"), Catch::Contains("a path is missing in 'a,,b'"));
  CHECK_THAT(Parsed(""), Catch::Contains("a path is missing"));
  CHECK_THAT(Parsed(":3"), Catch::Contains("a path is missing"));
}

}  // namespace
}  // namespace convene::worker
