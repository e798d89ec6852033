// The ops that some families of models have and Llama has not, on every device, against the plain
// references in double.
#include <catch2/catch.hpp>
#include <cmath>
#include <vector>

#include "worker_runtime/device/device.h"
#include "worker_runtime/ops/activation.h"
#include "worker_runtime/ops/attention_sink.h"
#include "worker_runtime/ops/bias.h"
#include "worker_runtime/ops/elementwise.h"
#include "worker_runtime/ops/head_norm.h"
#include "worker_runtime/ops/latent_heads.h"
#include "worker_runtime/ops/layer_norm.h"
#include "worker_runtime/ops/testing/op_arrays.h"
#include "worker_runtime/ops/testing/ops_testing.h"
#include "worker_runtime/ops/testing/reference/activation.h"
#include "worker_runtime/ops/testing/reference/attention_sink.h"
#include "worker_runtime/ops/testing/reference/layer_norm.h"
#include "worker_runtime/ops/testing/reference/rms_norm.h"
#include "worker_runtime/testing/places.h"

namespace convene::worker {
namespace {

using testing::Array;
using testing::As;
using testing::Compare;
using testing::kBackward;
using testing::kForward;
using testing::Load;
using testing::Numbers;
using testing::NumbersOf;
using testing::Outputs;
using testing::Poison;
using testing::Scratch;
using testing::Store;
using testing::TheDevice;
using testing::TheStream;

constexpr float kEpsilon = 1e-5f;

struct Shape {
  int rows, columns;
  size_t offset = 0;
  size_t size() const { return static_cast<size_t>(rows) * columns; }
};
// Rows that fill neither a warp nor a vector, rows in registers and rows that are read twice, and
// arrays that start anywhere.
const std::vector<Shape> kShapes = {{1, 5},    {3, 7},      {2, 31},      {5, 64},
                                    {9, 130},  {300, 40},   {4, 768},     {3, 2048},
                                    {2, 2056}, {4, 512, 1}, {2, 4104, 3}, {2, 17000}};

TEMPLATE_TEST_CASE("a bias is added to each row, and its gradient is the sum of the rows", "",
                   float, BFloat16) {
  if (!testing::HasPlacesOrSkips(1)) return;
  for (const Shape& s : kShapes) {
    CAPTURE(s.rows, s.columns, s.offset);
    const auto y_before = NumbersOf<TestType>(s.size(), 1);
    const auto bias = NumbersOf<TestType>(s.columns, 2);
    const auto before = Numbers(s.columns, 3);
    Compare<TestType>(
        kForward,
        [&] {
          const Array<TestType> y(y_before, s.offset);
          const Array<TestType> bias_there(bias, s.offset);
          AddBias<TestType>(s.rows, s.columns, bias_there.data(), y.data(), TheStream());
          return Outputs<float>{y.Fetch()};
        },
        [&](auto zero) {
          using Real = decltype(zero);
          Outputs<Real> y = {As<Real>(y_before)};
          for (size_t i = 0; i < s.size(); ++i) y[0][i] += static_cast<Real>(bias[i % s.columns]);
          return y;
        });
    for (const bool adds : {false, true}) {
      Compare<TestType>(
          kBackward,
          [&] {
            const Array<float> dbias(adds ? before : Poison(s.columns));
            const Scratch scratch(BiasWorkspaceBytes(s.rows, s.columns, TheDevice().kind()));
            const Array<TestType> y_before_there(y_before, s.offset);
            BiasBackward<TestType>(s.rows, s.columns, y_before_there.data(), adds, dbias.data(),
                                   scratch.get(), TheStream());
            return Outputs<float>{dbias.Fetch()};
          },
          [&](auto zero) {
            using Real = decltype(zero);
            Outputs<Real> d = {adds ? As<Real>(before) : std::vector<Real>(s.columns)};
            for (size_t i = 0; i < s.size(); ++i) {
              d[0][i % s.columns] += static_cast<Real>(y_before[i]);
            }
            return d;
          },
          {0});
    }
  }
}

template <typename T>
Outputs<float> LayerNorm(const Shape& s, const std::vector<float>& x,
                         const std::vector<float>& delta, const std::vector<float>& weight,
                         const std::vector<float>& bias) {
  const Array<T> there(x, s.offset);
  const Array<T> added(delta, s.offset);
  const Array<T> y(Poison(s.size()), s.offset);
  const Array<float> statistics(Poison(s.rows * kLayerNormStatistics));
  const Array<T> weight_there(weight, s.offset);
  const Array<T> bias_there(bias, s.offset);
  LayerNormForward<T>(s.rows, s.columns, there.data(), delta.empty() ? nullptr : added.data(),
                      weight_there.data(), bias_there.data(), kEpsilon, there.data(), y.data(),
                      statistics.data(), TheStream());
  return {y.Fetch(), statistics.Fetch(), there.Fetch()};
}

template <typename Real>
Outputs<Real> PlainLayerNorm(const Shape& s, const std::vector<float>& x,
                             const std::vector<float>& weight, const std::vector<float>& bias) {
  Outputs<Real> y = {std::vector<Real>(s.size()), std::vector<Real>(s.rows * kLayerNormStatistics)};
  reference::LayerNormForward<Real>(s.rows, s.columns, As<Real>(x).data(), As<Real>(weight).data(),
                                    As<Real>(bias).data(), Real{kEpsilon}, y[0].data(),
                                    y[1].data());
  return y;
}

TEMPLATE_TEST_CASE("LayerNorm agrees with the reference; again, and behind a sum, it has its bits",
                   "[many-barriers]", float, BFloat16) {
  if (!testing::HasPlacesOrSkips(1)) return;
  for (const Shape& s : kShapes) {
    CAPTURE(s.rows, s.columns, s.offset);
    // A mean far from 0, as residual streams have it.
    auto x = NumbersOf<TestType>(s.size(), 1, 3);
    for (float& value : x) value += 5;
    x = Load(Store<TestType>(x));
    const auto weight = NumbersOf<TestType>(s.columns, 2);
    const auto bias = NumbersOf<TestType>(s.columns, 3);
    Compare<TestType>(
        kForward,
        [&] {
          Outputs<float> y = LayerNorm<TestType>(s, x, {}, weight, bias);
          y.pop_back();
          return y;
        },
        [&](auto zero) { return PlainLayerNorm<decltype(zero)>(s, x, weight, bias); }, {1});

    const Outputs<float> forward = LayerNorm<TestType>(s, x, {}, weight, bias);
    const Array<TestType> again(Poison(s.size()), s.offset);
    const Array<TestType> x_there(x, s.offset);
    const Array<TestType> weight_there(weight, s.offset);
    const Array<TestType> bias_there(bias, s.offset);
    const Array<float> forward_statistics(forward[1]);
    LayerNormAgain<TestType>(s.rows, s.columns, x_there.data(), weight_there.data(),
                             bias_there.data(), forward_statistics.data(), again.data(),
                             TheStream());
    CHECK((again.Fetch() == forward[0]));

    const auto delta = NumbersOf<TestType>(s.size(), 4, 3);
    std::vector<float> sum(s.size());
    for (size_t i = 0; i < sum.size(); ++i) sum[i] = x[i] + delta[i];
    sum = Load(Store<TestType>(sum));
    const Outputs<float> of_sum = LayerNorm<TestType>(s, sum, {}, weight, bias);
    CHECK((LayerNorm<TestType>(s, x, delta, weight, bias) == of_sum));
  }
}

TEMPLATE_TEST_CASE("LayerNorm's backward pass agrees with the reference", "[many-barriers]", float,
                   BFloat16) {
  if (!testing::HasPlacesOrSkips(1)) return;
  for (const Shape& s : kShapes) {
    for (const bool adds : {false, true}) {
      CAPTURE(s.rows, s.columns, s.offset, adds);
      const auto x = NumbersOf<TestType>(s.size(), 1, 3);
      const auto weight = NumbersOf<TestType>(s.columns, 2);
      const auto bias = std::vector<float>(s.columns);
      const auto dy = NumbersOf<TestType>(s.size(), 3);
      const auto dx_before = NumbersOf<TestType>(s.size(), 4);
      const auto before = Numbers(s.columns, 5);
      const auto statistics = PlainLayerNorm<float>(s, x, weight, bias)[1];
      const auto first = [&](const std::vector<float>& values) {
        return adds ? values : Poison(values.size());
      };
      Compare<TestType>(
          kBackward,
          [&] {
            const Array<TestType> dx(first(dx_before), s.offset);
            const Array<float> dweight(first(before));
            const Array<float> dbias(first(before));
            const Scratch scratch(LayerNormWorkspaceBytes(s.rows, s.columns, TheDevice().kind()));
            const Array<TestType> x_there(x, s.offset);
            const Array<TestType> weight_there(weight, s.offset);
            const Array<float> statistics_there(statistics);
            const Array<TestType> dy_there(dy, s.offset);
            LayerNormBackward<TestType>(s.rows, s.columns, x_there.data(), weight_there.data(),
                                        statistics_there.data(), dy_there.data(), adds, dx.data(),
                                        adds, dweight.data(), dbias.data(), scratch.get(),
                                        TheStream());
            return Outputs<float>{dx.Fetch(), dweight.Fetch(), dbias.Fetch()};
          },
          [&](auto zero) {
            using Real = decltype(zero);
            Outputs<Real> d = {std::vector<Real>(s.size()), std::vector<Real>(s.columns),
                               std::vector<Real>(s.columns)};
            if (adds) d = {As<Real>(dx_before), As<Real>(before), As<Real>(before)};
            reference::LayerNormBackward<Real>(
                s.rows, s.columns, As<Real>(x).data(), As<Real>(weight).data(),
                PlainLayerNorm<Real>(s, x, weight, bias)[1].data(), As<Real>(dy).data(),
                d[0].data(), d[1].data(), d[2].data());
            return d;
          },
          {1, 2});
    }
  }
}

// The heads of wider rows, as rows of their own.
template <typename Real>
std::vector<Real> HeadsOf(const HeadRows& shape, int stride, const std::vector<float>& rows) {
  std::vector<Real> heads;
  for (int row = 0; row < shape.rows; ++row) {
    const auto begin = rows.begin() + static_cast<ptrdiff_t>(row) * stride;
    heads.insert(heads.end(), begin, begin + shape.heads * shape.size);
  }
  return heads;
}

std::vector<float> Plus(float summand, std::vector<float> values) {
  for (float& value : values) value += summand;
  return values;
}

// The numbers behind the heads.
std::vector<float> RestOf(const HeadRows& shape, int stride, const std::vector<float>& rows) {
  std::vector<float> rest;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (static_cast<int>(i % stride) >= shape.heads * shape.size) rest.push_back(rows[i]);
  }
  return rest;
}

TEMPLATE_TEST_CASE("heads are normed in place, each by itself, and the rest of a row stays", "",
                   float, BFloat16) {
  if (!testing::HasPlacesOrSkips(1)) return;
  for (const HeadRows& shape :
       std::vector<HeadRows>{{1, 1, 4}, {3, 5, 6}, {40, 3, 64}, {7, 2, 128}}) {
    const int stride = shape.heads * shape.size + 2 * shape.size;
    const size_t size = static_cast<size_t>(shape.rows) * stride;
    const int heads = shape.rows * shape.heads;
    const auto x = NumbersOf<TestType>(size, 1, 3);
    const auto weight = NumbersOf<TestType>(shape.size, 2);
    const auto before = Numbers(shape.size, 3);
    for (const size_t offset : {0, 1}) {
      const auto from = static_cast<float>(offset);  // weights count from 0, or from 1
      const auto whole_weight = Plus(from, weight);
      CAPTURE(shape.rows, shape.heads, shape.size, offset);
      const auto forward = [&](auto zero) {
        using Real = decltype(zero);
        Outputs<Real> y = {std::vector<Real>(shape.count()), std::vector<Real>(heads),
                           HeadsOf<Real>(shape, stride, x)};
        reference::RmsNormForward<Real>(heads, shape.size, y[2].data(),
                                        As<Real>(whole_weight).data(), Real{kEpsilon}, y[0].data(),
                                        y[1].data());
        return y;
      };
      Compare<TestType>(kForward,
                        [&] {
                          const Array<TestType> there(x, offset);
                          const Array<TestType> kept(Poison(shape.count()), offset);
                          const Array<float> inverse_rms(Poison(heads));
                          const Array<TestType> weight_there(weight, offset);
                          HeadNormForward<TestType>(shape, stride, weight_there.data(), from,
                                                    kEpsilon, there.data(), kept.data(),
                                                    inverse_rms.data(), TheStream());
                          CHECK((RestOf(shape, stride, there.Fetch()) == RestOf(shape, stride, x)));
                          return Outputs<float>{HeadsOf<float>(shape, stride, there.Fetch()),
                                                inverse_rms.Fetch(), kept.Fetch()};
                        },
                        forward, {1});
      const auto dy = NumbersOf<TestType>(size, 4);
      for (const bool adds : {false, true}) {
        Compare<TestType>(
            kBackward,
            [&] {
              const Outputs<float> kept = forward(0.0f);
              const Array<TestType> dx(dy, offset);
              const Array<float> dweight(adds ? before : Poison(shape.size));
              const Scratch scratch(HeadNormWorkspaceBytes(shape, TheDevice().kind()));
              const Array<TestType> kept_x(kept[2], offset);
              const Array<TestType> weight_there(weight, offset);
              const Array<float> kept_rms(kept[1]);
              HeadNormBackward<TestType>(shape, stride, kept_x.data(), weight_there.data(), from,
                                         kept_rms.data(), dx.data(), adds, dweight.data(),
                                         scratch.get(), TheStream());
              CHECK((RestOf(shape, stride, dx.Fetch()) == RestOf(shape, stride, dy)));
              return Outputs<float>{HeadsOf<float>(shape, stride, dx.Fetch()), dweight.Fetch()};
            },
            [&](auto zero) {
              using Real = decltype(zero);
              Outputs<Real> d = {std::vector<Real>(shape.count()),
                                 adds ? As<Real>(before) : std::vector<Real>(shape.size)};
              const Outputs<Real> kept = forward(zero);
              reference::RmsNormBackward<Real>(
                  heads, shape.size, kept[2].data(), As<Real>(whole_weight).data(), kept[1].data(),
                  HeadsOf<Real>(shape, stride, dy).data(), d[0].data(), d[1].data());
              return d;
            },
            {1});
      }
    }
  }
}

TEMPLATE_TEST_CASE("values are scaled in place, and rounded once", "", float, BFloat16) {
  if (!testing::HasPlacesOrSkips(1)) return;
  for (const size_t count : {1, 7, 4096, 5003}) {
    for (const size_t offset : {0, 1}) {
      CAPTURE(count, offset);
      const auto x = NumbersOf<TestType>(count, 1);
      const Array<TestType> scaled(x, offset);
      ScaleInPlace<TestType>(static_cast<int64_t>(count), 27.75f, scaled.data(), TheStream());
      std::vector<float> expected = x;
      for (float& value : expected) value *= 27.75f;
      CHECK((scaled.Fetch() == Load(Store<TestType>(expected))));
    }
  }
}

TEMPLATE_TEST_CASE("a soft cap agrees with the hyperbolic tangent, and so does its slope", "",
                   float, BFloat16) {
  if (!testing::HasPlacesOrSkips(1)) return;
  for (const size_t count : {1, 7, 4096, 40003}) {
    for (const size_t offset : {0, 1}) {
      for (const float cap : {0.25f, 30.0f}) {
        CAPTURE(count, offset, cap);
        const auto x = NumbersOf<TestType>(count, 1, 2);
        const auto dy = NumbersOf<TestType>(count, 2);
        const auto size = static_cast<int64_t>(count);
        const auto forward = [&](auto zero) {
          using Real = decltype(zero);
          Outputs<Real> y = {As<Real>(x)};
          for (Real& value : y[0]) value = cap * std::tanh(value / cap);
          return y;
        };
        const Array<TestType> y(x, offset);
        SoftCap<TestType>(size, cap, y.data(), TheStream());
        const auto capped = y.Fetch();
        Compare<TestType>(
            kForward, [&] { return Outputs<float>{capped}; }, forward);
        Compare<TestType>(
            kBackward,
            [&] {
              const Array<TestType> d(dy, offset);
              SoftCapBackward<TestType>(size, cap, y.data(), d.data(), TheStream());
              return Outputs<float>{d.Fetch()};
            },
            [&](auto zero) {
              using Real = decltype(zero);
              Outputs<Real> d = {As<Real>(dy)};
              for (size_t i = 0; i < count; ++i) {
                const Real part = static_cast<Real>(capped[i]) / cap;
                d[0][i] *= 1 - part * part;
              }
              return d;
            });
      }
    }
  }
}

TEMPLATE_TEST_CASE("GELU, alone and as a gate, and a clamped gate agree with the reference", "",
                   float, BFloat16) {
  if (!testing::HasPlacesOrSkips(1)) return;
  for (const Activation activation :
       {Activation::kGeglu, Activation::kClampedSwiglu, Activation::kGelu}) {
    for (const Shape& s : kShapes) {
      CAPTURE(static_cast<int>(activation), s.rows, s.columns, s.offset);
      const size_t inputs = s.size() * ActivationInputs(activation);
      const auto x = NumbersOf<TestType>(inputs, 1, 9);
      const auto dy = NumbersOf<TestType>(s.size(), 2);
      Compare<TestType>(
          kForward,
          [&] {
            const Array<TestType> y(Poison(s.size()), s.offset);
            const Array<TestType> x_there(x, s.offset);
            ActivationForward<TestType>(activation, s.rows, s.columns, x_there.data(), y.data(),
                                        TheStream());
            return Outputs<float>{y.Fetch()};
          },
          [&](auto zero) {
            using Real = decltype(zero);
            Outputs<Real> y = {std::vector<Real>(s.size())};
            reference::ActivationForward<Real>(activation, s.rows, s.columns, As<Real>(x).data(),
                                               y[0].data());
            return y;
          });
      Compare<TestType>(
          kBackward,
          [&] {
            const Array<TestType> d(x, s.offset);
            const Array<TestType> dy_there(dy, s.offset);
            ActivationBackward<TestType>(activation, s.rows, s.columns, d.data(), dy_there.data(),
                                         d.data(), TheStream());
            return Outputs<float>{d.Fetch()};
          },
          [&](auto zero) {
            using Real = decltype(zero);
            Outputs<Real> d = {std::vector<Real>(inputs)};
            reference::ActivationBackward<Real>(activation, s.rows, s.columns, As<Real>(x).data(),
                                                As<Real>(dy).data(), d[0].data());
            return d;
          });
    }
  }
}

// log_sum_exp as this device has it; the same call turns it back.
std::vector<float> StatisticsOf(const AttentionShape& s, const std::vector<float>& heads_first,
                                bool turns_back) {
  if (!s.packed || s.is_part() || TheDevice().kind() != DeviceKind::kCuda) return heads_first;
  std::vector<float> turned(heads_first.size());
  for (size_t i = 0; i < turned.size(); ++i) {
    const size_t per_row = size_t{1} * s.heads * s.sequence_length;
    const size_t head = i % per_row / s.sequence_length;
    const size_t place = i / per_row * per_row + i % s.sequence_length * s.heads + head;
    turns_back ? turned[i] = heads_first[place] : turned[place] = heads_first[i];
  }
  return turned;
}

TEMPLATE_TEST_CASE("attention's sinks agree with the reference", "", float, BFloat16) {
  if (!testing::HasPlacesOrSkips(1)) return;
  AttentionShape packed = {2, 9, 3, 1, 6, false, true};
  AttentionShape part = packed;
  part.keys = 18;
  for (const AttentionShape& s : {AttentionShape{1, 1, 1, 1, 2}, AttentionShape{2, 40, 6, 2, 80},
                                  AttentionShape{3, 7, 64, 8, 64}, packed, part}) {
    CAPTURE(s.batch, s.sequence_length, s.heads, s.head_size, s.packed, s.keys);
    const size_t rows = size_t{1} * s.batch * s.sequence_length * s.heads;
    const size_t count = rows * s.head_size;
    const auto sinks = NumbersOf<TestType>(s.heads, 1, 3);
    const auto out = NumbersOf<TestType>(count, 2);
    const auto dout = NumbersOf<TestType>(count, 3);
    const auto before = Numbers(s.heads, 4);
    auto log_sum_exp = Numbers(rows, 5, 4);
    const Array<TestType> sinks_there(sinks, 1);
    Compare<TestType>(
        kForward,
        [&] {
          const Array<TestType> y(out, 1);
          const Array<float> statistics(StatisticsOf(s, log_sum_exp, false));
          AttentionSinkForward<TestType>(s, sinks_there.data(), y.data(), statistics.data(),
                                         TheStream());
          return Outputs<float>{y.Fetch(), StatisticsOf(s, statistics.Fetch(), true)};
        },
        [&](auto zero) {
          using Real = decltype(zero);
          Outputs<Real> y = {As<Real>(out), As<Real>(log_sum_exp)};
          reference::AttentionSinkForward<Real>(s, As<Real>(sinks).data(), y[0].data(),
                                                y[1].data());
          return y;
        },
        {1});
    for (float& value : log_sum_exp) value = std::abs(value) + 3;  // above every sink
    for (const bool adds : {false, true}) {
      Compare<TestType>(
          kBackward,
          [&] {
            const Array<float> dsinks(adds ? before : Poison(s.heads));
            const Array<TestType> y(out, 1), dy(dout, 1);
            const Array<float> statistics(StatisticsOf(s, log_sum_exp, false));
            const Scratch scratch(AttentionSinkWorkspaceBytes(s, TheDevice().kind()));
            AttentionSinkBackward<TestType>(s, sinks_there.data(), y.data(), statistics.data(),
                                            dy.data(), adds, dsinks.data(), scratch.get(),
                                            TheStream());
            return Outputs<float>{dsinks.Fetch()};
          },
          [&](auto zero) {
            using Real = decltype(zero);
            Outputs<Real> d = {adds ? As<Real>(before) : std::vector<Real>(s.heads)};
            reference::AttentionSinkBackwardAdd<Real>(
                s, As<Real>(sinks).data(), As<Real>(out).data(), As<Real>(log_sum_exp).data(),
                As<Real>(dout).data(), d[0].data());
            return d;
          },
          {0});
    }
  }
}

// In attention's order element i of a head stands here in its query, and the rotary ones `plain`
// earlier in the rotary key.
int InLatentQuery(const LatentHeads& s, int i) {
  if (i >= s.rotary) return i - s.rotary;
  return s.plain + (i < s.rotary / 2 ? 2 * i : 2 * i - s.rotary + 1);
}

// Visits all elements of attention's queries, keys and values: where the element stands there and
// in which input (0: queries, 1: keys and values, 2: the rotary key; -1: it is 0), and where.
template <typename Visit>
void ForLatentElements(const LatentHeads& s, int query_stride, int rotary_stride,
                       const Visit& visit) {
  const int size = s.head_size();
  for (int row = 0; row < s.rows; ++row) {
    for (int head = 0; head < s.heads; ++head) {
      for (int i = 0; i < size; ++i) {
        const int there = InLatentQuery(s, i);
        const int query = (row * 3 * s.heads + head) * size + i;
        const int key_value = (row * s.heads + head) * (s.plain + s.value);
        visit(query, 0, row * query_stride + head * size + there);
        if (i < s.rotary) {
          visit(query + s.heads * size, 2, row * rotary_stride + there - s.plain);
        } else {
          visit(query + s.heads * size, 1, key_value + there);
        }
        visit(query + 2 * s.heads * size, i < s.value ? 1 : -1, key_value + s.plain + i);
      }
    }
  }
}

TEMPLATE_TEST_CASE("latent heads are put together for attention, and taken apart", "", float,
                   BFloat16) {
  if (!testing::HasPlacesOrSkips(1)) return;
  const std::pair<LatentHeads, int> cases[] = {{{1, 1, 0, 2, 1}, 0},
                                               {{5, 3, 4, 2, 3}, 7},
                                               {{2, 4, 5, 6, 11}, 1},
                                               {{3, 20, 128, 64, 128}, 0}};
  for (const std::pair<LatentHeads, int>& the_case : cases) {
    const LatentHeads& s = the_case.first;
    const int more = the_case.second;
    CAPTURE(s.rows, s.heads, s.plain, s.rotary, s.value, more);
    const int query_stride = s.heads * s.head_size() + more;
    const int rotary_stride = s.rotary + more;
    const size_t width = size_t{3} * s.rows * s.heads * s.head_size();
    const std::vector<float> inputs[] = {
        NumbersOf<TestType>(size_t{1} * s.rows * query_stride, 1),
        NumbersOf<TestType>(size_t{1} * s.rows * s.heads * (s.plain + s.value), 2),
        NumbersOf<TestType>(size_t{1} * s.rows * rotary_stride, 3)};
    std::vector<float> expected(width);
    const Array<TestType> queries(inputs[0]), keys_values(inputs[1]), rotary_key(inputs[2]);
    ForLatentElements(s, query_stride, rotary_stride, [&](int place, int input, int there) {
      if (input >= 0) expected[place] = inputs[input][there];
    });
    const Array<TestType> qkv(Poison(width));
    LatentHeadsForward(s, queries.data(), query_stride, keys_values.data(), rotary_key.data(),
                       rotary_stride, qkv.data(), TheStream());
    CHECK(qkv.Fetch() == expected);
    // Between the rows nothing changes.
    const auto dqkv = NumbersOf<TestType>(width, 4);
    const Array<TestType> dqkv_there(dqkv);
    Compare<TestType>(
        kBackward,
        [&] {
          LatentHeadsBackward(s, dqkv_there.data(), queries.data(), query_stride,
                              keys_values.data(), rotary_key.data(), rotary_stride, TheStream());
          return Outputs<float>{queries.Fetch(), keys_values.Fetch(), rotary_key.Fetch()};
        },
        [&](auto zero) {
          using Real = decltype(zero);
          Outputs<Real> d = {As<Real>(inputs[0]), As<Real>(inputs[1]), As<Real>(inputs[2])};
          const auto for_places = [&](const auto& change) {
            ForLatentElements(s, query_stride, rotary_stride, [&](int place, int input, int there) {
              if (input >= 0) change(d[input][there], static_cast<Real>(dqkv[place]));
            });
          };
          for_places([](Real& gradient, Real) { gradient = 0; });
          for_places([](Real& gradient, Real part) { gradient += part; });
          return d;
        });
  }
}

}  // namespace
}  // namespace convene::worker
