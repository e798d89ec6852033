// Newton-Schulz against PyTorch's: golden/make_golden.py wrote the numbers.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <string>
#include <vector>

#include "tools/base/rounding.h"
#include "worker_runtime/device/stream.h"
#include "worker_runtime/ops/elementwise.h"
#include "worker_runtime/optimizer/update_rule.h"
#include "worker_runtime/trainer/testing/golden.h"

namespace convene::worker {
namespace {

using testing::Golden;

// Of the matrices that `name` says: one number, a vector, square, tall and wide ones, and one of
// several blocks of flags.
constexpr const char* kMatrices[] = {"1x1", "1x24", "16x16", "32x8", "8x48", "130x66"};

// Muon's step in a direction, without the scale by which it makes a step as large as AdamW's.
template <typename T>
std::vector<double> Orthogonalized(int rows, int columns, const std::vector<float>& direction) {
  const int64_t count = int64_t{rows} * columns;
  const int64_t padded = RoundUp(count, kFlagBlock);
  std::vector<T> values(padded);
  std::vector<T> square(std::min(rows, columns) * std::min(rows, columns));
  // The square lies there too, before it is rounded.
  std::vector<float> product(padded);
  std::vector<uint8_t> flags(padded / kFlagBlock, kOwned);
  std::vector<char> workspace(SumOfSquaresWorkspaceBytes(padded, DeviceKind::kCpu));
  double sum_of_squares = 0;
  std::transform(direction.begin(), direction.end(), values.begin(),
                 [](float x) { return static_cast<T>(x); });
  constexpr DType kType = std::is_same_v<T, float> ? DType::kFloat32 : DType::kBFloat16;
  Stream stream = Stream::Cpu();
  MuonRule().matrices()->Transform(
      {.rows = rows,
       .columns = columns,
       .values = Elements(values.data(), count, kType),
       .square = Elements(square.data(), static_cast<int64_t>(square.size()), kType),
       .product = product.data(),
       .sum_of_squares = &sum_of_squares,
       .flags = flags.data(),
       .workspace = {workspace.data(), workspace.size()}},
      stream);
  const double scale = 0.2 * std::sqrt(std::max(rows, columns));
  std::vector<double> result;
  for (int64_t i = 0; i < count; ++i) result.push_back(static_cast<float>(values[i]) / scale);
  return result;
}

double Distance(const std::vector<double>& one, const std::vector<double>& other) {
  double squares = 0;
  for (size_t i = 0; i < one.size(); ++i) squares += std::pow(one[i] - other[i], 2);
  return std::sqrt(squares);
}

// Five iterations make a relative error up to 3.4445^5 = 485 times as large: of the smallest
// singular values.
TEST_CASE("in fp32 Newton-Schulz is PyTorch's in double, in bf16 within twice PyTorch's distance") {
  const Golden golden("newton_schulz");
  for (const std::string name : kMatrices) {
    INFO(name);
    const std::vector<int64_t> shape = golden.Shape(name + "/given");
    const auto rows = static_cast<int>(shape[0]);
    const auto columns = static_cast<int>(shape[1]);
    const auto given = golden.Values<float>(name + "/given");
    const auto expected = golden.Values<double>(name + "/out");
    const double length = Distance(expected, std::vector<double>(expected.size()));
    CHECK(Distance(Orthogonalized<float>(rows, columns, given), expected) < 1e-5 * length);
    const double allowed = 2 * golden.Values<double>(name + "/bf16_error")[0];
    CHECK(Distance(Orthogonalized<BFloat16>(rows, columns, given), expected) <=
          std::max(allowed, 0.004 * length));
  }
}

}  // namespace
}  // namespace convene::worker
