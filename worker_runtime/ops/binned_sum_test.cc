// Binned and exact sums on every device: one result whatever the order and the grouping, no further
// from the truth than binned_digits.h says.
#include "worker_runtime/ops/binned_sum.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "worker_runtime/ops/testing/op_arrays.h"
#include "worker_runtime/testing/places.h"

namespace convene::worker {
namespace {

using testing::DeviceArray;
using testing::Scratch;
using testing::TheDevice;
using testing::TheStream;

using Summand = std::vector<float>;

// (count) binned sums in a device's memory, at first of any content.
class Sums {
 public:
  explicit Sums(int64_t count)
      : count_(count),
        high_(std::vector<int32_t>(count, 77), TheDevice()),
        low_(std::vector<int32_t>(count, -77), TheDevice()),
        bins_(std::vector<uint8_t>(count, 7), TheDevice()) {}

  BinnedSums get() const { return {high_.data(), low_.data(), bins_.data()}; }
  std::vector<uint8_t> bins() const { return bins_.Fetch(); }

  void AddAll(int bits, const std::vector<Summand>& summands) const {
    for (size_t i = 0; i < summands.size(); ++i) {
      const DeviceArray<float> x(summands[i], TheDevice());
      BinnedAdd(count_, bits, /*is_first=*/i == 0, x.data(), get(), TheStream());
      TheDevice().Synchronize(absl::InfiniteDuration()).IgnoreError();
    }
  }
  std::vector<float> Rounded(int bits) const {
    BinnedRound(count_, bits, get(), TheStream());
    std::vector<float> values;
    for (const int32_t word : high_.Fetch()) values.push_back(__builtin_bit_cast(float, word));
    return values;
  }

