#include <omp.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "worker_runtime/ops/activation.h"
#include "worker_runtime/ops/cpu/simd.h"
#include "worker_runtime/ops/cross_entropy.h"
#include "worker_runtime/ops/elementwise.h"
#include "worker_runtime/ops/embedding.h"
#include "worker_runtime/ops/rms_norm.h"
#include "worker_runtime/ops/rope.h"
#include "worker_runtime/ops/testing/ops_testing.h"
#include "worker_runtime/ops/testing/reference/activation.h"
#include "worker_runtime/ops/testing/reference/cross_entropy.h"
#include "worker_runtime/ops/testing/reference/elementwise.h"
#include "worker_runtime/ops/testing/reference/embedding.h"
#include "worker_runtime/ops/testing/reference/rms_norm.h"
#include "worker_runtime/ops/testing/reference/rope.h"

namespace convene::worker {
namespace {

using testing::As;
using testing::Compare;
using testing::Integers;
using testing::kBackward;
using testing::kForward;
using testing::Load;
using testing::Numbers;
using testing::NumbersOf;
using testing::Outputs;
using testing::PoisonedWorkspace;
using testing::Store;

Stream& AnyStream() {
  static Stream stream = Stream::Cpu();
  return stream;
}

struct RowsAndColumns {
  int rows, columns;
  size_t size() const { return static_cast<size_t>(rows) * columns; }
};
const std::vector<RowsAndColumns> kRowShapes = {{1, 1},  {1, 16},  {3, 7},   {2, 31},
                                                {5, 64}, {9, 130}, {80, 257}};

TEMPLATE_TEST_CASE("RMSNorm agrees with the reference, forward and backward", "", float, BFloat16) {
  for (const auto& shape : kRowShapes) {
    const int rows = shape.rows;
    const int columns = shape.columns;
    CAPTURE(rows, columns);
    const float epsilon = 1e-5f;
    const auto x = NumbersOf<TestType>(shape.size(), 1, 3);
    const auto weight = NumbersOf<TestType>(columns, 2);
    const auto dy = NumbersOf<TestType>(shape.size(), 3);
    const auto dx_before = NumbersOf<TestType>(shape.size(), 4);
    const auto dweight_before = Numbers(columns, 5);
    const auto w = Store<TestType>(weight);
    const auto forward = [&] {
      auto y = Store<TestType>(x);  // in place
      std::vector<float> inverse_rms(rows);
      RmsNormForward<TestType>(rows, columns, y.data(), nullptr, w.data(), 0, epsilon, nullptr,
                               y.data(), inverse_rms.data(), AnyStream());
      return Outputs<float>{Load(y), inverse_rms};
    };
    const auto reference_forward = [&](auto zero) {
      using Real = decltype(zero);
      Outputs<Real> y = {As<Real>(x), std::vector<Real>(rows)};
      reference::RmsNormForward<Real>(rows, columns, As<Real>(x).data(), As<Real>(weight).data(),
                                      Real{epsilon}, y[0].data(), y[1].data());
      return y;
    };
    Compare<TestType>(kForward, forward, reference_forward, {1});

    // The same bits from what the forward pass kept, and from a sum made in the same pass.
    const auto stored = Store<TestType>(x);
    std::vector<TestType> again(shape.size());
    RmsNormAgain(rows, columns, stored.data(), w.data(), 0, forward()[1].data(), again.data(),
                 AnyStream());
    CHECK(Load(again) == forward()[0]);

    for (const bool adds : {false, true}) {
      Compare<TestType>(
          kBackward,
          [&] {
            const auto before = [&](const std::vector<float>& values) {
              return adds ? values : std::vector<float>(values.size(), std::nanf(""));
            };
            auto dx = Store<TestType>(before(dx_before));
            auto dweight = before(dweight_before);
            PoisonedWorkspace workspace(RmsNormWorkspaceBytes(rows, columns, DeviceKind::kCpu));
            RmsNormBackward(rows, columns, stored.data(), w.data(), 0, forward()[1].data(),
                            Store<TestType>(dy).data(), adds, dx.data(), adds, dweight.data(),
                            workspace.get(), AnyStream());
            return Outputs<float>{Load(dx), dweight};
          },
          [&](auto zero) {
            using Real = decltype(zero);
            Outputs<Real> d = {std::vector<Real>(shape.size()), std::vector<Real>(columns)};
            if (adds) d = {As<Real>(dx_before), As<Real>(dweight_before)};
            reference::RmsNormBackward<Real>(
                rows, columns, As<Real>(x).data(), As<Real>(weight).data(),
                reference_forward(zero)[1].data(), As<Real>(dy).data(), d[0].data(), d[1].data());
            return d;
          },
          {1});
    }
  }
}

TEMPLATE_TEST_CASE("the residual addition within RMSNorm is the addition, then RMSNorm", "", float,
                   BFloat16) {
  for (const auto& shape : kRowShapes) {
    CAPTURE(shape.rows, shape.columns);
    const auto x = Store<TestType>(Numbers(shape.size(), 1));
    const auto delta = Store<TestType>(Numbers(shape.size(), 2));
    const auto weight = Store<TestType>(Numbers(shape.columns, 3));
    auto sum = delta;
    AddInPlace(static_cast<int64_t>(shape.size()), x.data(), sum.data(), AnyStream());
    std::vector<TestType> y(shape.size());
    std::vector<float> inverse_rms(shape.rows);
    RmsNormForward<TestType>(shape.rows, shape.columns, sum.data(), nullptr, weight.data(), 0,
                             1e-5f, nullptr, y.data(), inverse_rms.data(), AnyStream());
    auto fused_sum = x;  // in place
    std::vector<TestType> fused_y(shape.size());
    std::vector<float> fused_inverse_rms(shape.rows);
    RmsNormForward(shape.rows, shape.columns, fused_sum.data(), delta.data(), weight.data(), 0,
                   1e-5f, fused_sum.data(), fused_y.data(), fused_inverse_rms.data(), AnyStream());
    CHECK(Load(fused_sum) == Load(sum));
    CHECK(Load(fused_y) == Load(y));
    CHECK(fused_inverse_rms == inverse_rms);
  }
}

TEMPLATE_TEST_CASE("RoPE agrees with the reference, leaves the rest of the row, and turns back", "",
                   float, BFloat16) {
  struct Shape {
    int batch, sequence_length, heads, head_size, turned, row_stride;
  };
  for (const Shape& shape : std::vector<Shape>{{1, 1, 1, 2, 2, 2},
                                               {2, 3, 1, 4, 4, 9},
                                               {1, 33, 3, 6, 6, 20},
                                               {2, 9, 3, 11, 6, 40},
                                               {2, 65, 4, 64, 64, 400}}) {
    const int batch = shape.batch;
    const int sequence_length = shape.sequence_length;
    const int heads = shape.heads;
    const int head_size = shape.head_size;
    const int turned = shape.turned;
    const int row_stride = shape.row_stride;
    CAPTURE(batch, sequence_length, heads, head_size, turned);
    const size_t angles = static_cast<size_t>(sequence_length) * turned / 2;
    std::vector<float> cosines(angles), sines(angles);
    RopeTable(sequence_length, turned, 10000.0, cosines.data(), sines.data());
    const auto x =
        NumbersOf<TestType>(static_cast<size_t>(batch) * sequence_length * row_stride, 1);
    const auto begins = testing::DocumentBegins(batch, sequence_length, {2, 1, 7});
    // Tokens at other places than they lie at, the document's start at or before each.
    std::vector<int32_t> moved(sequence_length);
    for (int i = 0; i < sequence_length; ++i) moved[i] = (i + sequence_length) / 2;
    const auto turn = [&](bool inverse, std::vector<TestType>& y,
                          const int32_t* document_begin = nullptr,
                          const int32_t* positions = nullptr) {
      RopeApply(batch, sequence_length, heads, head_size, turned, row_stride, cosines.data(),
                sines.data(), positions, document_begin, inverse, y.data(), AnyStream());
    };
    for (const int way : {0, 1, 2, 3, 4, 5, 6, 7}) {
      const bool inverse = way % 2 == 1;
      const int32_t* const document_begin = way % 4 < 2 ? nullptr : begins.data();
      const int32_t* const positions = way < 4 ? nullptr : moved.data();
      Compare<TestType>(
          inverse ? kBackward : kForward,
          [&] {
            auto y = Store<TestType>(x);
            turn(inverse, y, document_begin, positions);
            return Outputs<float>{Load(y)};
          },
          [&](auto zero) {
            using Real = decltype(zero);
            std::vector<Real> cosines(angles), sines(angles);
            reference::RopeTable<Real>(sequence_length, turned, 10000.0, cosines.data(),
                                       sines.data());
            Outputs<Real> y = {As<Real>(x)};
            reference::RopeApply<Real>(batch, sequence_length, heads, head_size, turned, row_stride,
                                       cosines.data(), sines.data(), positions, document_begin,
                                       inverse, y[0].data());
            return y;
          });
    }
    auto there_and_back = Store<TestType>(x);
    turn(false, there_and_back);
    turn(true, there_and_back);
    const double unit = std::is_same_v<TestType, float> ? 1e-6 : 0x1p-8;
    CHECK(testing::Distance(Load(there_and_back), As<double>(x)) <= unit * std::sqrt(x.size()));
  }
}

TEMPLATE_TEST_CASE("SwiGLU agrees with the reference, forward and backward in place", "", float,
                   BFloat16) {
  for (const auto& shape : kRowShapes) {
    const int rows = shape.rows;
    const int width = shape.columns;
    CAPTURE(rows, width);
    const auto gate_up = NumbersOf<TestType>(2 * shape.size(), 1, 9);
    const auto dy = NumbersOf<TestType>(shape.size(), 2);
    Compare<TestType>(
        kForward,
        [&] {
          std::vector<TestType> y(shape.size());
          ActivationForward(Activation::kSwiglu, rows, width, Store<TestType>(gate_up).data(),
                            y.data(), AnyStream());
          return Outputs<float>{Load(y)};
        },
        [&](auto zero) {
          using Real = decltype(zero);
          Outputs<Real> y = {std::vector<Real>(shape.size())};
          reference::ActivationForward<Real>(Activation::kSwiglu, rows, width,
                                             As<Real>(gate_up).data(), y[0].data());
          return y;
        });
    Compare<TestType>(
        kBackward,
        [&] {
          auto d = Store<TestType>(gate_up);
          ActivationBackward(Activation::kSwiglu, rows, width, d.data(), Store<TestType>(dy).data(),
                             d.data(), AnyStream());
          return Outputs<float>{Load(d)};
        },
        [&](auto zero) {
          using Real = decltype(zero);
          Outputs<Real> d = {As<Real>(gate_up)};
          reference::ActivationBackward<Real>(Activation::kSwiglu, rows, width,
                                              As<Real>(gate_up).data(), As<Real>(dy).data(),
                                              d[0].data());
          return d;
        });
  }
}

TEMPLATE_TEST_CASE("embedding agrees with the reference for tokens inside and outside the slice",
                   "", float, BFloat16) {
  for (const auto& shape : kRowShapes) {
    const int rows = shape.rows;
    const int columns = shape.columns;
    const int begin = 5;
    const int end = 12;
    CAPTURE(rows, columns);
    const auto tokens = Integers(rows, 1, 0, 20);  // most outside, many repeated
    const size_t table_size = static_cast<size_t>(end - begin) * columns;
    const auto table = NumbersOf<TestType>(table_size, 2);
    const auto dy = NumbersOf<TestType>(shape.size(), 3);
    Compare<TestType>(
        kForward,
        [&] {
          std::vector<TestType> y(shape.size(), TestType(std::nanf("")));
          EmbeddingForward(rows, columns, begin, end, tokens.data(), Store<TestType>(table).data(),
                           false, y.data(), AnyStream());
          return Outputs<float>{Load(y)};
        },
        [&](auto zero) {
          using Real = decltype(zero);
          Outputs<Real> y = {std::vector<Real>(shape.size())};
          reference::EmbeddingForward<Real>(rows, columns, begin, end, tokens.data(),
                                            As<Real>(table).data(), false, y[0].data());
          return y;
        });
    Compare<float>(
        kBackward,
        [&] {
          Outputs<float> d = {table};
          PoisonedWorkspace workspace(EmbeddingWorkspaceBytes(rows, columns, DeviceKind::kCpu));
          EmbeddingBackward(rows, columns, begin, end, tokens.data(), Store<TestType>(dy).data(),
                            d[0].data(), workspace.get(), AnyStream());
          return d;
        },
        [&](auto zero) {
          using Real = decltype(zero);
          Outputs<Real> d = {As<Real>(table)};
          reference::EmbeddingBackward<Real>(rows, columns, begin, end, tokens.data(),
                                             As<Real>(dy).data(), d[0].data());
          return d;
        });
  }
}

// The steps of the vocabulary-parallel loss on one rank: statistics, loss, gradient.
template <typename T>
Outputs<float> CrossEntropy(int rows, int begin, int end, const std::vector<int32_t>& targets,
                            const std::vector<float>& logits, float gradient_scale) {
  auto x = Store<T>(logits);
  std::vector<float> row_max(rows), sums(2 * rows);
  double loss = 0;
  PoisonedWorkspace workspace(CrossEntropyWorkspaceBytes(rows, DeviceKind::kCpu));
  CrossEntropyStatistics(rows, begin, end, targets.data(), x.data(), row_max.data(), sums.data(),
                         AnyStream());
  CrossEntropyLoss(rows, targets.data(), row_max.data(), sums.data(), &loss, workspace.get(),
                   AnyStream());
  CrossEntropyGradient(rows, begin, end, targets.data(), row_max.data(), sums.data(),
                       &gradient_scale, x.data(), AnyStream());
  return {Load(x), row_max, sums, {static_cast<float>(loss)}};
}

TEMPLATE_TEST_CASE("cross-entropy agrees with the reference, ignored and foreign targets included",
                   "", float, BFloat16) {
  for (const auto& shape : kRowShapes) {
    const int rows = shape.rows;
    const int columns = shape.columns;
    const int begin = 3;
    const int end = begin + columns;
    CAPTURE(rows, columns);
    const auto targets = Integers(rows, 1, -2, end + 3);
    const auto logits = NumbersOf<TestType>(shape.size(), 2, 12);
    const float gradient_scale = 0.125f;
    Compare<TestType>(
        kForward,
        [&] { return CrossEntropy<TestType>(rows, begin, end, targets, logits, gradient_scale); },
        [&](auto zero) {
          using Real = decltype(zero);
          Outputs<Real> y = {As<Real>(logits), std::vector<Real>(rows),
                             std::vector<Real>(2 * rows)};
          reference::CrossEntropyStatistics<Real>(rows, begin, end, targets.data(), y[0].data(),
                                                  y[1].data(), y[2].data());
          const double loss =
              reference::CrossEntropyLoss<Real>(rows, targets.data(), y[1].data(), y[2].data());
          reference::CrossEntropyGradient<Real>(rows, begin, end, targets.data(), y[1].data(),
                                                y[2].data(), Real{gradient_scale}, y[0].data());
          y.push_back({static_cast<Real>(loss)});
          return y;
        },
        {1, 2, 3});
  }
}

TEMPLATE_TEST_CASE("cross-entropy at once gives the bits of statistics and gradient", "", float,
                   BFloat16) {
  for (const auto& shape : kRowShapes) {
    CAPTURE(shape.rows, shape.columns);
    const auto targets = Integers(shape.rows, 1, -2, shape.columns);
    const auto logits = NumbersOf<TestType>(shape.size(), 2, 12);
    const float scale = 0.125f;
    Outputs<float> apart =
        CrossEntropy<TestType>(shape.rows, 0, shape.columns, targets, logits, scale);
    apart.pop_back();  // the loss
    auto x = Store<TestType>(logits);
    std::vector<float> row_max(shape.rows), sums(2 * shape.rows);
    CrossEntropyAtOnce(shape.rows, 0, shape.columns, targets.data(), &scale, row_max.data(),
                       sums.data(), x.data(), AnyStream());
    const bool are_same = Outputs<float>{Load(x), row_max, sums} == apart;
    CHECK(are_same);
  }
}

TEST_CASE("cross-entropy over two slices is that over the whole vocabulary") {
  const int rows = 5;
  const int columns = 24;
  const int half = columns / 2;
  const auto targets = Integers(rows, 1, 0, columns);
  const auto logits = Numbers(rows * columns, 2, 9);
  std::vector<float> row_max(rows), sums(2 * rows);
  CrossEntropyStatistics(rows, 0, columns, targets.data(), logits.data(), row_max.data(),
                         sums.data(), AnyStream());
  std::vector<float> added(2 * rows);
  for (const int begin : {0, half}) {
    std::vector<float> slice;
    for (int row = 0; row < rows; ++row) {
      const auto first = logits.begin() + row * columns + begin;
      slice.insert(slice.end(), first, first + half);
    }
    std::vector<float> slice_max(rows), slice_sums(2 * rows);
    CrossEntropyStatistics(rows, begin, begin + half, targets.data(), slice.data(),
                           slice_max.data(), slice_sums.data(), AnyStream());
    CrossEntropyRescale(rows, slice_max.data(), row_max.data(), slice_sums.data(), AnyStream());
    for (int i = 0; i < 2 * rows; ++i) added[i] += slice_sums[i];
  }
  for (int i = 0; i < 2 * rows; ++i) CHECK(added[i] == Approx(sums[i]).epsilon(1e-6));
}

TEST_CASE("a row's many small terms are not lost beside its largest") {
  const int columns = 49152;
  std::vector<float> logits(columns, -17.5f);  // e^-17.5: below half of a float's last bit at 1
  logits[7] = 0;
  const double expected = 1.0 + (columns - 1) * std::exp(-17.5);
  const auto y = CrossEntropy<float>(1, 0, columns, {7}, logits, 1);
  CHECK(y[2][0] == Approx(expected).epsilon(5e-6));
}

TEST_CASE("a NaN logit makes the loss NaN instead of vanishing") {
  for (const size_t place : {size_t{0}, size_t{5}, size_t{33}}) {
    auto logits = Numbers(40, 1);
    logits[place] = std::nanf("");
    CHECK(std::isnan(CrossEntropy<float>(1, 0, 40, {7}, logits, 1).back()[0]));
    CHECK(std::isnan(CrossEntropy<BFloat16>(1, 0, 40, {7}, logits, 1).back()[0]));
  }
}

TEMPLATE_TEST_CASE("sums agree with the reference", "", float, BFloat16) {
  for (const int64_t count : {1, 15, 1000, 16384, 100003}) {
    CAPTURE(count);
    const auto x = NumbersOf<TestType>(count, 1);
    const auto y = NumbersOf<TestType>(count, 2);
    Compare<TestType>(
        kForward,
        [&] {
          auto sum = Store<TestType>(y);
          AddInPlace(count, Store<TestType>(x).data(), sum.data(), AnyStream());
          return Outputs<float>{Load(sum)};
        },
        [&](auto zero) {
          using Real = decltype(zero);
          Outputs<Real> result = {As<Real>(y)};
          reference::AddInPlace<Real>(count, As<Real>(x).data(), result[0].data());
          return result;
        });
  }
}

TEMPLATE_TEST_CASE("rows are copied and rounded from one stride to another", "", float, BFloat16) {
  for (const auto& [rows, columns] : {std::pair(1, 1), {7, 12}, {300, 100}}) {
    const int x_stride = columns + 5;
    const int y_stride = 2 * columns;
    const auto x = testing::Numbers(static_cast<size_t>(rows) * x_stride, 1);
    const auto stored = Store<TestType>(x);
    const std::vector<TestType> before(static_cast<size_t>(rows) * y_stride, TestType(9.0f));
    auto copied = before;
    auto rounded = before;
    CopyRows(rows, columns, stored.data(), x_stride, copied.data(), y_stride, AnyStream());
    RoundRows(rows, columns, x.data(), x_stride, rounded.data(), y_stride, AnyStream());
    auto expected = before;
    for (int row = 0; row < rows; ++row) {
      std::copy_n(stored.begin() + row * x_stride, columns, expected.begin() + row * y_stride);
    }
    CHECK(Load(copied) == Load(expected));
    CHECK(Load(rounded) == Load(expected));
  }
}

TEST_CASE("conversions round to nearest even and keep NaN and infinity") {
  const float infinity = std::numeric_limits<float>::infinity();
  // Halfway between two bf16 numbers: to the even one, 1.0 down and 1.0078125 up.
  std::vector<float> x = {1.00390625f, 1.01171875f, -infinity, 3.4e38f, 1e-40f, -0.0f};
  x.resize(40000, 1.0f / 3);
  x.push_back(std::nanf(""));
  std::vector<BFloat16> narrow(x.size());
  std::vector<float> wide(x.size());
  ToBFloat16(static_cast<int64_t>(x.size()), x.data(), narrow.data(), AnyStream());
  ToFloat(static_cast<int64_t>(x.size()), narrow.data(), wide.data(), AnyStream());
  CHECK(wide[0] == 1.0f);
  CHECK(wide[1] == 1.015625f);
  CHECK(wide[2] == -infinity);
  CHECK(wide[3] == infinity);
  CHECK(wide[4] == Approx(1e-40f).epsilon(0.1));
  CHECK(std::signbit(wide[5]));
  CHECK(wide[39999] == 0.333984375f);
  CHECK(std::isnan(wide.back()));
  CHECK(Load(Store<BFloat16>({x.begin(), x.end() - 1})) ==
        std::vector<float>(wide.begin(), wide.end() - 1));
}

TEST_CASE("a sum of squares counts owned blocks alone and is added to what was there") {
  for (const int64_t blocks : {1, 3, 200, 1563}) {
    const int64_t count = blocks * kFlagBlock;
    CAPTURE(count);
    const auto x = Numbers(count, 1);
    std::vector<uint8_t> flags(blocks);
    for (int64_t i = 0; i < blocks; ++i) flags[i] = i % 3 == 1 ? kDecayed : kOwned;
    Compare<float>(
        kForward,
        [&] {
          double sum = 3;
          PoisonedWorkspace workspace(SumOfSquaresWorkspaceBytes(count, DeviceKind::kCpu));
          SumOfSquares(count, x.data(), flags.data(), &sum, workspace.get(), AnyStream());
          return Outputs<float>{{static_cast<float>(sum - 3)}};
        },
        [&](auto zero) {
          using Real = decltype(zero);
          auto owned = As<Real>(x);
          for (int64_t i = 0; i < count; ++i) {
            if ((flags[i / kFlagBlock] & kOwned) == 0) owned[i] = 0;
          }
          return Outputs<Real>{
              {static_cast<Real>(reference::SumOfSquares<Real>(count, owned.data()))}};
        });
  }
}

TEST_CASE("numbers are added one after the other") {
  const std::vector<double> x = {1e16, 1, -1e16};
  double sum = 1;
  AddInOrder(3, x.data(), &sum, AnyStream());
  CHECK(sum == 0);
  AddInOrder(0, x.data(), &sum, AnyStream());
  CHECK(sum == 0);
}

TEST_CASE("the vector exponential is within two units in the last place") {
  double worst = 0;
  for (int i = 0; i <= 400000; ++i) {
    const float x = -87.3f + 175.6f * static_cast<float>(i) / 400000.0f;
    const double truth = std::exp(static_cast<double>(x));
    const float rounded = static_cast<float>(truth);
    const double unit = std::nextafter(rounded, std::numeric_limits<float>::infinity()) - rounded;
    worst = std::max(worst, std::abs(static_cast<double>(cpu::Exp(x)) - truth) / unit);
  }
  CHECK(worst <= 2.0);
  CHECK(cpu::Exp(0.0f) == 1.0f);
  CHECK(cpu::Exp(-1000.0f) == 0.0f);
  CHECK(cpu::Exp(-std::numeric_limits<float>::infinity()) == 0.0f);
  CHECK(std::isnan(cpu::Exp(std::nanf(""))));
}

}  // namespace
}  // namespace convene::worker
