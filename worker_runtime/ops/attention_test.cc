#include <catch2/catch.hpp>
#include <cmath>
#include <vector>

#include "worker_runtime/ops/attention.h"
#include "worker_runtime/ops/ops_testing.h"
#include "worker_runtime/ops/reference/attention.h"

namespace convene::worker {
namespace {

using testing::As;
using testing::Compare;
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

TEMPLATE_TEST_CASE("attention agrees with the reference, forward and backward", "", float,
                   BFloat16) {
  for (const AttentionShape& shape : kAttentionShapes) {
    CAPTURE(shape.batch, shape.sequence_length, shape.heads, shape.kv_heads, shape.head_size);
    const size_t tokens = static_cast<size_t>(shape.batch) * shape.sequence_length;
    const auto qkv = NumbersOf<TestType>(tokens * shape.qkv_width(), 1, 2);
    const size_t out_size = tokens * shape.heads * shape.head_size;
    const auto dout = NumbersOf<TestType>(out_size, 2);
    const auto workspace = [&] {
      return PoisonedWorkspace(AttentionWorkspaceBytes<TestType>(shape, DeviceKind::kCpu));
    };
    const auto stored = Store<TestType>(qkv);
    std::vector<TestType> out(out_size);
    std::vector<float> log_sum_exp(tokens * shape.heads);
    const auto forward = [&] {
      auto scratch = workspace();
      AttentionForward(shape, stored.data(), out.data(), log_sum_exp.data(), scratch.get(),
                       AnyStream());
      return Outputs<float>{Load(out), log_sum_exp};
    };
    Compare<TestType>(
        kForward, forward,
        [&](auto zero) { return ReferenceAttentionForward(shape, As<decltype(zero)>(qkv)); }, {1});
    Compare<TestType>(
        kBackward,
        [&] {
          forward();
          std::vector<TestType> dqkv(qkv.size(), TestType(std::nanf("")));
          auto scratch = workspace();
          AttentionBackward(shape, stored.data(), out.data(), log_sum_exp.data(),
                            Store<TestType>(dout).data(), dqkv.data(), scratch.get(), AnyStream());
          return Outputs<float>{Load(dqkv)};
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
  PoisonedWorkspace workspace(AttentionWorkspaceBytes<float>(shape, DeviceKind::kCpu));
  Outputs<float> y = {std::vector<float>(150 * 16), std::vector<float>(150)};
  AttentionForward(shape, qkv.data(), y[0].data(), y[1].data(), workspace.get(), AnyStream());
  const auto truth = ReferenceAttentionForward(shape, As<double>(qkv));
  CHECK(testing::Distance(y[0], truth[0]) <= 1e-3 * std::sqrt(truth[0].size()));
}

}  // namespace
}  // namespace convene::worker