 private:
  const int64_t count_;
  const DeviceArray<int32_t> high_, low_;
  const DeviceArray<uint8_t> bins_;
};

// Of magnitudes that differ from element to element, and from summand to summand by up to
// 2^(2 spread); some are zero, also whole rows of them.
std::vector<Summand> Draw(int summands, int64_t count, int spread, uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto uniform = [&](int low, int high) {
    return low + static_cast<int>(random() % static_cast<uint64_t>(high - low + 1));
  };
  std::vector<int> middle(count);
  for (int& exponent : middle) exponent = uniform(-140 + spread, 110 - spread);
  std::vector<Summand> all(summands, Summand(count));
  for (Summand& one : all) {
    if (uniform(0, 9) == 0) continue;
    for (int64_t i = 0; i < count; ++i) {
      const double mantissa = static_cast<double>(random() >> 11) * 0x1p-52 - 1;
      if (uniform(0, 19) == 0) continue;
      one[i] = static_cast<float>(std::ldexp(mantissa, middle[i] + uniform(-spread, spread)));
    }
  }
  return all;
}

std::vector<float> SumOf(const std::vector<Summand>& summands, int bits) {
  const Sums sums(static_cast<int64_t>(summands.front().size()));
  sums.AddAll(bits, summands);
  return sums.Rounded(bits);
}

// Added in groups that are then merged, as ranks do it: first all take the highest bins.
std::vector<float> SumInGroups(const std::vector<Summand>& summands, int bits, size_t groups) {
  const auto count = static_cast<int64_t>(summands.front().size());
  const Sums all(count);
  for (size_t group = 0; group < groups; ++group) {
    std::vector<Summand> own;
    for (size_t i = group; i < summands.size(); i += groups) own.push_back(summands[i]);
    if (group == 0) {
      all.AddAll(bits, own);
      continue;
    }
    const Sums part(count);
    part.AddAll(bits, own);
    BinnedMerge(count, {.bins = all.get().bins}, part.get(), TheStream());
    BinnedMerge(count, {.bins = part.get().bins}, all.get(), TheStream());
    CHECK(all.bins() == part.bins());
    BinnedMerge(count, part.get(), all.get(), TheStream());
    TheDevice().Synchronize(absl::InfiniteDuration()).IgnoreError();
  }
  return all.Rounded(bits);
}

TEST_CASE("no order and no grouping changes a bit of a binned sum") {
  if (!testing::HasPlacesOrSkips(1)) return;
  for (const auto& [summands, spread] :
       {std::pair(1, 0), std::pair(2, 30), std::pair(7, 3), std::pair(24, 12), std::pair(70, 60)}) {
    CAPTURE(summands, spread);
    const int bits = BinBits(summands);
    std::vector<Summand> drawn = Draw(summands, /*count=*/333, spread, /*seed=*/spread + 1);
    const std::vector<float> expected = SumOf(drawn, bits);
    std::mt19937_64 random(5);
    for (int turn = 0; turn < 4; ++turn) {
      std::shuffle(drawn.begin(), drawn.end(), random);
      CHECK(SumOf(drawn, bits) == expected);
      const auto groups = std::min<size_t>(summands, turn + 2);
      CHECK(SumInGroups(drawn, bits, groups) == expected);
    }
  }
}

TEST_CASE("a binned sum loses less than n 2^-bits of its largest summand, and less than fp32") {
  if (!testing::HasPlacesOrSkips(1)) return;
  double binned_worst = 0;
  double plain_worst = 0;
  for (const int summands : {2, 8, 64}) {
    const int bits = BinBits(summands);
    const std::vector<Summand> drawn = Draw(summands, /*count=*/2000, /*spread=*/2, summands);
    const std::vector<float> sums = SumOf(drawn, bits);
    for (size_t i = 0; i < sums.size(); ++i) {
      long double truth = 0;
      double largest = 0;
      float plain = 0;
      for (const Summand& one : drawn) {
        truth += one[i];
        largest = std::max(largest, std::abs(double{one[i]}));
        plain += one[i];
      }
      const double error = std::abs(static_cast<double>(sums[i] - truth));
      const double rounding = std::abs(static_cast<double>(truth)) * 0x1p-24 + 0x1p-149;
      REQUIRE(error <= largest * std::ldexp(summands, -bits) + rounding);
      if (largest == 0) continue;
      binned_worst = std::max(binned_worst, error / largest);
      plain_worst = std::max(plain_worst, std::abs(static_cast<double>(plain - truth)) / largest);
    }
  }
  CHECK(binned_worst <= plain_worst);
}

TEST_CASE("as many summands as there is room for carry nothing out of their digits") {
  if (!testing::HasPlacesOrSkips(1)) return;
  for (const int64_t summands : {int64_t{3}, int64_t{64}, int64_t{65}, kBinnedSummandsMax}) {
    const int bits = BinBits(summands);
    // The largest numbers of a bin, of either sign: all digits are as large as they can be.
    const float largest = std::nextafter(std::ldexp(1.0f, 4 * bits - 127), 0.0f);
    const Summand one = {largest, -largest};
    const DeviceArray<float> x(one, TheDevice());
    const Sums sums(2);
    for (int64_t i = 0; i < summands; ++i) {
      BinnedAdd(2, bits, i == 0, x.data(), sums.get(), TheStream());
    }
    const std::vector<float> rounded = sums.Rounded(bits);
    const double truth = static_cast<double>(largest) * static_cast<double>(summands);
    CHECK(std::abs(rounded[0] - truth) <= truth * 0x1p-15);
    CHECK(rounded[1] == -rounded[0]);
  }
}

TEST_CASE("bins rise by one, by several, and to no number") {
  if (!testing::HasPlacesOrSkips(1)) return;
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<Summand> summands = {
      {1, 1, 0x1p-140f, 1, 1, 0, 3e38f},
      {0x1p20f, 0x1p90f, 0x1p-149f, infinity, std::nanf(""), -0.0f, 3e38f},
      {-0x1p20f, 1, 0x1p-149f, 1, 1, 0, -3e38f}};
  const std::vector<float> sums = SumOf(summands, BinBits(3));
  CHECK(sums[0] == 1);
  CHECK(sums[1] == 0x1p90f);
  CHECK(sums[2] == 0x1p-140f + 0x1p-148f);
  CHECK(std::isnan(sums[3]));
  CHECK(std::isnan(sums[4]));
  CHECK((sums[5] == 0 && !std::signbit(sums[5])));
  CHECK(sums[6] == 3e38f);
}

double Exactly(const DeviceArray<double>& digits) {
  const DeviceArray<double> sum({7}, TheDevice());
  ExactRound(1, digits.data(), sum.data(), TheStream());
  return sum.Fetch()[0];
}

TEST_CASE("squares of owned blocks have one exact sum, in any parts") {
  if (!testing::HasPlacesOrSkips(1)) return;
  constexpr int64_t kBlocks = 1000;
  constexpr int64_t kCount = kBlocks * kFlagBlock;
  const Summand x = Draw(1, kCount, /*spread=*/14, /*seed=*/3)[0];
  std::vector<uint8_t> flags(kBlocks);
  long double truth = 0;
  for (int64_t i = 0; i < kBlocks; ++i) {
    flags[i] = i % 3 == 1 ? kDecayed : kOwned;
    if (i % 3 == 1) continue;
    for (int64_t j = i * kFlagBlock; j < (i + 1) * kFlagBlock; ++j) {
      truth += static_cast<long double>(x[j]) * x[j];
    }
  }
  const DeviceArray<float> on_device(x, TheDevice());
  const DeviceArray<uint8_t> flags_there(flags, TheDevice());
  const auto sum_in = [&](const std::vector<int64_t>& borders) {
    const DeviceArray<double> digits(std::vector<double>(kExactDigits), TheDevice());
    for (size_t i = 1; i < borders.size(); ++i) {
      const int64_t begin = borders[i - 1];
      const int64_t count = (borders[i] - begin) * kFlagBlock;
      const Scratch scratch(ExactSquaresWorkspaceBytes(count, TheStream().kind()));
      ExactSquares(count, on_device.data() + begin * kFlagBlock, flags_there.data() + begin,
                   digits.data(), scratch.get(), TheStream());
      TheDevice().Synchronize(absl::InfiniteDuration()).IgnoreError();
    }
    return Exactly(digits);
  };
  const double whole = sum_in({0, kBlocks});
  CHECK(std::abs(static_cast<double>(whole - truth)) <= static_cast<double>(truth) * 1e-15);
  CHECK(sum_in({0, 1, 2, 500, kBlocks}) == whole);
  CHECK(sum_in({0, 64, 999, kBlocks}) == whole);
}

TEST_CASE("numbers are added exactly, and then are zero") {
  if (!testing::HasPlacesOrSkips(1)) return;
  const std::vector<std::vector<double>> numbers = {
      {1e16, 0x1p-290, 3}, {1, -1, 0.1}, {-1e16, 1, 0}, {0x1p-60, 0x1p-299, -3}};
  const std::vector<double> expected = {1 + 0x1p-52, 0x1p-290 + 0x1p-299, 0.1};
  const DeviceArray<double> digits(std::vector<double>(3 * kExactDigits), TheDevice());
  const DeviceArray<double> sums({7, 7, 7}, TheDevice());
  for (const std::vector<double>& three : numbers) {
    const DeviceArray<double> x(three, TheDevice());
    ExactAdd(3, x.data(), digits.data(), TheStream());
    CHECK(x.Fetch() == std::vector<double>(3));
  }
  // Beside the 2^-60 above it makes up a last bit.
  const DeviceArray<double> last({0x1p-52 - 0x1p-60, 0, 0}, TheDevice());
  ExactAdd(3, last.data(), digits.data(), TheStream());
  ExactRound(3, digits.data(), sums.data(), TheStream());
  CHECK(sums.Fetch() == expected);
  for (const double broken : {std::nan(""), std::numeric_limits<double>::infinity(), 1e200}) {
    const DeviceArray<double> x({broken, 1, 1}, TheDevice());
    ExactAdd(3, x.data(), digits.data(), TheStream());
    ExactRound(3, digits.data(), sums.data(), TheStream());
    CHECK_FALSE(std::isfinite(sums.Fetch()[0]));
    CHECK(std::isfinite(sums.Fetch()[1]));
  }
}

}  // namespace
}  // namespace convene::worker
