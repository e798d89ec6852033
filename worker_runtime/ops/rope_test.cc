#include "worker_runtime/ops/rope.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <utility>
#include <vector>

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
  const std::vector<double> scaled = RopeFrequencies(16, 10000, {.factor = 8, .is_linear = true});
  for (size_t i = 0; i < plain.size(); ++i) CHECK(scaled[i] == plain[i] / 8);
}

}  // namespace
}  // namespace convene::worker
