#include <omp.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "worker_runtime/ops/adamw.h"
#include "worker_runtime/ops/attention.h"
#include "worker_runtime/ops/cpu/simd.h"
#include "worker_runtime/ops/cross_entropy.h"
#include "worker_runtime/ops/elementwise.h"
#include "worker_runtime/ops/embedding.h"
#include "worker_runtime/ops/matmul.h"
#include "worker_runtime/ops/ops_testing.h"
#include "worker_runtime/ops/reference/adamw.h"
#include "worker_runtime/ops/reference/attention.h"
#include "worker_runtime/ops/reference/cross_entropy.h"
#include "worker_runtime/ops/reference/elementwise.h"
#include "worker_runtime/ops/reference/embedding.h"
#include "worker_runtime/ops/reference/matmul.h"
#include "worker_runtime/ops/reference/rms_norm.h"
#include "worker_runtime/ops/reference/rope.h"
#include "worker_runtime/ops/reference/swiglu.h"
#include "worker_runtime/ops/rms_norm.h"
#include "worker_runtime/ops/rope.h"
#include "worker_runtime/ops/swiglu.h"

namespace convene::worker {
namespace {

using testing::As;
using testing::Compare;
using testing::Integers;
using testing::kBackward;
using testing::kForward;
using testing::Numbers;
using testing::Outputs;

Stream& AnyStream() {
  static Stream stream = Stream::Cpu();
  return stream;
}

TEST_CASE("matrix products agree with the reference for every transpose, shape and beta") {
  struct Shape {
    int m, n, k;
  };
  for (const Shape& shape : std::vector<Shape>{{1, 1, 1},
                                               {1, 17, 5},
                                               {7, 1, 33},
                                               {5, 19, 3},
                                               {33, 65, 129},
                                               {128, 96, 64},
                                               {48, 40, 1500}}) {
    for (const Transpose transpose_a : {Transpose::kNo, Transpose::kYes}) {
      for (const Transpose transpose_b : {Transpose::kNo, Transpose::kYes}) {
        for (const float beta : {0.0f, 1.0f}) {
          const int m = shape.m;
          const int n = shape.n;
          const int k = shape.k;
          CAPTURE(m, n, k, transpose_a, transpose_b, beta);
          const size_t size = static_cast<size_t>(m) * n;
          const auto a = Numbers(static_cast<size_t>(m) * k, 1);
          const auto b = Numbers(static_cast<size_t>(k) * n, 2);
          // With beta 0 what stands in c must not matter.
          const auto c = beta == 0 ? std::vector<float>(size, std::nanf("")) : Numbers(size, 3);
          Compare(
              kForward,
              [&] {
                auto y = c;
                MatMul(transpose_a, transpose_b, m, n, k, a.data(), b.data(), beta, y.data(),
                       AnyStream());
                return Outputs<float>{y};
              },
              [&](auto zero) {
                using Real = decltype(zero);
                auto y = As<Real>(c);
                reference::MatMul<Real>(transpose_a, transpose_b, m, n, k, As<Real>(a).data(),
                                        As<Real>(b).data(), Real{beta}, y.data());
                return Outputs<Real>{y};
              });
        }
      }
    }
  }
}

struct RowsAndColumns {
  int rows, columns;
  size_t size() const { return static_cast<size_t>(rows) * columns; }
};
const std::vector<RowsAndColumns> kRowShapes = {{1, 1},  {1, 16},  {3, 7},   {2, 31},
                                                {5, 64}, {9, 130}, {80, 257}};

TEST_CASE("RMSNorm agrees with the reference, forward and backward") {
  for (const auto& shape : kRowShapes) {
    const int rows = shape.rows;
    const int columns = shape.columns;
    CAPTURE(rows, columns);
    const float epsilon = 1e-5f;
    const auto x = Numbers(shape.size(), 1, 3);
    const auto weight = Numbers(columns, 2);
    const auto dy = Numbers(shape.size(), 3);
    const auto dx_before = Numbers(shape.size(), 4);
    const auto dweight_before = Numbers(columns, 5);
    const auto forward = [&] {
      Outputs<float> y = {x, std::vector<float>(rows)};  // in place
      RmsNormForward(rows, columns, y[0].data(), weight.data(), epsilon, y[0].data(), y[1].data(),
                     AnyStream());
      return y;
    };
    const auto reference_forward = [&](auto zero) {
      using Real = decltype(zero);
      Outputs<Real> y = {As<Real>(x), std::vector<Real>(rows)};
      reference::RmsNormForward<Real>(rows, columns, As<Real>(x).data(), As<Real>(weight).data(),
                                      Real{epsilon}, y[0].data(), y[1].data());
      return y;
    };
    Compare(kForward, forward, reference_forward);
    Compare(
        kBackward,
        [&] {
          Outputs<float> d = {dx_before, dweight_before};
          RmsNormBackward(rows, columns, x.data(), weight.data(), forward()[1].data(), dy.data(),
                          d[0].data(), d[1].data(), AnyStream());
          return d;
        },
        [&](auto zero) {
          using Real = decltype(zero);
          Outputs<Real> d = {As<Real>(dx_before), As<Real>(dweight_before)};
          reference::RmsNormBackward<Real>(
              rows, columns, As<Real>(x).data(), As<Real>(weight).data(),
              reference_forward(zero)[1].data(), As<Real>(dy).data(), d[0].data(), d[1].data());
          return d;
        });
  }
}

TEST_CASE("RoPE agrees with the reference, leaves the rest of the row, and turns back") {
  struct Shape {
    int batch, sequence_length, heads, head_size, row_stride;
  };
  for (const Shape& shape : std::vector<Shape>{
           {1, 1, 1, 2, 2}, {2, 3, 1, 4, 9}, {1, 33, 3, 6, 20}, {2, 65, 4, 64, 400}}) {
    const int batch = shape.batch;
    const int sequence_length = shape.sequence_length;
    const int heads = shape.heads;
    const int head_size = shape.head_size;
    const int row_stride = shape.row_stride;
    CAPTURE(batch, sequence_length, heads, head_size);
    const size_t angles = static_cast<size_t>(sequence_length) * head_size / 2;
    std::vector<float> cosines(angles), sines(angles);
    RopeTable(sequence_length, head_size, 10000.0, cosines.data(), sines.data());
    const auto x = Numbers(static_cast<size_t>(batch) * sequence_length * row_stride, 1);
    for (const bool inverse : {false, true}) {
      Compare(
          inverse ? kBackward : kForward,
          [&] {
            Outputs<float> y = {x};
            RopeApply(batch, sequence_length, heads, head_size, row_stride, cosines.data(),
                      sines.data(), inverse, y[0].data(), AnyStream());
            return y;
          },
          [&](auto zero) {
            using Real = decltype(zero);
            std::vector<Real> cosines(angles), sines(angles);
            reference::RopeTable<Real>(sequence_length, head_size, 10000.0, cosines.data(),
                                       sines.data());
            Outputs<Real> y = {As<Real>(x)};
            reference::RopeApply<Real>(batch, sequence_length, heads, head_size, row_stride,
                                       cosines.data(), sines.data(), inverse, y[0].data());
            return y;
          });
    }
    auto there_and_back = x;
    for (const bool inverse : {false, true}) {
      RopeApply(batch, sequence_length, heads, head_size, row_stride, cosines.data(), sines.data(),
                inverse, there_and_back.data(), AnyStream());
    }
    CHECK(testing::Distance(there_and_back, As<double>(x)) <= 1e-6 * std::sqrt(x.size()));
  }
}

TEST_CASE("SwiGLU agrees with the reference, forward and backward in place") {
  for (const auto& shape : kRowShapes) {
    const int rows = shape.rows;
    const int width = shape.columns;
    CAPTURE(rows, width);
    const auto gate_up = Numbers(2 * shape.size(), 1, 9);
    const auto dy = Numbers(shape.size(), 2);
    Compare(
        kForward,
        [&] {
          Outputs<float> y = {std::vector<float>(shape.size())};
          SwigluForward(rows, width, gate_up.data(), y[0].data(), AnyStream());
          return y;
        },
        [&](auto zero) {
          using Real = decltype(zero);
          Outputs<Real> y = {std::vector<Real>(shape.size())};
          reference::SwigluForward<Real>(rows, width, As<Real>(gate_up).data(), y[0].data());
          return y;
        });
    Compare(
        kBackward,
        [&] {
          Outputs<float> d = {gate_up};
          SwigluBackward(rows, width, d[0].data(), dy.data(), d[0].data(), AnyStream());
          return d;
        },
        [&](auto zero) {
          using Real = decltype(zero);
          Outputs<Real> d = {As<Real>(gate_up)};
          reference::SwigluBackward<Real>(rows, width, As<Real>(gate_up).data(),
                                          As<Real>(dy).data(), d[0].data());
          return d;
        });
  }
}

TEST_CASE("embedding agrees with the reference for tokens inside and outside the slice") {
  for (const auto& shape : kRowShapes) {
    const int rows = shape.rows;
    const int columns = shape.columns;
    const int begin = 5;
    const int end = 12;
    CAPTURE(rows, columns);
    const auto tokens = Integers(rows, 1, 0, 20);  // most outside, many repeated
    const size_t table_size = static_cast<size_t>(end - begin) * columns;
    const auto table = Numbers(table_size, 2);
    const auto dy = Numbers(shape.size(), 3);
    Compare(
        kForward,
        [&] {
          Outputs<float> y = {std::vector<float>(shape.size(), std::nanf(""))};
          EmbeddingForward(rows, columns, begin, end, tokens.data(), table.data(), y[0].data(),
                           AnyStream());
          return y;
        },
        [&](auto zero) {
          using Real = decltype(zero);
          Outputs<Real> y = {std::vector<Real>(shape.size())};
          reference::EmbeddingForward<Real>(rows, columns, begin, end, tokens.data(),
                                            As<Real>(table).data(), y[0].data());
          return y;
        });
    Compare(
        kBackward,
        [&] {
          Outputs<float> d = {table};
          EmbeddingBackward(rows, columns, begin, end, tokens.data(), dy.data(), d[0].data(),
                            AnyStream());
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

TEST_CASE("cross-entropy agrees with the reference, ignored and foreign targets included") {
  for (const auto& shape : kRowShapes) {
    const int rows = shape.rows;
    const int columns = shape.columns;
    const int begin = 3;
    const int end = begin + columns;
    CAPTURE(rows, columns);
    const auto targets = Integers(rows, 1, -2, end + 3);
    const auto logits = Numbers(shape.size(), 2, 12);
    const float gradient_scale = 0.125f;
    Compare(
        kForward,
        [&] {
          Outputs<float> y = {logits, std::vector<float>(rows), std::vector<float>(2 * rows)};
          CrossEntropyRowMax(rows, columns, y[0].data(), y[1].data(), AnyStream());
          CrossEntropyExpSums(rows, begin, end, targets.data(), y[1].data(), y[0].data(),
                              y[2].data(), AnyStream());
          const auto exponentials = y[0];
          const double loss =
              CrossEntropyLossAndGradient(rows, begin, end, targets.data(), y[2].data(),
                                          gradient_scale, y[0].data(), AnyStream());
          y.push_back(exponentials);
          y.push_back({static_cast<float>(loss)});
          return y;
        },
        [&](auto zero) {
          using Real = decltype(zero);
          Outputs<Real> y = {As<Real>(logits), std::vector<Real>(rows),
                             std::vector<Real>(2 * rows)};
          reference::CrossEntropyRowMax<Real>(rows, columns, y[0].data(), y[1].data());
          reference::CrossEntropyExpSums<Real>(rows, begin, end, targets.data(), y[1].data(),
                                               y[0].data(), y[2].data());
          const auto exponentials = y[0];
          const double loss = reference::CrossEntropyLossAndGradient<Real>(
              rows, begin, end, targets.data(), y[2].data(), Real{gradient_scale}, y[0].data());
          y.push_back(exponentials);
          y.push_back({static_cast<Real>(loss)});
          return y;
        });
  }
}

TEST_CASE("a NaN logit makes the loss NaN instead of vanishing") {
  for (const size_t place : {size_t{0}, size_t{5}, size_t{33}}) {
    auto logits = Numbers(40, 1);
    logits[place] = std::nanf("");
    const std::vector<int32_t> targets = {7};
    std::vector<float> row_max(1), sums(2);
    CrossEntropyRowMax(1, 40, logits.data(), row_max.data(), AnyStream());
    CrossEntropyExpSums(1, 0, 40, targets.data(), row_max.data(), logits.data(), sums.data(),
                        AnyStream());
    CHECK(std::isnan(CrossEntropyLossAndGradient(1, 0, 40, targets.data(), sums.data(), 1,
                                                 logits.data(), AnyStream())));
  }
}

const std::vector<AttentionShape> kAttentionShapes = {
    {1, 1, 1, 1, 4},   {2, 3, 2, 1, 4},    {1, 17, 3, 3, 20}, {2, 49, 4, 2, 16},
    {1, 130, 2, 1, 8}, {1, 97, 1, 1, 128}, {3, 64, 6, 2, 64}, {1, 300, 2, 2, 12},
};

template <typename Real>
Outputs<Real> ReferenceAttentionForward(const AttentionShape& shape, const std::vector<Real>& qkv) {
  const size_t tokens = static_cast<size_t>(shape.batch) * shape.sequence_length;
  Outputs<Real> y = {std::vector<Real>(tokens * shape.heads * shape.head_size),
                     std::vector<Real>(tokens * shape.heads)};
  reference::AttentionForward<Real>(shape, qkv.data(), y[0].data(), y[1].data());
  return y;
}

template <typename Real>
std::vector<Real> ReferenceAttentionBackward(const AttentionShape& shape,
                                             const std::vector<Real>& qkv,
                                             const std::vector<Real>& dout) {
  const auto y = ReferenceAttentionForward(shape, qkv);
  std::vector<Real> dqkv(qkv.size());
  reference::AttentionBackward<Real>(shape, qkv.data(), y[0].data(), y[1].data(), dout.data(),
                                     dqkv.data());
  return dqkv;
}

TEST_CASE("attention agrees with the reference, forward and backward") {
  for (const AttentionShape& shape : kAttentionShapes) {
    CAPTURE(shape.batch, shape.sequence_length, shape.heads, shape.kv_heads, shape.head_size);
    const size_t tokens = static_cast<size_t>(shape.batch) * shape.sequence_length;
    const auto qkv = Numbers(tokens * shape.qkv_width(), 1, 2);
    const size_t out_size = tokens * shape.heads * shape.head_size;
    const auto dout = Numbers(out_size, 2);
    // What stands in the workspace must not matter.
    const auto workspace = [&] {
      return std::vector<float>(AttentionWorkspace(shape), std::nanf(""));
    };
    const auto forward = [&] {
      Outputs<float> y = {std::vector<float>(out_size), std::vector<float>(tokens * shape.heads)};
      AttentionForward(shape, qkv.data(), y[0].data(), y[1].data(), workspace().data(),
                       AnyStream());
      return y;
    };
    Compare(kForward, forward,
            [&](auto zero) { return ReferenceAttentionForward(shape, As<decltype(zero)>(qkv)); });
    Compare(
        kBackward,
        [&] {
          const auto y = forward();
          Outputs<float> d = {std::vector<float>(qkv.size(), std::nanf(""))};
          AttentionBackward(shape, qkv.data(), y[0].data(), y[1].data(), dout.data(), d[0].data(),
                            workspace().data(), AnyStream());
          return d;
        },
        [&](auto zero) {
          using Real = decltype(zero);
          return Outputs<Real>{ReferenceAttentionBackward(shape, As<Real>(qkv), As<Real>(dout))};
        });
  }
}

TEST_CASE("attention survives scores that differ by hundreds") {
  const AttentionShape shape = {1, 150, 1, 1, 16};
  const auto qkv = Numbers(static_cast<size_t>(150) * shape.qkv_width(), 1, 40);
  std::vector<float> workspace(AttentionWorkspace(shape));
  Outputs<float> y = {std::vector<float>(150 * 16), std::vector<float>(150)};
  AttentionForward(shape, qkv.data(), y[0].data(), y[1].data(), workspace.data(), AnyStream());
  const auto truth = ReferenceAttentionForward(shape, As<double>(qkv));
  CHECK(testing::Distance(y[0], truth[0]) <= 1e-3 * std::sqrt(truth[0].size()));
}

TEST_CASE("sums, scales and norms agree with the reference") {
  for (const int64_t count : {1, 15, 1000, 16384, 100003}) {
    CAPTURE(count);
    const auto x = Numbers(count, 1);
    const auto y = Numbers(count, 2);
    Compare(
        kForward,
        [&] {
          Outputs<float> result = {y, x, {}};
          AddInPlace(count, x.data(), result[0].data(), AnyStream());
          ScaleInPlace(count, 0.3f, result[1].data(), AnyStream());
          result[2] = {static_cast<float>(SumOfSquares(count, x.data(), AnyStream()))};
          return result;
        },
        [&](auto zero) {
          using Real = decltype(zero);
          Outputs<Real> result = {As<Real>(y), As<Real>(x), {}};
          reference::AddInPlace<Real>(count, As<Real>(x).data(), result[0].data());
          reference::ScaleInPlace<Real>(count, Real{0.3f}, result[1].data());
          result[2] = {static_cast<Real>(reference::SumOfSquares<Real>(count, As<Real>(x).data()))};
          return result;
        });
  }
}

TEST_CASE("AdamW agrees with the reference over its first steps") {
  for (const int64_t count : {1, 37, 20001}) {
    CAPTURE(count);
    AdamWParameters parameters;
    parameters.learning_rate = 0.01;
    parameters.weight_decay = 0.1;
    parameters.gradient_scale = 0.5f;
    const auto weights = Numbers(count, 1);
    constexpr int kSteps = 3;
    Compare(
        kForward,
        [&] {
          Outputs<float> y = {weights, std::vector<float>(count), std::vector<float>(count)};
          for (int step = 1; step <= kSteps; ++step) {
            auto now = parameters;
            now.step = step;
            AdamW(count, now, Numbers(count, 10 + step).data(), y[0].data(), y[1].data(),
                  y[2].data(), AnyStream());
          }
          return y;
        },
        [&](auto zero) {
          using Real = decltype(zero);
          Outputs<Real> y = {As<Real>(weights), std::vector<Real>(count), std::vector<Real>(count)};
          for (int step = 1; step <= kSteps; ++step) {
            auto now = parameters;
            now.step = step;
            reference::AdamW<Real>(count, now, As<Real>(Numbers(count, 10 + step)).data(),
                                   y[0].data(), y[1].data(), y[2].data());
          }
          return y;
        });
  }
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
