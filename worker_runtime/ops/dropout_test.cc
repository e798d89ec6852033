#include "worker_runtime/ops/dropout.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <vector>

#include "worker_runtime/ops/testing/op_arrays.h"
#include "worker_runtime/testing/device_array.h"
#include "worker_runtime/testing/places.h"

namespace convene::worker {
namespace {

using testing::Array;
using testing::TheDevice;
using testing::TheStream;

// The numbers that dropout makes of ones.
template <typename T>
std::vector<float> Kept(int rows, int columns, DropoutMask mask,
                        const std::vector<int64_t>& tokens) {
  const testing::DeviceArray<int64_t> tokens_there(tokens, TheDevice());
  mask.tokens = tokens_there.data();
  const std::vector<float> ones(size_t{1} * rows * columns, 1);
  const Array<T> x(ones);
  const Array<T> y(ones);
  Dropout<T>(rows, columns, mask, /*adds=*/false, x.data(), y.data(), TheStream());
  const std::vector<float> kept = y.Fetch();
  Dropout<T>(rows, columns, mask, /*adds=*/true, x.data(), y.data(), TheStream());
  const std::vector<float> twice = y.Fetch();
  for (size_t i = 0; i < kept.size(); ++i) CHECK(twice[i] == 2 * kept[i]);
  return kept;
}

TEMPLATE_TEST_CASE("dropout: a share becomes 0, the rest grows, and every cut has the same mask",
                   "", float, BFloat16) {
  if (!testing::HasPlacesOrSkips(1)) return;
  constexpr int kRows = 40;
  constexpr int kColumns = 130;
  const DropoutMask mask = {.probability = 0.2, .seed = 77, .layer = 9};
  std::vector<int64_t> tokens;
  for (int64_t row = 0; row < kRows; ++row) tokens.push_back((row << 33) + 5 * row);
  const std::vector<float> whole = Kept<TestType>(kRows, kColumns, mask, tokens);
  int64_t zeros = 0;
  for (const float value : whole) {
    zeros += value == 0;
    CHECK((value == 0 || value == 1.25f));
  }
  // Four standard deviations.
  CHECK(std::abs(static_cast<double>(zeros) - 0.2 * kRows * kColumns) <
        4 * std::sqrt(0.16 * kRows * kColumns));
  // Rows and columns of their own, which begin anywhere.
  constexpr int kRow = 7;
  for (const int first : {1, 4, 66}) {
    DropoutMask part = mask;
    part.first_column = first;
    const std::vector<float> cut = Kept<TestType>(2, 60, part, {tokens[kRow], tokens[kRow + 1]});
    for (int i = 0; i < 60; ++i) {
      CHECK(cut[i] == whole[kRow * kColumns + first + i]);
      CHECK(cut[60 + i] == whole[(kRow + 1) * kColumns + first + i]);
    }
  }
  DropoutMask other = mask;
  other.layer = 8;
  CHECK(Kept<TestType>(kRows, kColumns, other, tokens) != whole);
  other = mask;
  other.seed = 78;
  CHECK(Kept<TestType>(kRows, kColumns, other, tokens) != whole);
}

}  // namespace
}  // namespace convene::worker
