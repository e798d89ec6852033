#include "worker_runtime/ops/rope.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <utility>
#include <vector>

#include "worker_runtime/ops/rope_frequencies.h"

namespace convene::worker {
namespace {

using Golden = std::vector<std::pair<int, double>>;

void CheckFrequencies(const std::vector<double>& frequencies, const Golden& golden) {
  for (const auto& [i, expected] : golden) {
    INFO("frequency " << i << ": " << frequencies[i] << ", expected " << expected);
    CHECK(std::abs(frequencies[i] / expected - 1) < 5e-7);
  }
}

// Values of transformers 5.23's modeling_rope_utils.py, to seven digits.
TEST_CASE("Llama 3.1's frequencies are Hugging Face's") {
  const RopeScaling scaling = {.factor = 8};
  const std::vector<double> frequencies = RopeFrequencies(128, 5e5, scaling);
  REQUIRE(frequencies.size() == 64);
  CheckFrequencies(frequencies, {{0, 1},
                                 {28, 3.211446e-3},  // the last that stays
                                 {29, 2.166571e-3},
                                 {30, 1.371894e-3},
                                 {32, 5.248462e-4},
                                 {34, 1.785078e-4},
                                 {35, 9.556212e-5},  // an eighth, from here on
                                 {63, 3.068926e-7}});
}

// The same formula, for the heads and the factor of Llama 3.2 1B.
TEST_CASE("Llama 3.2's frequencies are Hugging Face's") {
  const RopeScaling scaling = {.factor = 32};
  CheckFrequencies(RopeFrequencies(64, 5e5, scaling), {{1, 6.636012e-1},
                                                       {14, 3.211446e-3},
                                                       {15, 1.290548e-3},
                                                       {16, 4.295568e-4},
                                                       {17, 9.708288e-5},
                                                       {18, 1.946164e-5},
                                                       {31, 9.418307e-8}});
}

TEST_CASE("without scaling the frequencies are powers of theta, and the table turns by them") {
  const std::vector<double> frequencies = RopeFrequencies(8, 100.0, {});
  CheckFrequencies(frequencies, {{0, 1}, {1, std::pow(100.0, -0.25)}, {2, 0.1}});
  for (const double factor : {1.0, 4.0}) {
    const RopeScaling scaling = {.factor = factor, .original_positions = 16};
    std::vector<float> cosines(5 * 4), sines(5 * 4);
    RopeTable(5, 8, 100.0, cosines.data(), sines.data(), scaling);
    for (int position = 0; position < 5; ++position) {
      for (int i = 0; i < 4; ++i) {
        const double angle = position * RopeFrequencies(8, 100.0, scaling)[i];
        CHECK(cosines[position * 4 + i] == static_cast<float>(std::cos(angle)));
        CHECK(sines[position * 4 + i] == static_cast<float>(std::sin(angle)));
      }
    }
  }
}

TEST_CASE("a linear scaling divides every frequency") {
  const std::vector<double> plain = RopeFrequencies(16, 10000, {});
  const std::vector<double> scaled =
      RopeFrequencies(16, 10000, {.factor = 8, .kind = RopeScalingKind::kLinear});
  for (size_t i = 0; i < plain.size(); ++i) CHECK(scaled[i] == plain[i] / 8);
}

// Qwen's and DeepSeek-V3's YaRN: the bounds and the values of transformers 5.23.
TEST_CASE("YaRN's frequencies and scales are Hugging Face's") {
  const RopeScaling qwen = {.factor = 4,
                            .kind = RopeScalingKind::kYarn,
                            .high_frequency_factor = 32,
                            .original_positions = 32768};
  const std::vector<double> plain = RopeFrequencies(128, 1e6, {});
  const std::vector<double> frequencies = RopeFrequencies(128, 1e6, qwen);
  CheckFrequencies(frequencies,
                   {{23, plain[23]}, {31, 8.029597e-4}, {40, 4.445699e-5}, {41, plain[41] / 4}});
  CHECK(frequencies[24] < plain[24]);
  CHECK(frequencies[39] > plain[39] / 4 * 1.1);
  CHECK(RopeAmplitude(qwen) == Approx(1.1386294).epsilon(1e-7));
  const RopeScaling deepseek = {.factor = 40,
                                .kind = RopeScalingKind::kYarn,
                                .high_frequency_factor = 32,
                                .original_positions = 4096,
                                .mscale = 1,
                                .mscale_all_dim = 1};
  const std::vector<double> turned = RopeFrequencies(64, 1e4, deepseek);
  const std::vector<double> of_deepseek = RopeFrequencies(64, 1e4, {});
  CHECK(turned[10] == of_deepseek[10]);
  CHECK(turned[11] < of_deepseek[11]);
  CHECK(turned[22] > of_deepseek[22] / 40 * 1.1);
  CHECK(turned[23] == Approx(of_deepseek[23] / 40).epsilon(1e-12));
  CHECK(RopeAmplitude(deepseek) == 1);
  const RopeScaling gpt_oss = {.factor = 32,
                               .kind = RopeScalingKind::kYarn,
                               .high_frequency_factor = 32,
                               .original_positions = 4096,
                               .truncates = false};
  CheckFrequencies(RopeFrequencies(64, 150000, gpt_oss), {{8, 5.0813273e-2},
                                                          {9, 3.1705696e-2},
                                                          {13, 3.8603591e-3},
                                                          {17, 1.2931869e-4},
                                                          {18, 3.8308812e-5}});
  CHECK(RopeAmplitude(gpt_oss) == Approx(1.3465735902799727));
  CHECK(std::pow(YarnScale(deepseek, 1), 2) / std::sqrt(192) == Approx(0.1352338).epsilon(1e-6));
  RopeScaling uneven = deepseek;
  uneven.mscale = 0.5;
  CHECK(RopeAmplitude(uneven) == Approx(YarnScale(deepseek, 0.5) / YarnScale(deepseek, 1)));
  uneven.mscale_all_dim = 0;  // then neither counts
  CHECK(RopeAmplitude(uneven) == YarnScale(deepseek, 1));
  uneven.amplitude = 0.75;
  CHECK(RopeAmplitude(uneven) == 0.75);
  std::vector<float> cosines(2 * 32), sines(2 * 32);
  RopeTable(2, 64, 1e4, cosines.data(), sines.data(), uneven);
  CHECK(cosines[0] == 0.75f);
  CHECK(sines[32] == static_cast<float>(0.75 * std::sin(1)));
}

}  // namespace
}  // namespace convene::worker
