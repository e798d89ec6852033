// Attention of some tokens to some others on a GPU, by our own kernels and, in bf16, by cuDNN.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "tools/base/testing/status_testing.h"
#include "worker_runtime/device/cuda/queue.h"
#include "worker_runtime/device/cuda/testing/gpu_testing.h"
#include "worker_runtime/ops/attention.h"
#include "worker_runtime/ops/cuda/attention/attention_plans.h"
#include "worker_runtime/ops/cuda/attention/plan_key.h"
#include "worker_runtime/ops/cuda/attention/workspace_bytes.h"
#include "worker_runtime/ops/cuda/cuda_ops.h"
#include "worker_runtime/ops/cuda/testing/kernel_testing.h"
#include "worker_runtime/ops/testing/attention_parts.h"
#include "worker_runtime/ops/testing/ops_testing.h"

namespace convene::worker::cuda {
namespace {

using convene::testing::HasGpuOrSkips;
using worker::testing::AttentionPart;
using worker::testing::CheckPart;
using worker::testing::CheckRing;
using worker::testing::Chunk;
using worker::testing::Contiguous;
using worker::testing::Load;
using worker::testing::Outputs;
using worker::testing::PartHeads;
using worker::testing::Positions;
using worker::testing::Some;
using worker::testing::Store;
using worker::testing::WholeAttention;
using worker::testing::ZigZag;

// AttentionPart's runner.
template <typename T>
class GpuRunner {
 public:
  Outputs<float> Forward(const AttentionPart& part) {
    Arguments in(part);
    OnGpu<T> out(part.queries.size());
    OnGpu<float> log_sum_exp(part.queries.size() / part.shape.head_size);
    cuda::AttentionForward(part.shape, in.documents, in.positions, in.heads(), out.data(),
                           log_sum_exp.data(), in.scratch.get(), Gpu().compute());
    return {Load(out.Read()), log_sum_exp.Read()};
  }
  void Merge(const AttentionPart& part, const Outputs<float>& of_part, bool is_first,
             Outputs<float>* merged) {
    OnGpu<T> part_out(Store<T>(of_part[0]));
    OnGpu<float> part_log_sum_exp(of_part[1]);
    OnGpu<float> out(is_first ? std::vector<float>(of_part[0].size(), NAN) : (*merged)[0]);
    OnGpu<float> log_sum_exp(is_first ? std::vector<float>(of_part[1].size(), NAN) : (*merged)[1]);
    cuda::AttentionMerge(part.shape, part_out.data(), part_log_sum_exp.data(),
                         {0, part.shape.sequence_length}, is_first, out.data(), log_sum_exp.data(),
                         Gpu().compute());
    *merged = {out.Read(), log_sum_exp.Read()};
  }
  Outputs<float> Backward(const AttentionPart& part, const Outputs<float>& forward,
                          const std::vector<float>& dout) {
    Arguments in(part);
    OnGpu<T> out(Store<T>(forward[0]));
    OnGpu<float> log_sum_exp(forward[1]);
    OnGpu<T> there(Store<T>(dout));
    OnGpu<T> dqueries(part.queries.size());
    OnGpu<T> dkeys_values(part.keys_values.size());
    cuda::AttentionBackward<T>(part.shape, in.documents, in.positions, in.heads(), out.data(),
                               log_sum_exp.data(), there.data(), /*adds=*/false,
                               PartHeads(part.shape, dqueries.data(), dkeys_values.data()),
                               in.scratch.get(), Gpu().compute());
    return {Load(dqueries.Read()), Load(dkeys_values.Read())};
  }
  void BackwardAdd(const AttentionPart& part, const Outputs<float>& forward,
                   const std::vector<float>& dout, Outputs<float>* sums) {
    Arguments in(part);
    OnGpu<T> out(Store<T>(forward[0]));
    OnGpu<float> log_sum_exp(forward[1]);
    OnGpu<T> there(Store<T>(dout));
    OnGpu<float> dqueries((*sums)[0]);
    OnGpu<float> dkeys_values((*sums)[1]);
    cuda::AttentionBackward<T>(part.shape, in.documents, in.positions, in.heads(), out.data(),
                               log_sum_exp.data(), there.data(), /*adds=*/true,
                               PartHeads(part.shape, dqueries.data(), dkeys_values.data()),
                               in.scratch.get(), Gpu().compute());
    *sums = {dqueries.Read(), dkeys_values.Read()};
  }

