// The kernels that go over rows, against the plain references in double.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "worker_runtime/device/cuda/testing/gpu_testing.h"
#include "worker_runtime/ops/cuda/cuda_ops.h"
#include "worker_runtime/ops/cuda/launch_geometry.h"
#include "worker_runtime/ops/cuda/testing/kernel_testing.h"
#include "worker_runtime/ops/testing/ops_testing.h"
#include "worker_runtime/ops/testing/reference/activation.h"
#include "worker_runtime/ops/testing/reference/embedding.h"
#include "worker_runtime/ops/testing/reference/experts.h"
#include "worker_runtime/ops/testing/reference/rms_norm.h"
#include "worker_runtime/ops/testing/reference/rope.h"

namespace convene::worker {
namespace {

using convene::testing::HasGpuOrSkips;
using cuda::Gpu;
using cuda::GpuWorkspace;
using cuda::kEmbeddingSegment;
using cuda::OnGpu;
using cuda::SameBits;
using testing::As;
using testing::Compare;
using testing::Integers;
using testing::kBackward;
using testing::kForward;
using testing::Load;
using testing::Numbers;
using testing::NumbersOf;
using testing::Outputs;
using testing::Store;

// The op's input, made from the host's values.
template <typename T>
OnGpu<T> Put(const std::vector<float>& values, size_t offset = 0) {
  return OnGpu<T>(Store<T>(values), offset);
}

struct Shape {
  int rows, columns;
  size_t offset = 0;  // elements by which the arrays miss their alignment
  size_t size() const { return static_cast<size_t>(rows) * columns; }
};
// Every number of vectors a thread may keep, rows that fill neither a warp nor a vector, rows that
// fit no registers, and arrays that start anywhere.
const std::vector<Shape> kShapes = {{1, 1},     {3, 7},    {2, 31},    {5, 64},      {9, 130},
                                    {80, 257},  {13, 512}, {7, 776},   {6, 2048},    {6, 2048, 1},
                                    {4, 3080},  {2, 8192}, {3, 4104},  {2, 16384},   {2, 20000},
                                    {2, 33000}, {700, 40}, {5, 64, 3}, {3, 16384, 2}};

constexpr float kEpsilon = 1e-5f;

template <typename T>
Outputs<float> NormForward(const Shape& shape, const std::vector<float>& x,
                           const std::vector<float>& weight) {
  OnGpu<T> y = Put<T>(x, shape.offset);  // in place
  OnGpu<T> w = Put<T>(weight, shape.offset);
  OnGpu<float> inverse_rms(shape.rows);
  cuda::RmsNormForward<T>(shape.rows, shape.columns, y.data(), nullptr, w.data(), 0, kEpsilon,
                          nullptr, y.data(), inverse_rms.data(), Gpu().compute());
  return {Load(y.Read()), inverse_rms.Read()};
}

template <typename Real>
Outputs<Real> ReferenceNormForward(const Shape& shape, const std::vector<float>& x,
                                   const std::vector<float>& weight) {
  Outputs<Real> y = {As<Real>(x), std::vector<Real>(shape.rows)};
  reference::RmsNormForward<Real>(shape.rows, shape.columns, As<Real>(x).data(),
                                  As<Real>(weight).data(), Real{kEpsilon}, y[0].data(),
                                  y[1].data());
  return y;
}

TEMPLATE_TEST_CASE("RMSNorm's forward pass on the GPU agrees with the reference", "[many-barriers]",
                   float, BFloat16) {
  if (!HasGpuOrSkips()) return;
  for (const Shape& shape : kShapes) {
    CAPTURE(shape.rows, shape.columns, shape.offset);
    const auto x = NumbersOf<TestType>(shape.size(), 1, 3);
    const auto weight = NumbersOf<TestType>(shape.columns, 2);
    Compare<TestType>(
        kForward, [&] { return NormForward<TestType>(shape, x, weight); },
        [&](auto zero) { return ReferenceNormForward<decltype(zero)>(shape, x, weight); }, {1});
  }
}

TEMPLATE_TEST_CASE("RMSNorm again on the GPU gives the bits of the forward pass", "[many-barriers]",
                   float, BFloat16) {
  if (!HasGpuOrSkips()) return;
  for (const Shape& shape : kShapes) {
    CAPTURE(shape.rows, shape.columns, shape.offset);
    const auto x = NumbersOf<TestType>(shape.size(), 1, 3);
    const auto weight = NumbersOf<TestType>(shape.columns, 2);
    const Outputs<float> forward = NormForward<TestType>(shape, x, weight);
    OnGpu<TestType> x_there = Put<TestType>(x, shape.offset);
    OnGpu<TestType> w_there = Put<TestType>(weight, shape.offset);
    OnGpu<float> inverse_rms(forward[1]);
    OnGpu<TestType> y(shape.size(), shape.offset);
    cuda::RmsNormAgain(shape.rows, shape.columns, x_there.data(), w_there.data(), 0,
                       static_cast<const float*>(inverse_rms.data()), y.data(), Gpu().compute());
    CHECK(Load(y.Read()) == forward[0]);
  }
}

TEMPLATE_TEST_CASE("the residual addition within RMSNorm on the GPU is the addition, then RMSNorm",
                   "", float, BFloat16) {
  if (!HasGpuOrSkips()) return;
  for (const Shape& shape : kShapes) {
    CAPTURE(shape.rows, shape.columns, shape.offset);
    const auto x = NumbersOf<TestType>(shape.size(), 1, 3);
    const auto delta = NumbersOf<TestType>(shape.size(), 2, 3);
    const auto weight = NumbersOf<TestType>(shape.columns, 3);
    std::vector<float> sum(shape.size());
    for (size_t i = 0; i < sum.size(); ++i) sum[i] = x[i] + delta[i];
    sum = Load(Store<TestType>(sum));
    OnGpu<TestType> x_there = Put<TestType>(x, shape.offset);
    OnGpu<TestType> delta_there = Put<TestType>(delta, shape.offset);
    OnGpu<TestType> w_there = Put<TestType>(weight, shape.offset);
    OnGpu<TestType> y(shape.size(), shape.offset);
    OnGpu<float> inverse_rms(shape.rows);
    cuda::RmsNormForward<TestType>(shape.rows, shape.columns, x_there.data(), delta_there.data(),
                                   w_there.data(), 0, kEpsilon, x_there.data(), y.data(),
                                   inverse_rms.data(), Gpu().compute());
    CHECK(Load(x_there.Read()) == sum);
    CHECK(Load(delta_there.Read()) == delta);
    const Outputs<float> expected = NormForward<TestType>(shape, sum, weight);
    CHECK(Load(y.Read()) == expected[0]);
    CHECK(inverse_rms.Read() == expected[1]);
  }
}

TEMPLATE_TEST_CASE("RMSNorm's backward pass on the GPU agrees with the reference",
                   "[many-barriers]", float, BFloat16) {
  if (!HasGpuOrSkips()) return;
  for (const Shape& shape : kShapes) {
    for (const bool adds : {false, true}) {
      CAPTURE(shape.rows, shape.columns, shape.offset, adds);
      const auto x = NumbersOf<TestType>(shape.size(), 1, 3);
      const auto weight = NumbersOf<TestType>(shape.columns, 2);
      const auto dy = NumbersOf<TestType>(shape.size(), 3);
      const auto dx_before = NumbersOf<TestType>(shape.size(), 4);
      const auto dweight_before = Numbers(shape.columns, 5);
      const auto inverse_rms = ReferenceNormForward<float>(shape, x, weight)[1];
      Compare<TestType>(
          kBackward,
          [&] {
            OnGpu<TestType> x_there = Put<TestType>(x, shape.offset);
            OnGpu<TestType> w_there = Put<TestType>(weight, shape.offset);
            OnGpu<TestType> dy_there = Put<TestType>(dy, shape.offset);
            OnGpu<float> inverse_there(inverse_rms);
            const auto before = [&](const std::vector<float>& values) {
              return adds ? values : std::vector<float>(values.size(), NAN);
            };
            OnGpu<TestType> dx = Put<TestType>(before(dx_before), shape.offset);
            OnGpu<float> dweight(before(dweight_before));
            GpuWorkspace workspace(cuda::RmsNormWorkspaceBytes(shape.rows, shape.columns));
            cuda::RmsNormBackward<TestType>(shape.rows, shape.columns, x_there.data(),
                                            w_there.data(), 0, inverse_there.data(),
                                            dy_there.data(), adds, dx.data(), adds, dweight.data(),
                                            workspace.get(), Gpu().compute());
            workspace.Check();
            return Outputs<float>{Load(dx.Read()), dweight.Read()};
          },
          [&](auto zero) {
            using Real = decltype(zero);
            Outputs<Real> d = {std::vector<Real>(shape.size()), std::vector<Real>(shape.columns)};
            if (adds) d = {As<Real>(dx_before), As<Real>(dweight_before)};
            reference::RmsNormBackward<Real>(shape.rows, shape.columns, As<Real>(x).data(),
                                             As<Real>(weight).data(),
                                             ReferenceNormForward<Real>(shape, x, weight)[1].data(),
                                             As<Real>(dy).data(), d[0].data(), d[1].data());
            return d;
          },
          {1});
    }
  }
}

// How many numbers of rows differ that lie behind the rows' first `heads_width`.
size_t ChangedBehindHeads(const std::vector<float>& after, const std::vector<float>& before,
                          size_t row_stride, size_t heads_width) {
  size_t changed = 0;
  for (size_t i = 0; i < after.size(); ++i) {
    if (i % row_stride >= heads_width && after[i] != before[i]) ++changed;
  }
  return changed;
}

// Tokens at other places than they lie at, the document's start at or before each.
std::vector<int32_t> MovedTokens(int count) {
  std::vector<int32_t> moved(count);
  for (int i = 0; i < count; ++i) moved[i] = (i + count) / 2;
  return moved;
}

TEMPLATE_TEST_CASE("RoPE on the GPU agrees with the reference and leaves the rest of the row", "",
                   float, BFloat16) {
  if (!HasGpuOrSkips()) return;
  struct Case {
    int batch, sequence_length, heads, head_size, row_stride;
    size_t offset = 0;
    int not_turned = 0;  // of a head
  };
  for (const Case& shape : std::vector<Case>{{1, 1, 1, 2, 2},
                                             {2, 3, 1, 4, 9},
                                             {1, 33, 3, 6, 20},
                                             {2, 65, 5, 64, 400},
                                             {1, 7, 40, 64, 3072},
                                             {1, 7, 40, 64, 3075},
                                             {1, 5, 6, 128, 1024, 1},
                                             {1, 3, 140, 128, 18432},
                                             {2, 300, 2, 16, 48},
                                             {1, 9, 3, 11, 40, 0, 5},
                                             {1, 7, 40, 192, 23040, 0, 128}}) {
    CAPTURE(shape.batch, shape.sequence_length, shape.heads, shape.head_size, shape.row_stride,
            shape.offset);
    const int turned = shape.head_size - shape.not_turned;
    const size_t angles = static_cast<size_t>(shape.sequence_length) * turned / 2;
    std::vector<float> cosines(angles);
    std::vector<float> sines(angles);
    reference::RopeTable<float>(shape.sequence_length, turned, 10000.0, cosines.data(),
                                sines.data());
    const size_t size = static_cast<size_t>(shape.batch) * shape.sequence_length * shape.row_stride;
    const auto x = NumbersOf<TestType>(size, 1);
    const auto begins =
        worker::testing::DocumentBegins(shape.batch, shape.sequence_length, {2, 1, 7});
    const auto moved = MovedTokens(shape.sequence_length);
    for (const int way : {0, 1, 2, 3, 6, 7}) {
      const bool inverse = way % 2 == 1;
      const bool packed = way >= 2;
      const bool is_moved = way >= 4;
      Compare<TestType>(
          inverse ? kBackward : kForward,
          [&] {
            OnGpu<int32_t> begins_there(begins);
            OnGpu<int32_t> moved_there(moved);
            OnGpu<float> cosines_there(cosines);
            OnGpu<float> sines_there(sines);
            OnGpu<TestType> y = Put<TestType>(x, shape.offset);
            cuda::RopeApply(shape.batch, shape.sequence_length, shape.heads, shape.head_size,
                            turned, shape.row_stride, cosines_there.data(), sines_there.data(),
                            is_moved ? moved_there.data() : nullptr,
                            packed ? begins_there.data() : nullptr, inverse, y.data(),
                            Gpu().compute());
            const std::vector<float> result = Load(y.Read());
            CHECK(ChangedBehindHeads(result, x, shape.row_stride, shape.heads * shape.head_size) ==
                  0);
            return Outputs<float>{result};
          },
          [&](auto zero) {
            using Real = decltype(zero);
            std::vector<Real> exact_cosines(angles);
            std::vector<Real> exact_sines(angles);
            reference::RopeTable<Real>(shape.sequence_length, turned, 10000.0, exact_cosines.data(),
                                       exact_sines.data());
            Outputs<Real> y = {As<Real>(x)};
            reference::RopeApply<Real>(shape.batch, shape.sequence_length, shape.heads,
                                       shape.head_size, turned, shape.row_stride,
                                       exact_cosines.data(), exact_sines.data(),
                                       is_moved ? moved.data() : nullptr,
                                       packed ? begins.data() : nullptr, inverse, y[0].data());
            return y;
          });
    }
  }
}

TEMPLATE_TEST_CASE("SwiGLU on the GPU agrees with the reference, forward and backward in place", "",
                   float, BFloat16) {
  if (!HasGpuOrSkips()) return;
  for (const Shape& shape : kShapes) {
    CAPTURE(shape.rows, shape.columns, shape.offset);
    const auto gate_up = NumbersOf<TestType>(2 * shape.size(), 1, 9);
    const auto dy = NumbersOf<TestType>(shape.size(), 2);
    Compare<TestType>(
        kForward,
        [&] {
          OnGpu<TestType> x = Put<TestType>(gate_up, shape.offset);
          OnGpu<TestType> y(shape.size(), shape.offset);
          cuda::ActivationForward<TestType>(Activation::kSwiglu, shape.rows, shape.columns,
                                            x.data(), y.data(), Gpu().compute());
          return Outputs<float>{Load(y.Read())};
        },
        [&](auto zero) {
          using Real = decltype(zero);
          Outputs<Real> y = {std::vector<Real>(shape.size())};
          reference::ActivationForward<Real>(Activation::kSwiglu, shape.rows, shape.columns,
                                             As<Real>(gate_up).data(), y[0].data());
          return y;
        });
    Compare<TestType>(
        kBackward,
        [&] {
          OnGpu<TestType> x = Put<TestType>(gate_up, shape.offset);
          OnGpu<TestType> dy_there = Put<TestType>(dy, shape.offset);
          cuda::ActivationBackward<TestType>(Activation::kSwiglu, shape.rows, shape.columns,
                                             x.data(), dy_there.data(), x.data(), Gpu().compute());
          return Outputs<float>{Load(x.Read())};
        },
        [&](auto zero) {
          using Real = decltype(zero);
          Outputs<Real> d = {std::vector<Real>(2 * shape.size())};
          reference::ActivationBackward<Real>(Activation::kSwiglu, shape.rows, shape.columns,
                                              As<Real>(gate_up).data(), As<Real>(dy).data(),
                                              d[0].data());
          return d;
        });
  }
}

TEST_CASE("SwiGLU on the GPU is zero, not NaN, where the sigmoid vanishes") {
  if (!HasGpuOrSkips()) return;
  const std::vector<float> gate_up = {-200.0f, -88.0f, 200.0f, NAN, 1.0f, 1.0f, 1.0f, 1.0f};
  OnGpu<BFloat16> x = Put<BFloat16>(gate_up);
  OnGpu<BFloat16> y(4);
  cuda::ActivationForward<BFloat16>(Activation::kSwiglu, 1, 4, x.data(), y.data(), Gpu().compute());
  const std::vector<float> result = Load(y.Read());
  CHECK(result[0] == 0);
  CHECK(std::abs(result[1]) < 1e-30f);
  CHECK(result[2] == 200);
  CHECK(std::isnan(result[3]));
}

TEMPLATE_TEST_CASE("rows' gates on the GPU agree with the reference, and their logits' gradient",
                   "", float, BFloat16) {
  if (!HasGpuOrSkips()) return;
  for (const Shape& shape : kShapes) {
    CAPTURE(shape.rows, shape.columns, shape.offset);
    const auto y = NumbersOf<TestType>(shape.size(), 1);
    const auto dy = NumbersOf<TestType>(shape.size(), 2);
    const auto logits = Numbers(shape.rows, 3);
    Compare<TestType>(
        kBackward,  // dlogits of few rows: the plain sums are nearly exact by chance
        [&] {
          OnGpu<TestType> gated = Put<TestType>(y, shape.offset);
          OnGpu<TestType> y_there = Put<TestType>(y, shape.offset);
          OnGpu<TestType> dy_there = Put<TestType>(dy, shape.offset);
          OnGpu<float> logits_there(logits);
          OnGpu<TestType> dlogits(shape.rows);
          cuda::GateRows<TestType>(shape.rows, shape.columns, logits_there.data(), gated.data(),
                                   Gpu().compute());
          cuda::GateRowsBackward<TestType>(shape.rows, shape.columns, logits_there.data(),
                                           y_there.data(), dy_there.data(), dlogits.data(),
                                           Gpu().compute());
          CHECK(Load(y_there.Read()) == y);
          return Outputs<float>{Load(gated.Read()), Load(dy_there.Read()), Load(dlogits.Read())};
        },
        [&](auto zero) {
          using Real = decltype(zero);
          Outputs<Real> out = {As<Real>(y), As<Real>(dy), std::vector<Real>(shape.rows)};
          reference::GateRows<Real>(shape.rows, shape.columns, logits.data(), out[0].data());
          reference::GateRowsBackward<Real>(shape.rows, shape.columns, logits.data(),
                                            As<Real>(y).data(), out[1].data(), out[2].data());
          return out;
        });
  }
}

// EmbeddingBackward's additions in its order, so with its bits: a token's rows in theirs, cut where
// segments of all sorted rows end.
std::vector<float> AddInSegments(int columns, int vocabulary_begin, int vocabulary_end,
                                 const std::vector<int32_t>& tokens, const std::vector<float>& dy,
                                 std::vector<float> dtable) {
  std::map<int32_t, std::vector<size_t>> rows_of;
  for (size_t row = 0; row < tokens.size(); ++row) {
    if (tokens[row] >= vocabulary_begin && tokens[row] < vocabulary_end) {
      rows_of[tokens[row]].push_back(row);
    }
  }
  size_t first = 0;
  for (const auto& [token, rows] : rows_of) {
    const bool is_cut = first / kEmbeddingSegment != (first + rows.size() - 1) / kEmbeddingSegment;
    for (int column = 0; column < columns; ++column) {
      float& sum = dtable[size_t{1} * (token - vocabulary_begin) * columns + column];
      float piece = 0;
      for (size_t i = 0; i < rows.size(); ++i) {
        (is_cut ? piece : sum) += dy[rows[i] * columns + column];
        const bool ends_piece = (first + i + 1) % kEmbeddingSegment == 0 || i + 1 == rows.size();
        if (is_cut && ends_piece) sum += std::exchange(piece, 0.0f);
      }
    }
    first += rows.size();
  }
  return dtable;
}

TEMPLATE_TEST_CASE("the embedding on the GPU copies its slice's rows and adds gradients in order",
                   "", float, BFloat16) {
  if (!HasGpuOrSkips()) return;
  constexpr int kVocabularyBegin = 20;
  constexpr int kVocabularyEnd = 57;
  for (const Shape& shape : kShapes) {
    CAPTURE(shape.rows, shape.columns, shape.offset);
    const size_t slice = static_cast<size_t>(kVocabularyEnd - kVocabularyBegin) * shape.columns;
    const auto tokens = Integers(shape.rows, 1, -2, 64);  // some of them in no slice
    const auto table = NumbersOf<TestType>(slice, 2);
    const auto dy = NumbersOf<TestType>(shape.size(), 3);
    const auto dtable_before = Numbers(slice, 4);
    OnGpu<int32_t> tokens_there(tokens);
    OnGpu<TestType> table_there = Put<TestType>(table, shape.offset);
    OnGpu<TestType> y(shape.size(), shape.offset);
    cuda::EmbeddingForward<TestType>(shape.rows, shape.columns, kVocabularyBegin, kVocabularyEnd,
                                     tokens_there.data(), table_there.data(), false, y.data(),
                                     Gpu().compute());
    std::vector<float> expected(shape.size());
    reference::EmbeddingForward<float>(shape.rows, shape.columns, kVocabularyBegin, kVocabularyEnd,
                                       tokens.data(), table.data(), false, expected.data());
    CHECK(Load(y.Read()) == expected);

    OnGpu<TestType> dy_there = Put<TestType>(dy, shape.offset);
    OnGpu<float> dtable(dtable_before, shape.offset);
    GpuWorkspace workspace(cuda::EmbeddingWorkspaceBytes(shape.rows, shape.columns));
    cuda::EmbeddingBackward<TestType>(shape.rows, shape.columns, kVocabularyBegin, kVocabularyEnd,
                                      tokens_there.data(), dy_there.data(), dtable.data(),
                                      workspace.get(), Gpu().compute());
    workspace.Check();
    CHECK(SameBits(dtable.Read(), AddInSegments(shape.columns, kVocabularyBegin, kVocabularyEnd,
                                                tokens, dy, dtable_before)));
  }
}

TEST_CASE("the embedding's backward pass on the GPU sorts a real vocabulary and cuts long runs") {
  if (!HasGpuOrSkips()) return;
  constexpr int kVocabulary = 128256;
  constexpr int kToken = 70000;
  constexpr int kSegment = kEmbeddingSegment;
  // `count` rows of one token behind `before` rows of smaller ones and before rows of larger ones.
  struct Run {
    int rows, before, count, columns;
  };
  for (const Run& run : std::vector<Run>{{9000, 40, 3000, 16},
                                         {4 * kSegment, kSegment, 2 * kSegment, 8},
                                         {4 * kSegment, kSegment - 1, kSegment + 2, 3},
                                         {3 * kSegment + 1, 0, 3 * kSegment + 1, 20},
                                         {2 * kSegment, kSegment, kSegment, 4},
                                         {3 * kSegment, 5, kSegment - 5, 12}}) {
    CAPTURE(run.rows, run.before, run.count, run.columns);
    std::vector<int32_t> tokens;
    for (int row = 0; row < run.rows; ++row) {
      const int place = static_cast<int>(int64_t{row} * 4999 % run.rows);  // each once
      const bool in_run = place >= run.before && place < run.before + run.count;
      tokens.push_back(in_run ? kToken : (place < run.before ? place : kToken + 1 + place));
    }
    const auto dy = NumbersOf<BFloat16>(size_t{1} * run.rows * run.columns, 2);
    const auto before = Numbers(size_t{kVocabulary} * run.columns, 3);
    OnGpu<int32_t> tokens_there(tokens);
    OnGpu<BFloat16> dy_there = Put<BFloat16>(dy);
    OnGpu<float> dtable(before);
    GpuWorkspace workspace(cuda::EmbeddingWorkspaceBytes(run.rows, run.columns));
    cuda::EmbeddingBackward<BFloat16>(run.rows, run.columns, 0, kVocabulary, tokens_there.data(),
                                      dy_there.data(), dtable.data(), workspace.get(),
                                      Gpu().compute());
    workspace.Check();
    CHECK(SameBits(dtable.Read(), AddInSegments(run.columns, 0, kVocabulary, tokens, dy, before)));
  }
}

}  // namespace
}  // namespace convene::worker
