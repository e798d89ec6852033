// The ops of mixtures of experts on every device, against the plain references in double.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <set>
#include <vector>

#include "worker_runtime/device/device.h"
#include "worker_runtime/ops/expert_rows.h"
#include "worker_runtime/ops/grouped_matmul.h"
#include "worker_runtime/ops/router.h"
#include "worker_runtime/ops/targets.h"
#include "worker_runtime/ops/testing/op_arrays.h"
#include "worker_runtime/ops/testing/ops_testing.h"
#include "worker_runtime/ops/testing/reference/experts.h"
#include "worker_runtime/ops/testing/reference/router.h"
#include "worker_runtime/testing/places.h"

namespace convene::worker {
namespace {

using testing::Array;
using testing::As;
using testing::Compare;
using testing::DeviceArray;
using testing::Integers;
using testing::kBackward;
using testing::kForward;
using testing::Numbers;
using testing::NumbersOf;
using testing::Outputs;
using testing::Poison;
using testing::TheDevice;
using testing::TheStream;

// Counts that fill neither a warp nor a vector; one expert; as many as there may be.
std::vector<RouterShape> Shapes() {
  constexpr auto kSigmoid = RouterScore::kSigmoid;
  return {
      {.rows = 6, .experts = 1, .chosen = 1},
      {.rows = 6, .experts = 3, .chosen = 3, .score = kSigmoid},
      {.rows = 40, .experts = 8, .chosen = 2},
      {.rows = 10, .experts = 8, .chosen = 2, .normalizes = false, .scale = 2.5f},
      {.rows = 14, .experts = 60, .chosen = 4, .score = kSigmoid, .scale = 1.5f},
      {.rows = 14, .experts = 60, .chosen = 4, .score = kSigmoid, .normalizes = false},
      {.rows = 8, .experts = 64, .chosen = 6, .groups = 4, .chosen_groups = 2},
      {.rows = 8,
       .experts = 64,
       .chosen = 6,
       .normalizes = false,
       .scale = 16,
       .groups = 8,
       .chosen_groups = 3,
       .judges_by_best = true},
      {.rows = 6, .experts = 6, .chosen = 2, .score = kSigmoid, .groups = 6, .chosen_groups = 3},
      {.rows = 10, .experts = 256, .chosen = 8, .score = kSigmoid, .groups = 8, .chosen_groups = 4},
      {.rows = 4, .experts = kRouterExpertsMax, .chosen = 10},
  };
}

// The router's inputs of a shape, the same for every test.
struct RouterInputs {
  explicit RouterInputs(const RouterShape& shape)
      : logits(Numbers(count(shape.rows, shape.experts), 1, 4)),
        bias(Numbers(shape.experts, 2, 0.1f)),
        targets(Integers(shape.rows, 3, kPaddingTarget, 3)),
        experts(count(shape.rows, shape.chosen)),
        dweights(Numbers(experts.size(), 4)),
        balance(Numbers(logits.size(), 5, 0.1f)) {
    std::fill_n(targets.begin() + rows_per_sequence, rows_per_sequence, -1);  // none of one counts
    std::vector<double> weights(experts.size());
    reference::RouterForward<double>(shape, As<double>(logits).data(), bias.data(), nullptr,
                                     experts.data(), weights.data());
    sent_to = experts;
    reference::RouterForward<double>(shape, As<double>(logits).data(), bias.data(), targets.data(),
                                     sent_to.data(), weights.data());
  }
  static size_t count(int rows, int columns) { return static_cast<size_t>(rows) * columns; }