 private:
  struct Arguments {
    explicit Arguments(const AttentionPart& part)
        : part(part),
          begins(part.begins),
          query_positions(part.query_positions),
          key_positions(part.key_positions),
          queries(Store<T>(part.queries)),
          keys_values(Store<T>(part.keys_values)),
          scratch(AttentionWorkspaceBytes<T>(part.shape)) {
      if (part.shape.packed) documents.begin = begins.data();
      positions = {query_positions.data(), key_positions.data()};
    }
    QueriesKeysValues<const T> heads() {
      return PartHeads<const T>(part.shape, queries.data(), keys_values.data());
    }

    const AttentionPart& part;
    OnGpu<int32_t> begins, query_positions, key_positions;
    OnGpu<T> queries, keys_values;
    GpuWorkspace scratch;
    Documents documents;
    AttentionPositions positions;
  };
};

TEMPLATE_TEST_CASE("parts merged round a ring are the whole on a GPU, forward and backward", "",
                   float, BFloat16) {
  if (!HasGpuOrSkips()) return;
  GpuRunner<TestType> runner;
  for (const std::vector<int>& lengths : {std::vector<int>{}, {2, 1, 13, 5}}) {
    for (const int ranks : {2, 3}) {
      const AttentionShape shape = {2, 45, 4, 2, 16};
      CheckRing<TestType>(runner, shape, lengths, Contiguous(shape.sequence_length, ranks));
      CheckRing<TestType>(runner, shape, lengths, ZigZag(shape.sequence_length, ranks));
    }
  }
  // A key each.
  CheckRing<TestType>(runner, {1, 4, 2, 1, 8}, {}, Contiguous(4, 4));
}

TEST_CASE("cuDNN takes the parts of a ring, and merged they are the whole", "[slow][cudnn]") {
  if (!HasGpuOrSkips()) return;
  GpuRunner<BFloat16> runner;
  auto& plans = Gpu().compute().queue().plans<AttentionPlans>();
  for (const AttentionShape& shape :
       {AttentionShape{2, 96, 4, 2, 64}, AttentionShape{2, 96, 4, 2, 64, /*deterministic=*/true},
        AttentionShape{1, 120, 3, 3, 128}}) {
    for (const int ranks : {2, 3}) {
      const auto chunks = Contiguous(shape.sequence_length, ranks);
      const WholeAttention<BFloat16> whole(shape, {});
      // Its own keys; those of the rank before; half of those, and half of the queries.
      const size_t half = chunks[1].size() / 2;
      const Positions late(chunks[1].begin() + half, chunks[1].end());
      const Positions early(chunks[0].begin(), chunks[0].begin() + half);
      for (const auto& [queries, keys] : {std::pair(chunks[1], chunks[1]),
                                          {chunks[1], chunks[0]},
                                          {chunks[1], early},
                                          {late, chunks[0]}}) {
        CAPTURE(shape.head_size, shape.deterministic, queries, keys);
        const AttentionPart part = whole.Part(queries, keys);
        const HeadStrides strides =
            StridesOf(PartHeads<const BFloat16>(part.shape, nullptr, nullptr));
        for (const AttentionPass pass : {AttentionPass::kForward, AttentionPass::kBackward}) {
          CHECK_OK(plans.Support(part.shape, strides, 0, pass));
        }
        CheckPart(runner, whole, queries, keys);
      }
      CheckRing<BFloat16>(runner, shape, {}, chunks);
    }
  }
}

// As context_attention.h has them: queries in a row of qkv, keys and values of the tokens of a rank
// side by side, whichever of them meet.
TEST_CASE("cuDNN takes each step of a Llama's ring, within the planned scratch", "[slow][cudnn]") {
  if (!HasGpuOrSkips()) return;
  auto& plans = Gpu().compute().queue().plans<AttentionPlans>();
  for (const AttentionShape& local :
       {AttentionShape{1, 4096, 32, 8, 64}, AttentionShape{2, 2048, 24, 8, 128},
        AttentionShape{1, 2048, 12, 12, 64}}) {
    const int length = local.sequence_length;
    const int64_t key_token = int64_t{2} * local.kv_heads * local.head_size;
    HeadStrides strides = FusedStrides(local);
    strides.key_row = length * key_token;
    strides.key_token = key_token;
    for (const auto& [queries, keys, seen] : {std::tuple(length, length, KeysSeen::kInOrder),
                                              {length, length / 2, KeysSeen::kAll},
                                              {length / 2, length, KeysSeen::kAll}}) {
      for (const bool deterministic : {false, true}) {
        AttentionShape shape = local;
        shape.sequence_length = queries;
        shape.keys = keys;
        shape.keys_seen = seen;
        shape.deterministic = deterministic;
        CAPTURE(shape.batch, shape.heads, shape.head_size, queries, keys, deterministic);
        for (const AttentionPass pass : {AttentionPass::kForward, AttentionPass::kBackward}) {
          CHECK_OK(plans.Support(shape, strides, 0, pass));
          CHECK(PartGradientBytes(shape) + plans.WorkspaceBytes(shape, strides, 0, pass) +
                    kCudnnAlignment <=
                AttentionWorkspaceBytes<BFloat16>(shape));
        }
      }
    }
  }
}

TEMPLATE_TEST_CASE("any rising positions agree with the reference on a GPU", "", float, BFloat16) {
  if (!HasGpuOrSkips()) return;
  GpuRunner<TestType> runner;
  uint64_t seed = 1000;
  for (const AttentionShape& shape :
       std::vector<AttentionShape>{{1, 150, 2, 1, 18}, {2, 60, 2, 2, 150}}) {
    for (const std::vector<int>& lengths : {std::vector<int>{}, {2, 1, 13, 5}, {31}}) {
      const WholeAttention<TestType> whole(shape, lengths);
      for (const double queries : {0.3, 0.9}) {
        for (const double keys : {0.3, 0.9}) {
          ++seed;
          CheckPart(runner, whole, Some(shape.sequence_length, queries, seed),
                    Some(shape.sequence_length, keys, seed * 1000));
        }
      }
    }
  }
}

TEST_CASE("a part that nobody sees leaves what was merged and the sums as they are on a GPU") {
  if (!HasGpuOrSkips()) return;
  GpuRunner<float> runner;
  const WholeAttention<float> whole({2, 60, 4, 2, 8}, {});
  const auto queries = Chunk(60, 0, 2);
  const AttentionPart seen = whole.Part(queries, queries);
  const AttentionPart unseen = whole.Part(queries, Chunk(60, 1, 2));
  const auto nothing = runner.Forward(unseen);
  for (const float value : nothing[0]) CHECK(value == 0);
  for (const float value : nothing[1]) CHECK(value == -INFINITY);
  const auto forward = runner.Forward(seen);
  Outputs<float> merged;
  runner.Merge(seen, forward, true, &merged);
  runner.Merge(seen, nothing, false, &merged);
  CHECK(merged == forward);
  Outputs<float> sums = {std::vector<float>(unseen.queries.size(), 3.0f),
                         std::vector<float>(unseen.keys_values.size(), 4.0f)};
  const auto before = sums;
  runner.BackwardAdd(unseen, forward, unseen.queries, &sums);
  CHECK(sums == before);
}

}  // namespace
}  // namespace convene::worker::cuda
