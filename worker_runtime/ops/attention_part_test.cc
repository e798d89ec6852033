// Attention of some tokens to some others, on the CPU.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "worker_runtime/ops/attention.h"
#include "worker_runtime/ops/testing/attention_parts.h"
#include "worker_runtime/ops/testing/ops_testing.h"

namespace convene::worker {
namespace {

using testing::AttentionPart;
using testing::CheckPart;
using testing::CheckRing;
using testing::Contiguous;
using testing::Load;
using testing::NumbersOf;
using testing::Outputs;
using testing::PartHeads;
using testing::PoisonedWorkspace;
using testing::Positions;
using testing::Some;
using testing::Store;
using testing::WholeAttention;
using testing::ZigZag;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// AttentionPart's runner.
template <typename T>
class CpuRunner {
 public:
  Outputs<float> Forward(const AttentionPart& part) {
    const Arguments in(part);
    std::vector<T> out(in.queries.size(), T(NAN));
    std::vector<float> log_sum_exp(out.size() / part.shape.head_size, NAN);
    AttentionForward(part.shape, in.documents, in.positions, in.heads(), out.data(),
                     log_sum_exp.data(), Scratch(part), stream_);
    return {Load(out), log_sum_exp};
  }
  void Merge(const AttentionPart& part, const Outputs<float>& of_part, bool is_first,
             Outputs<float>* merged) {
    if (is_first)
      merged->assign(
          {std::vector<float>(of_part[0].size(), NAN), std::vector<float>(of_part[1].size(), NAN)});
    AttentionMerge(part.shape, Store<T>(of_part[0]).data(), of_part[1].data(),
                   {0, part.shape.sequence_length}, is_first, (*merged)[0].data(),
                   (*merged)[1].data(), stream_);
  }
  Outputs<float> Backward(const AttentionPart& part, const Outputs<float>& forward,
                          const std::vector<float>& dout) {
    const Arguments in(part);
    std::vector<T> dqueries(in.queries.size(), T(NAN));
    std::vector<T> dkeys_values(in.keys_values.size(), T(NAN));
    AttentionBackward(part.shape, in.documents, in.positions, in.heads(),
                      Store<T>(forward[0]).data(), forward[1].data(), Store<T>(dout).data(),
                      /*adds=*/false, PartHeads(part.shape, dqueries.data(), dkeys_values.data()),
                      Scratch(part), stream_);
    return {Load(dqueries), Load(dkeys_values)};
  }
  void BackwardAdd(const AttentionPart& part, const Outputs<float>& forward,
                   const std::vector<float>& dout, Outputs<float>* sums) {
    const Arguments in(part);
    AttentionBackward(part.shape, in.documents, in.positions, in.heads(),
                      Store<T>(forward[0]).data(), forward[1].data(), Store<T>(dout).data(),
                      /*adds=*/true, PartHeads(part.shape, (*sums)[0].data(), (*sums)[1].data()),
                      Scratch(part), stream_);
  }

 private:
  struct Arguments {
    explicit Arguments(const AttentionPart& part)
        : part(part), queries(Store<T>(part.queries)), keys_values(Store<T>(part.keys_values)) {
      if (!part.begins.empty()) documents.begin = part.begins.data();
      positions = {part.query_positions.data(), part.key_positions.data()};
    }
    QueriesKeysValues<const T> heads() const {
      return PartHeads(part.shape, queries.data(), keys_values.data());
    }

    const AttentionPart& part;
    Documents documents;
    AttentionPositions positions;
    std::vector<T> queries, keys_values;
  };

  Workspace Scratch(const AttentionPart& part) {
    workspace_ = PoisonedWorkspace(AttentionWorkspaceBytes<T>(part.shape, DeviceKind::kCpu));
    return workspace_.get();
  }