  int rows_per_sequence = 2;
  std::vector<float> logits, bias;
  // sent_to: the experts where rows may be padding, which goes to none.
  std::vector<int32_t> targets, experts, sent_to;
  std::vector<float> dweights, balance;
};

// Experts, as floats, and weights.
Outputs<float> Route(const RouterShape& shape, const std::vector<float>& logits,
                     const std::vector<float>& bias, const std::vector<int32_t>& targets = {}) {
  const Array<float> logits_there(logits);
  const Array<float> bias_there(bias);
  const DeviceArray<int32_t> targets_there(
      targets.empty() ? std::vector<int32_t>(shape.rows) : targets, TheDevice());
  const DeviceArray<int32_t> experts(
      std::vector<int32_t>(RouterInputs::count(shape.rows, shape.chosen), -9), TheDevice());
  const Array<float> weights(Poison(experts.span().size()));
  RouterForward(shape, logits_there.data(), bias.empty() ? nullptr : bias_there.data(),
                targets.empty() ? nullptr : targets_there.data(), experts.data(), weights.data(),
                TheStream());
  const std::vector<int32_t> chosen = experts.Fetch();
  return {std::vector<float>(chosen.begin(), chosen.end()), weights.Fetch()};
}

TEST_CASE("a router chooses and weighs experts as the reference does") {
  if (!testing::HasPlacesOrSkips(1)) return;
  for (const RouterShape& shape : Shapes()) {
    const RouterInputs in(shape);
    for (const bool is_biased : {false, true}) {
      CAPTURE(shape.rows, shape.experts, shape.chosen, shape.groups, is_biased);
      const std::vector<float> bias = is_biased ? in.bias : std::vector<float>();
      const std::vector<int32_t> targets = is_biased ? in.targets : std::vector<int32_t>();
      Compare<float>(
          kForward, [&] { return Route(shape, in.logits, bias, targets); },
          [&](auto zero) {
            using Real = decltype(zero);
            std::vector<int32_t> experts(in.experts.size());
            Outputs<Real> out = {{}, std::vector<Real>(experts.size())};
            reference::RouterForward<Real>(
                shape, As<Real>(in.logits).data(), is_biased ? bias.data() : nullptr,
                is_biased ? targets.data() : nullptr, experts.data(), out[1].data());
            out[0].assign(experts.begin(), experts.end());
            return out;
          });
    }
  }
}

TEST_CASE("of equal scores, and of equal groups, a router chooses the lower numbers") {
  if (!testing::HasPlacesOrSkips(1)) return;
  for (const RouterScore score : {RouterScore::kSoftmax, RouterScore::kSigmoid}) {
    const RouterShape plain = {.rows = 1, .experts = 40, .chosen = 4, .score = score};
    std::vector<float> logits(40, -1);
    logits[35] = 2;
    logits[37] = 2;
    CHECK(Route(plain, logits, {})[0] == std::vector<float>{35, 37, 0, 1});
    CHECK(Route(plain, logits, std::vector<float>(40, 0.5f))[0] ==
          std::vector<float>{35, 37, 0, 1});
    const std::vector<float> zeros = {0.0f, -0.0f, 0.0f, -0.0f};  // equal, in spite of their bits
    CHECK(Route({.rows = 1, .experts = 4, .chosen = 4, .score = score}, zeros, {})[0] ==
          std::vector<float>{0, 1, 2, 3});
    RouterShape grouped = {
        .rows = 1, .experts = 8, .chosen = 3, .score = score, .groups = 4, .chosen_groups = 2};
    // The group with the largest expert has no second; those with two good ones are equal.
    CHECK(Route(grouped, {2.6f, -9, 2, 2.5f, 2.5f, 2, 2, 2.5f}, {})[0] ==
          std::vector<float>{3, 4, 2});
    // The largest expert makes its group the first; of two equal groups the lower one is the other.
    grouped.judges_by_best = true;
    CHECK(Route(grouped, {2.6f, -9, 2, 2.5f, 2.5f, 2, 2, 2.5f}, {})[0] ==
          std::vector<float>{0, 3, 2});
  }
}

TEST_CASE("a row with a NaN has NaN for weights, and distinct experts of its groups") {
  if (!testing::HasPlacesOrSkips(1)) return;
  for (const RouterShape& all : Shapes()) {
    RouterShape shape = all;
    shape.rows = 3;
    CAPTURE(shape.experts, shape.chosen, shape.groups);
    std::vector<float> logits = Numbers(RouterInputs::count(3, shape.experts), 1);
    logits[shape.experts] = std::nanf("");  // one of the second row
    std::fill_n(logits.end() - shape.experts, shape.experts, std::nanf(""));  // all of the third
    for (const std::vector<float>& bias : {std::vector<float>(), Numbers(shape.experts, 2)}) {
      const Outputs<float> out = Route(shape, logits, bias);
      for (int row = 0; row < 3; ++row) {
        const auto begin = out[0].begin() + static_cast<ptrdiff_t>(row) * shape.chosen;
        const std::set<float> distinct(begin, begin + shape.chosen);
        CHECK(distinct.size() == static_cast<size_t>(shape.chosen));
        CHECK(*distinct.begin() >= 0);
        CHECK(*distinct.rbegin() < static_cast<float>(shape.experts));
        for (int j = 0; j < shape.chosen; ++j) {
          CHECK(std::isnan(out[1][row * shape.chosen + j]) == (row > 0));
        }
      }
    }
  }
}

TEST_CASE("a router's statistics and the penalty made of them agree with the reference") {
  if (!testing::HasPlacesOrSkips(1)) return;
  constexpr float kBalance = 0.01f;
  constexpr float kZ = 0.001f;
  constexpr float kScale = 0.25f;
  for (const RouterShape& shape : Shapes()) {
    const RouterInputs in(shape);
    const int sequences = shape.rows / in.rows_per_sequence;
    const size_t width = RouterStatisticsWidth(shape.experts) * static_cast<size_t>(sequences);
    const size_t slopes = RouterInputs::count(sequences, shape.experts);
    for (const bool all_count : {false, true}) {
      CAPTURE(shape.rows, shape.experts, all_count);
      Compare<float>(
          kForward,
          [&] {
            const Array<float> logits(in.logits);
            const DeviceArray<int32_t> experts(all_count ? in.experts : in.sent_to, TheDevice());
            const DeviceArray<int32_t> targets(in.targets, TheDevice());
            const Array<float> statistics(Poison(width));
            RouterStatistics(shape, in.rows_per_sequence, logits.data(), experts.data(),
                             all_count ? nullptr : targets.data(), statistics.data(), TheStream());
            const Array<float> balance(Poison(slopes));
            const DeviceArray<double> losses({1, 2}, TheDevice());
            const Array<float> scale({kScale});
            RouterPenalty(sequences, shape, kBalance, kZ, scale.data(), statistics.data(),
                          balance.data(), losses.data(), TheStream());
            const std::vector<float> slopes_before = balance.Fetch();
            RouterPenalty(sequences, shape, kBalance, kZ, scale.data(), statistics.data(),
                          balance.data(), nullptr, TheStream());
            CHECK((balance.Fetch() == slopes_before));
            const std::vector<double> sums = losses.Fetch();
            return Outputs<float>{statistics.Fetch(), slopes_before,
                                  std::vector<float>(sums.begin(), sums.end())};
          },
          [&](auto zero) {
            using Real = decltype(zero);
            Outputs<Real> out = {std::vector<Real>(width), std::vector<Real>(slopes), {1, 2}};
            reference::RouterStatistics<Real>(
                shape, in.rows_per_sequence, As<Real>(in.logits).data(),
                (all_count ? in.experts : in.sent_to).data(),
                all_count ? nullptr : in.targets.data(), out[0].data());
            reference::RouterPenalty<Real>(sequences, shape, kBalance, kZ, kScale, out[0].data(),
                                           out[1].data(), out[2].data());
            return out;
          });
    }
  }
}

TEMPLATE_TEST_CASE("a router's backward pass agrees with the reference", "", float, BFloat16) {
  if (!testing::HasPlacesOrSkips(1)) return;
  for (const RouterShape& shape : Shapes()) {
    const RouterInputs in(shape);
    for (const bool has_penalties : {false, true}) {
      for (const bool all_count : {false, true}) {
        CAPTURE(shape.rows, shape.experts, has_penalties, all_count);
        const float z_coefficient = has_penalties ? 0.05f : 0;
        constexpr float kScale = 0.25f;
        Compare<TestType>(
            kBackward,
            [&] {
              const Array<float> logits(in.logits);
              const DeviceArray<int32_t> experts(all_count ? in.experts : in.sent_to, TheDevice());
              const DeviceArray<int32_t> targets(in.targets, TheDevice());
              const Array<float> dweights(in.dweights);
              const Array<float> balance(in.balance);
              const Array<float> scale({kScale});
              const Array<TestType> dlogits(Poison(in.logits.size()));
              RouterBackward<TestType>(
                  shape, in.rows_per_sequence, logits.data(), experts.data(), dweights.data(),
                  has_penalties ? balance.data() : nullptr, z_coefficient, scale.data(),
                  all_count ? nullptr : targets.data(), dlogits.data(), TheStream());
              return Outputs<float>{dlogits.Fetch()};
            },
            [&](auto zero) {
              using Real = decltype(zero);
              Outputs<Real> out = {std::vector<Real>(in.logits.size())};
              reference::RouterBackward<Real>(
                  shape, in.rows_per_sequence, As<Real>(in.logits).data(),
                  (all_count ? in.experts : in.sent_to).data(), As<Real>(in.dweights).data(),
                  has_penalties ? As<Real>(in.balance).data() : nullptr, z_coefficient, kScale,
                  all_count ? nullptr : in.targets.data(), out[0].data());
              return out;
            });
      }
    }
  }
}

// Columns that fill neither a warp nor a vector, or more than a block; arrays that start anywhere.
struct RowShape {
  int rows, columns;
  size_t offset = 0;
  size_t size() const { return static_cast<size_t>(rows) * columns; }
};
const std::vector<RowShape> kRowShapes = {{1, 1},   {3, 7},    {5, 64},     {9, 130},
                                          {40, 48}, {2, 2056}, {4, 512, 1}, {3, 4104, 3}};

TEMPLATE_TEST_CASE("rows are gathered, to the bit, and zeros where there are none", "", float,
                   BFloat16) {
  if (!testing::HasPlacesOrSkips(1)) return;
  for (const RowShape& s : kRowShapes) {
    CAPTURE(s.rows, s.columns, s.offset);
    const auto x = NumbersOf<TestType>(s.size(), 1);
    const int count = s.rows + 3;
    const std::vector<int32_t> from = Integers(count, 2, -1, s.rows);
    const Array<TestType> x_there(x, s.offset);
    const DeviceArray<int32_t> from_there(from, TheDevice());
    const Array<TestType> y(Poison(RouterInputs::count(count, s.columns)), s.offset);
    GatherRows<TestType>(count, s.columns, from_there.data(), x_there.data(), y.data(),
                         TheStream());
    std::vector<float> expected;
    for (const int32_t row : from) {
      for (int i = 0; i < s.columns; ++i) {
        expected.push_back(row < 0 ? 0 : x[RouterInputs::count(row, s.columns) + i]);
      }
    }
    CHECK((y.Fetch() == expected));
  }
}

TEMPLATE_TEST_CASE("rows are combined as the reference does", "", float, BFloat16) {
  if (!testing::HasPlacesOrSkips(1)) return;
  for (const RowShape& s : kRowShapes) {
    for (const int terms : {1, 2, 8}) {
      const auto x = NumbersOf<TestType>(s.size(), 1);
      const auto before = NumbersOf<TestType>(s.size(), 2);
      const std::vector<int32_t> places =
          Integers(RouterInputs::count(s.rows, terms), 3, -1, s.rows);
      const std::vector<float> weights = Numbers(places.size(), 4);
      for (const bool is_weighted : {false, true}) {
        for (const bool adds : {false, true}) {
          CAPTURE(s.rows, s.columns, s.offset, terms, is_weighted, adds);
          Compare<TestType>(
              kForward,
              [&] {
                const Array<TestType> x_there(x, s.offset);
                const DeviceArray<int32_t> places_there(places, TheDevice());
                const Array<float> weights_there(weights);
                const Array<TestType> y(adds ? before : Poison(s.size()), s.offset);
                CombineRows<TestType>(s.rows, s.columns, terms, places_there.data(),
                                      is_weighted ? weights_there.data() : nullptr, x_there.data(),
                                      adds, y.data(), TheStream());
                return Outputs<float>{y.Fetch()};
              },
              [&](auto zero) {
                using Real = decltype(zero);
                Outputs<Real> y = {adds ? As<Real>(before) : std::vector<Real>(s.size())};
                reference::CombineRows<Real>(s.rows, s.columns, terms, places.data(),
                                             is_weighted ? weights.data() : nullptr,
                                             As<Real>(x).data(), y[0].data());
                return y;
              });
        }
      }
    }
  }
}

TEMPLATE_TEST_CASE("rows are weighed in place, and weights get their gradient", "", float,
                   BFloat16) {
  if (!testing::HasPlacesOrSkips(1)) return;
  for (const RowShape& s : kRowShapes) {
    CAPTURE(s.rows, s.columns, s.offset);
    const auto y = NumbersOf<TestType>(s.size(), 1);
    const auto dy = NumbersOf<TestType>(s.size(), 2);
    const std::vector<float> weights = Numbers(s.rows, 3);
    Compare<TestType>(
        kForward,
        [&] {
          const Array<TestType> y_there(y, s.offset);
          const Array<TestType> dy_there(dy, s.offset);
          const Array<float> weights_there(weights);
          const Array<float> dweights(Poison(s.rows));
          WeighRows<TestType>(s.rows, s.columns, weights_there.data(), y_there.data(),
                              dy_there.data(), dweights.data(), TheStream());
          return Outputs<float>{y_there.Fetch(), dy_there.Fetch(), dweights.Fetch()};
        },
        [&](auto zero) {
          using Real = decltype(zero);
          Outputs<Real> out = {As<Real>(y), As<Real>(dy), std::vector<Real>(s.rows)};
          reference::WeighRows<Real>(s.rows, s.columns, weights.data(), out[0].data(),
                                     out[1].data(), out[2].data());
          return out;
        },
        {2});
  }
}

TEMPLATE_TEST_CASE("rows have a gate, and its logits their gradient", "", float, BFloat16) {
  if (!testing::HasPlacesOrSkips(1)) return;
  for (const RowShape& s : kRowShapes) {
    CAPTURE(s.rows, s.columns, s.offset);
    const auto y = NumbersOf<TestType>(s.size(), 1);
    const auto dy = NumbersOf<TestType>(s.size(), 2);
    const std::vector<float> logits = Numbers(s.rows, 3);
    Compare<TestType>(
        kForward,
        [&] {
          const Array<TestType> forward(y, s.offset);
          const Array<TestType> y_there(y, s.offset);
          const Array<TestType> dy_there(dy, s.offset);
          const Array<float> logits_there(logits);
          const Array<TestType> dlogits(Poison(s.rows));
          GateRows<TestType>(s.rows, s.columns, logits_there.data(), forward.data(), TheStream());
          GateRowsBackward<TestType>(s.rows, s.columns, logits_there.data(), y_there.data(),
                                     dy_there.data(), dlogits.data(), TheStream());
          return Outputs<float>{forward.Fetch(), dy_there.Fetch(), dlogits.Fetch()};
        },
        [&](auto zero) {
          using Real = decltype(zero);
          Outputs<Real> out = {As<Real>(y), As<Real>(dy), std::vector<Real>(s.rows)};
          reference::GateRows<Real>(s.rows, s.columns, logits.data(), out[0].data());
          reference::GateRowsBackward<Real>(s.rows, s.columns, logits.data(), As<Real>(y).data(),
                                            out[1].data(), out[2].data());
          return out;
        });
  }
}

// Groups without rows at the beginning, the end and between; with one row; with more than a tile.
struct Groups {
  std::vector<int32_t> begin;
  int m, n;
};
const std::vector<Groups> kGroups = {{{0, 5}, 3, 7},          {{0, 0, 1, 1, 9, 40, 40}, 24, 40},
                                     {{0, 0, 0}, 8, 8},       {{0, 130, 135, 420}, 64, 130},
                                     {{0, 33, 300}, 260, 48}, {{0, 20, 20, 37}, 16, 1032}};

TEMPLATE_TEST_CASE("rows of groups are multiplied by the matrices of their groups", "", float,
                   BFloat16) {
  if (!testing::HasPlacesOrSkips(1)) return;
  for (const Groups& g : kGroups) {
    for (const int kind : {0, 1, 2, 3}) {
      const Transpose transpose = kind % 2 == 0 ? Transpose::kNo : Transpose::kYes;
      const float beta = kind < 2 ? 0 : 1;
      CAPTURE(g.begin, g.m, g.n, transpose == Transpose::kYes, beta);
      const size_t matrix = RouterInputs::count(g.m, g.n);
      const auto a = NumbersOf<TestType>(RouterInputs::count(g.begin.back(), g.m), 1);
      const auto b = NumbersOf<TestType>(matrix * (g.begin.size() - 1), 2);
      const size_t size = RouterInputs::count(g.begin.back(), g.n);
      const auto before = NumbersOf<TestType>(size, 3);
      Compare<TestType>(
          kForward,
          [&] {
            const Array<TestType> a_there(a);
            const Array<TestType> b_there(b);
            const Array<TestType> c(beta == 1 ? before : Poison(size));
            GroupedMatMul<TestType>(transpose, g.begin, g.n, g.m, a_there.data(), b_there.data(),
                                    beta, c.data(), TheStream());
            return Outputs<float>{c.Fetch()};
          },
          [&](auto zero) {
            using Real = decltype(zero);
            Outputs<Real> c = {As<Real>(before)};
            reference::GroupedMatMul<Real>(transpose, g.begin, g.n, g.m, As<Real>(a).data(),
                                           As<Real>(b).data(), Real{beta}, c[0].data());
            return c;
          });
    }
  }
}

TEMPLATE_TEST_CASE("the matrices of groups get their gradients", "", float, BFloat16) {
  if (!testing::HasPlacesOrSkips(1)) return;
  for (const Groups& g : kGroups) {
    for (const float beta : {0.0f, 1.0f}) {
      CAPTURE(g.begin, g.m, g.n, beta);
      const auto a = NumbersOf<TestType>(RouterInputs::count(g.begin.back(), g.m), 1);
      const auto b = NumbersOf<TestType>(RouterInputs::count(g.begin.back(), g.n), 2);
      const size_t size = RouterInputs::count(g.m, g.n) * (g.begin.size() - 1);
      const auto before = Numbers(size, 3);
      Compare<TestType>(
          kForward,
          [&] {
            const Array<TestType> a_there(a);
            const Array<TestType> b_there(b);
            const Array<float> c(beta == 1 ? before : Poison(size));
            GroupedWeightGradient<TestType>(g.begin, g.m, g.n, a_there.data(), b_there.data(), beta,
                                            c.data(), TheStream());
            return Outputs<float>{c.Fetch()};
          },
          [&](auto zero) {
            using Real = decltype(zero);
            Outputs<Real> c = {As<Real>(before)};
            reference::GroupedWeightGradient<Real>(g.begin, g.m, g.n, As<Real>(a).data(),
                                                   As<Real>(b).data(), Real{beta}, c[0].data());
            return c;
          },
          {0});
    }
  }
}

}  // namespace
}  // namespace convene::worker
