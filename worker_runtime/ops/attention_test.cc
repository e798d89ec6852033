#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <vector>

#include "worker_runtime/ops/attention.h"
#include "worker_runtime/ops/testing/attention_parts.h"
#include "worker_runtime/ops/testing/ops_testing.h"
#include "worker_runtime/ops/testing/reference/attention.h"

namespace convene::worker {
namespace {

using testing::As;
using testing::Compare;
using testing::DocumentBegins;
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

struct Case {
  AttentionShape shape;
  std::vector<int> document_lengths;  // over and over (DocumentBegins); none: not packed
};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const AttentionShape& shape : std::vector<AttentionShape>{{1, 1, 1, 1, 4},
                                                                 {2, 3, 2, 1, 4},
                                                                 {1, 17, 3, 3, 20},
                                                                 {2, 49, 4, 2, 16},
                                                                 {1, 130, 2, 1, 8},
                                                                 {1, 97, 1, 1, 128},
                                                                 {3, 64, 6, 2, 64},
                                                                 {1, 300, 2, 2, 12}}) {
    cases.push_back({shape, {}});
    cases.push_back({shape, {2, 1, 13, 5}});
  }
  // Documents that begin and end at the edges of chunks (12 queries), vectors (16 keys) and blocks
  // (48 queries, 128 keys), one beside them, and across several.
  for (const std::vector<int>& lengths : std::vector<std::vector<int>>{
           {12}, {16}, {48}, {128}, {47, 1}, {49}, {11, 13}, {127, 2}, {129}, {5, 260, 35}}) {
    cases.push_back({{1, 300, 2, 1, 12}, lengths});
    cases.push_back({{2, 145, 3, 1, 20}, lengths});
  }
  // Windows of one key, at the edges of chunks, vectors and blocks, and longer than a row.
  for (const int window : {1, 5, 12, 16, 47, 49, 128, 130, 400}) {
    AttentionShape shape = {1, 300, 2, 1, 12};
    shape.window = window;
    cases.push_back({shape, {}});
    cases.push_back({shape, {5, 260, 35}});
  }
  // Caps of the size of the scores, and beyond it.
  for (const float cap : {0.5f, 3.0f, 50.0f}) {
    AttentionShape shape = {1, 300, 2, 1, 12};
    shape.score_cap = cap;
    cases.push_back({shape, {}});
    cases.push_back({shape, {5, 260, 35}});
  }
  for (Case& one : cases) one.shape.packed = !one.document_lengths.empty();
  return cases;
}

// Forward and backward pass of one kind of numbers, with scratch that is poisoned.
template <typename T>
struct Passes {
  Passes(const AttentionShape& shape, const Documents& documents, const std::vector<float>& qkv)
      : shape(shape),
        documents(documents),
        qkv(Store<T>(qkv)),
        out(qkv.size() / shape.qkv_width() * shape.heads * shape.head_size),
        log_sum_exp(qkv.size() / shape.qkv_width() * shape.heads) {}

  void Forward() {
    PoisonedWorkspace workspace(AttentionWorkspaceBytes<T>(shape, DeviceKind::kCpu));
    AttentionForward(shape, documents, {}, Fused(shape, qkv.data()), out.data(), log_sum_exp.data(),
                     workspace.get(), AnyStream());
  }
  std::vector<float> Backward(const std::vector<float>& dout) {
    std::vector<T> dqkv(qkv.size(), T(std::nanf("")));
    PoisonedWorkspace workspace(AttentionWorkspaceBytes<T>(shape, DeviceKind::kCpu));
    AttentionBackward(shape, documents, {}, Fused(shape, qkv.data()), out.data(),
                      log_sum_exp.data(), Store<T>(dout).data(), /*adds=*/false,
                      Fused(shape, dqkv.data()), workspace.get(), AnyStream());
    return Load(dqkv);
  }

  const AttentionShape shape;
  const Documents documents;
  const std::vector<T> qkv;
  std::vector<T> out;
  std::vector<float> log_sum_exp;
};

template <typename Real>
Outputs<Real> ReferenceAttentionForward(const AttentionShape& shape, const Documents& documents,
                                        const std::vector<Real>& qkv) {
  const size_t tokens = static_cast<size_t>(shape.batch) * shape.sequence_length;
  Outputs<Real> y = {std::vector<Real>(tokens * shape.heads * shape.head_size),
                     std::vector<Real>(tokens * shape.heads)};
  reference::AttentionForward(shape, documents.begin, {}, Fused(shape, qkv.data()), y[0].data(),
                              y[1].data());
  return y;
}

template <typename Real>
std::vector<Real> ReferenceAttentionBackward(const AttentionShape& shape,
                                             const Documents& documents,
                                             const std::vector<Real>& qkv,
                                             const std::vector<Real>& dout) {
  const auto y = ReferenceAttentionForward(shape, documents, qkv);
  std::vector<Real> dqkv(qkv.size());
  reference::AttentionBackwardAdd(shape, documents.begin, {}, Fused(shape, qkv.data()), y[0].data(),
                                  y[1].data(), dout.data(), Fused(shape, dqkv.data()));
  return dqkv;
}

size_t QkvCount(const AttentionShape& shape) {
  return static_cast<size_t>(shape.batch) * shape.sequence_length * shape.qkv_width();
}
size_t OutCount(const AttentionShape& shape) {
  return static_cast<size_t>(shape.batch) * shape.sequence_length * shape.heads * shape.head_size;
}