  Stream stream_ = Stream::Cpu();
  PoisonedWorkspace workspace_{0};
};

TEMPLATE_TEST_CASE("parts merged round a ring are the whole, forward and backward", "", float,
                   BFloat16) {
  CpuRunner<TestType> runner;
  for (const AttentionShape& shape :
       std::vector<AttentionShape>{{1, 8, 1, 1, 4}, {2, 61, 4, 2, 20}, {1, 150, 2, 1, 12}}) {
    for (const std::vector<int>& lengths : {std::vector<int>{}, {2, 1, 13, 5}, {49, 7}}) {
      for (const int ranks : {2, 3, 4}) {
        CheckRing<TestType>(runner, shape, lengths, Contiguous(shape.sequence_length, ranks));
        CheckRing<TestType>(runner, shape, lengths, ZigZag(shape.sequence_length, ranks));
      }
    }
  }
  AttentionShape windowed = {1, 150, 2, 1, 12};
  for (const int window : {1, 20, 90}) {
    windowed.window = window;
    CheckRing<TestType>(runner, windowed, {}, ZigZag(windowed.sequence_length, 3));
    CheckRing<TestType>(runner, windowed, {49, 7}, Contiguous(windowed.sequence_length, 2));
  }
  AttentionShape capped = {1, 150, 2, 1, 12};
  capped.score_cap = 0.5f;
  CheckRing<TestType>(runner, capped, {49, 7}, ZigZag(capped.sequence_length, 3));
  // A key each.
  CheckRing<TestType>(runner, {1, 5, 2, 1, 8}, {}, Contiguous(5, 5));
}

TEMPLATE_TEST_CASE("any rising positions agree with the reference", "", float, BFloat16) {
  CpuRunner<TestType> runner;
  uint64_t seed = 1000;
  for (const AttentionShape& shape :
       std::vector<AttentionShape>{{1, 40, 2, 1, 8}, {2, 130, 3, 3, 20}, {1, 400, 2, 1, 16}}) {
    for (const std::vector<int>& lengths : {std::vector<int>{}, {2, 1, 13, 5}, {31}, {100, 45}}) {
      const WholeAttention<TestType> whole(shape, lengths);
      for (const double queries : {0.1, 0.3, 0.9}) {
        for (const double keys : {0.0, 0.3, 0.9}) {
          ++seed;
          CheckPart(runner, whole, Some(shape.sequence_length, queries, seed),
                    Some(shape.sequence_length, keys, seed * 1000));
        }
      }
    }
  }
}

TEST_CASE("queries that lie between the keys' documents see none: zero, -infinity, no gradient") {
  CpuRunner<float> runner;
  // The keys 0..31 and 90..121 of a row, and the second document (32..89): whole vectors of keys
  // lie on either side of it. The first and the last query see keys.
  const WholeAttention<float> whole({2, 122, 2, 1, 16}, {32, 58, 32});
  Positions keys = testing::Chunk(32, 0, 1);
  for (int i = 90; i < 122; ++i) keys.push_back(i);
  Positions queries = {31};
  for (int i = 32; i < 90; ++i) queries.push_back(i);
  queries.push_back(90);
  const AttentionPart part = whole.Part(queries, keys);
  const auto forward = runner.Forward(part);
  const auto dout = NumbersOf<float>(part.queries.size(), 3);
  const auto gradients = runner.Backward(part, forward, dout);
  const int width = 2 * 16;
  for (int query = 1; query <= 58; ++query) {
    for (int head = 0; head < 2; ++head) CHECK(forward[1][head * 60 + query] == -kInfinity);
    for (int i = 0; i < width; ++i) {
      CHECK(forward[0][query * width + i] == 0);
      CHECK(gradients[0][query * width + i] == 0);
    }
  }
  CheckPart(runner, whole, queries, keys);
}

TEST_CASE("a part that nobody sees leaves the sums and what was merged as they are") {
  CpuRunner<float> runner;
  const WholeAttention<float> whole({2, 60, 4, 2, 8}, {});
  const AttentionPart seen = whole.Part(testing::Chunk(60, 0, 2), testing::Chunk(60, 0, 2));
  const AttentionPart unseen = whole.Part(testing::Chunk(60, 0, 2), testing::Chunk(60, 1, 2));
  const auto nothing = runner.Forward(unseen);
  for (const float value : nothing[0]) CHECK(value == 0);
  for (const float value : nothing[1]) CHECK(value == -kInfinity);
  const auto forward = runner.Forward(seen);
  for (const bool seen_first : {true, false}) {
    Outputs<float> merged(2);
    runner.Merge(seen, seen_first ? forward : nothing, true, &merged);
    runner.Merge(seen, seen_first ? nothing : forward, false, &merged);
    CHECK(merged == forward);
  }
  const auto dout = NumbersOf<float>(unseen.queries.size(), 3);
  const Outputs<float> before = {std::vector<float>(unseen.queries.size(), 3.0f),
                                 std::vector<float>(unseen.keys_values.size(), 4.0f)};
  Outputs<float> sums = before;
  runner.BackwardAdd(unseen, forward, dout, &sums);
  CHECK(sums == before);
}

TEST_CASE("merging keeps -infinity where both parts saw nothing, and a NaN of either") {
  CpuRunner<float> runner;
  AttentionPart part = {.shape = {1, 3, 1, 1, 2}};
  Outputs<float> merged;
  const Outputs<float> nothing = {{0, 0, 0, 0, 0, 0}, {-kInfinity, -kInfinity, -kInfinity}};
  runner.Merge(part, nothing, true, &merged);
  runner.Merge(part, {{0, 0, 1, 2, 3, 4}, {-kInfinity, NAN, 5}}, false, &merged);
  CHECK(merged[0][0] == 0);
  CHECK(merged[1][0] == -kInfinity);
  CHECK(std::isnan(merged[0][2]));
  CHECK(std::isnan(merged[1][1]));
  CHECK(merged[0][4] == 3);
  CHECK(merged[1][2] == 5);
}

// Generation: a cache with room for more keys than there are yet, of one key after the other.
TEST_CASE("a new token against a cache of keys is the last row of the whole") {
  // The second is longer than a step of the softmax, and its heads are no whole vectors.
  const AttentionShape whole =
      GENERATE(AttentionShape{2, 49, 4, 2, 16}, AttentionShape{.batch = 2,
                                                               .sequence_length = 300,
                                                               .heads = 4,
                                                               .kv_heads = 2,
                                                               .head_size = 20,
                                                               .window = 270,
                                                               .score_cap = 0.5f});
  const int length = whole.sequence_length;
  const int capacity = length + 21;
  const int kv_width = 2 * whole.kv_heads * whole.head_size;
  const int out_width = whole.heads * whole.head_size;
  const auto qkv = testing::Numbers(size_t{2} * length * whole.qkv_width(), 1, 2);
  Stream stream = Stream::Cpu();
  const auto attend = [&](const AttentionShape& shape, const AttentionPositions& positions,
                          const QueriesKeysValues<const float>& heads) {
    PoisonedWorkspace workspace(AttentionWorkspaceBytes<float>(shape, DeviceKind::kCpu));
    Outputs<float> y = {std::vector<float>(size_t{2} * shape.sequence_length * out_width),
                        std::vector<float>(size_t{2} * shape.sequence_length * shape.heads)};
    AttentionForward(shape, {}, positions, heads, y[0].data(), y[1].data(), workspace.get(),
                     stream);
    return y;
  };
  const auto truth = attend(whole, {}, Fused(whole, qkv.data()));
  std::vector<float> cache(size_t{2} * capacity * kv_width, 7.0f);
  for (int row = 0; row < 2; ++row) {
    for (int token = 0; token < length; ++token) {
      const auto from = qkv.begin() + (row * length + token) * whole.qkv_width() + out_width;
      std::copy_n(from, kv_width, cache.begin() + (row * capacity + token) * kv_width);
    }
  }
  const int32_t last = length - 1;
  const float* const query = qkv.data() + last * whole.qkv_width();
  const int64_t half = kv_width / 2;
  // All of the cache, whose later keys are hidden by their positions; or the keys that there are.
  for (const int keys : {capacity, length}) {
    AttentionShape shape = whole;
    shape.sequence_length = 1;
    shape.keys = keys;
    const auto y = attend(shape, {&last, nullptr},
                          {{query, int64_t{length} * whole.qkv_width(), 0},
                           {cache.data(), int64_t{capacity} * kv_width, kv_width},
                           {cache.data() + half, int64_t{capacity} * kv_width, kv_width}});
    for (int row = 0; row < 2; ++row) {
      for (int i = 0; i < out_width; ++i) {
        CHECK(y[0][row * out_width + i] ==
              Approx(truth[0][(row * length + last) * out_width + i]).margin(1e-6));
      }
    }
  }
}

}  // namespace
}  // namespace convene::worker