TEMPLATE_TEST_CASE("attention agrees with the reference, forward and backward", "", float,
                   BFloat16) {
  for (const Case& one : Cases()) {
    const AttentionShape& shape = one.shape;
    CAPTURE(shape.batch, shape.sequence_length, shape.heads, shape.kv_heads, shape.head_size,
            one.document_lengths);
    const auto qkv = NumbersOf<TestType>(QkvCount(shape), 1, 2);
    const auto dout = NumbersOf<TestType>(OutCount(shape), 2);
    std::vector<int32_t> begins;
    if (shape.packed) {
      begins = DocumentBegins(shape.batch, shape.sequence_length, one.document_lengths);
    }
    const Documents documents = {.begin = shape.packed ? begins.data() : nullptr};
    Passes<TestType> passes(shape, documents, qkv);
    Compare<TestType>(
        kForward,
        [&] {
          passes.Forward();
          return Outputs<float>{Load(passes.out), passes.log_sum_exp};
        },
        [&](auto zero) {
          return ReferenceAttentionForward(shape, documents, As<decltype(zero)>(qkv));
        },
        {1});
    Compare<TestType>(
        kBackward,
        [&] {
          passes.Forward();
          return Outputs<float>{passes.Backward(dout)};
        },
        [&](auto zero) {
          using Real = decltype(zero);
          return Outputs<Real>{
              ReferenceAttentionBackward(shape, documents, As<Real>(qkv), As<Real>(dout))};
        },
        {}, testing::ScoreGradientTerms(shape, dout));
  }
}

TEMPLATE_TEST_CASE("one document a row has the bits of rows that are not packed", "", float,
                   BFloat16) {
  AttentionShape shape = {2, 145, 4, 2, 16};
  const auto qkv = NumbersOf<TestType>(QkvCount(shape), 1, 2);
  const auto dout = NumbersOf<TestType>(OutCount(shape), 2);
  Passes<TestType> plain(shape, {}, qkv);
  plain.Forward();
  shape.packed = true;
  const auto begins = DocumentBegins(shape.batch, shape.sequence_length, {shape.sequence_length});
  Passes<TestType> packed(shape, {.begin = begins.data()}, qkv);
  packed.Forward();
  CHECK(Load(packed.out) == Load(plain.out));
  CHECK(packed.log_sum_exp == plain.log_sum_exp);
  CHECK(packed.Backward(dout) == plain.Backward(dout));
}

// Every output must be exact: the plain computation takes equal numbers from each other here.
TEST_CASE("a document of one token attends to itself alone") {
  AttentionShape shape = {2, 61, 2, 2, 20};
  shape.packed = true;
  const auto begins = DocumentBegins(shape.batch, shape.sequence_length, {1});
  const auto qkv = Numbers(QkvCount(shape), 1);
  const auto dout = Numbers(OutCount(shape), 2);
  Passes<float> passes(shape, {.begin = begins.data()}, qkv);
  passes.Forward();
  const auto dqkv = passes.Backward(dout);
  const int width = shape.heads * shape.head_size;
  for (size_t i = 0; i < dout.size(); ++i) {
    const size_t query = i / width * shape.qkv_width() + i % width;
    CHECK(passes.out[i] == qkv[query + 2 * width]);
    CHECK(dqkv[query + 2 * width] == Approx(dout[i]).epsilon(1e-5));
    // Its weight is 1 whatever its query and key are: gradients of rounding alone.
    CHECK(std::abs(dqkv[query]) < 1e-5f);
    CHECK(std::abs(dqkv[query + width]) < 1e-5f);
  }
}

TEST_CASE("a document does not see what stands before it, whatever that is") {
  AttentionShape shape = {1, 100, 2, 1, 16};
  shape.packed = true;
  const auto begins = DocumentBegins(1, 100, {37, 63});
  auto qkv = Numbers(QkvCount(shape), 1);
  const auto dout = Numbers(OutCount(shape), 2);
  Passes<float> before(shape, {.begin = begins.data()}, qkv);
  before.Forward();
  for (int i = 0; i < 37 * shape.qkv_width(); ++i) qkv[i] = 3 - qkv[i];
  Passes<float> after(shape, {.begin = begins.data()}, qkv);
  after.Forward();
  const int first_out = 37 * shape.heads * shape.head_size;
  CHECK(
      std::equal(before.out.begin() + first_out, before.out.end(), after.out.begin() + first_out));
  CHECK_FALSE(std::equal(before.out.begin(), before.out.begin() + first_out, after.out.begin()));
  const auto before_gradient = before.Backward(dout);
  const auto after_gradient = after.Backward(dout);
  const int first_gradient = 37 * shape.qkv_width();
  CHECK(std::equal(before_gradient.begin() + first_gradient, before_gradient.end(),
                   after_gradient.begin() + first_gradient));
}

TEST_CASE("attention survives scores that differ by hundreds") {
  const AttentionShape shape = {1, 150, 1, 1, 16};
  const auto qkv = Numbers(static_cast<size_t>(150) * shape.qkv_width(), 1, 40);
  PoisonedWorkspace workspace(AttentionWorkspaceBytes<float>(shape, DeviceKind::kCpu));
  Outputs<float> y = {std::vector<float>(150 * 16), std::vector<float>(150)};
  AttentionForward(shape, {}, {}, Fused(shape, qkv.data()), y[0].data(), y[1].data(),
                   workspace.get(), AnyStream());
  const auto truth = ReferenceAttentionForward(shape, {}, As<double>(qkv));
  CHECK(testing::Distance(y[0], truth[0]) <= 1e-3 * std::sqrt(truth[0].size()));
}

}  // namespace
}  // namespace convene::worker
