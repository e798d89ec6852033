// Whether an op starts an OpenMP team, seen from outside: by the threads of this process.
#include <omp.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <memory>
#include <vector>

#include "tools/base/testing/status_testing.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/model/initialize.h"
#include "worker_runtime/ops/attention.h"
#include "worker_runtime/ops/bench_ops.h"
#include "worker_runtime/ops/elementwise.h"
#include "worker_runtime/ops/expert_rows.h"
#include "worker_runtime/ops/router.h"

namespace convene::worker {
namespace {

constexpr int kThreads = 8;

int64_t CountThreads() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {});
}

// Ops that bench_ops.h has not.
template <typename T>
std::vector<BenchOp> OtherOps(const BenchInputs& in) {
  const BenchShape s = in.shape;
  const int64_t size = int64_t{s.rows} * s.hidden;
  const AttentionShape shape = {.batch = s.rows / s.sequence_length,
                                .sequence_length = s.sequence_length,
                                .heads = s.heads,
                                .kv_heads = s.kv_heads,
                                .head_size = s.head_size};
  const int64_t out_size = int64_t{s.rows} * s.heads * s.head_size;
  const int64_t statistics = int64_t{s.rows} * s.heads;
  const RouterShape router = {.rows = s.rows, .experts = 64, .chosen = 4};
  const int64_t logits = int64_t{s.rows} * router.experts;
  const int64_t choices = int64_t{s.rows} * router.chosen;
  const auto experts = std::make_shared<std::vector<int32_t>>(choices);
  for (int64_t i = 0; i < choices; ++i) (*experts)[i] = static_cast<int32_t>(i % router.experts);
  return {{"router_forward", 0,
           [=, &stream = in.stream](Pieces& set) {
             RouterForward(router, set.Take<float>(logits), nullptr, nullptr,
                           set.Take<int32_t>(choices), set.Take<float>(choices), stream);
           }},
          {"router_statistics", 0,
           [=, &stream = in.stream](Pieces& set) {
             RouterStatistics(router, s.sequence_length, set.Take<float>(logits), experts->data(),
                              nullptr, set.Take<float>(logits), stream);
           }},
          {"router_backward", 0,
           [=, &stream = in.stream, scale = in.scale](Pieces& set) {
             RouterBackward(router, s.sequence_length, set.Take<float>(logits), experts->data(),
                            set.Take<float>(choices), set.Take<float>(logits), 0.1f, scale, nullptr,
                            set.Take<T>(logits), stream);
           }},
          {"weigh_rows", 0,
           [=, &stream = in.stream](Pieces& set) {
             WeighRows(s.rows, s.hidden, set.Take<float>(s.rows), set.Take<T>(size),
                       set.Take<T>(size), set.Take<float>(s.rows), stream);
           }},
          {"attention_merge", 0,
           [=, &stream = in.stream](Pieces& set) {
             AttentionMerge<T>(shape, set.Take<T>(out_size), set.Take<float>(statistics),
                               {0, shape.sequence_length}, false, set.Take<float>(out_size),
                               set.Take<float>(statistics), stream);
           }},
          {"copy_rows", 0,
           [=, &stream = in.stream](Pieces& set) {
             CopyRows<T>(s.rows, s.hidden, set.Take<T>(size), s.hidden, set.Take<T>(size), s.hidden,
                         stream);
           }},
          {"round_rows", 0,
           [=, &stream = in.stream](Pieces& set) {
             RoundRows<T>(s.rows, s.hidden, set.Take<float>(size), s.hidden, set.Take<T>(size),
                          s.hidden, stream);
           }},
          {"initialize_parameter", 0, [=](Pieces& set) {
             const ParameterSlice slice = {.name = "w",
                                           .global_shape = {1, s.hidden},
                                           .extent = {1, s.hidden},
                                           .standard_deviation = 0.02};
             InitializeParameter(slice, 1, 0, s.hidden, set.Take<float>(s.hidden));
           }}};
}

std::vector<BenchOp> AllOps(const BenchInputs& inputs) {
  std::vector<BenchOp> all = FlatOps(inputs);
  for (const auto& ops :
       {ProductOps<float>(inputs), ExpertOps<float>(inputs), AttentionOps<float>(inputs),
        RowOps<float>(inputs), OtherOps<float>(inputs), ProductOps<BFloat16>(inputs),
        ExpertOps<BFloat16>(inputs), AttentionOps<BFloat16>(inputs), RowOps<BFloat16>(inputs),
        OtherOps<BFloat16>(inputs)}) {
    all.insert(all.end(), ops.begin(), ops.end());
  }
  return all;
}

void EndTeam() { omp_pause_resource(omp_pause_soft, omp_get_initial_device()); }

absl::StatusOr<BenchInputs> Inputs(Device& device, const BenchShape& shape) {
  return MakeBenchInputs(device, shape, size_t{64} << 20);
}

TEST_CASE("no op starts a team for the work of llama-tiny on 8 tokens") {
  const auto device = Device::Cpu();
  const auto inputs = Inputs(*device, {.rows = 8,
                                       .hidden = 64,
                                       .ffn = 192,
                                       .heads = 16,
                                       .kv_heads = 8,
                                       .head_size = 4,
                                       .sequence_length = 8,
                                       .vocabulary = 256,
                                       .activations = 8 * 64,
                                       .parameters = 8 * 64});
  REQUIRE_OK(inputs);
  const int64_t alone = CountThreads();
  omp_set_num_threads(kThreads);
  for (const BenchOp& op : AllOps(*inputs)) {
    CAPTURE(op.name);
    Pieces set(*inputs);
    op.run(set);
    CHECK(CountThreads() == alone);
  }
}

#if !defined(CONVENE_SANITIZER)  // clang's OpenMP library keeps its threads
TEST_CASE("each op starts a team for large work, which computes the bits of one thread") {
  const auto device = Device::Cpu();
  const auto inputs = Inputs(*device, {.rows = 2048,
                                       .hidden = 512,
                                       .ffn = 512,
                                       .heads = 8,
                                       .kv_heads = 4,
                                       .head_size = 64,
                                       .sequence_length = 256,
                                       .vocabulary = 1024,
                                       .activations = 2048 * 512,
                                       .parameters = 2048 * 512});
  REQUIRE_OK(inputs);
  const std::vector<char> numbers(inputs->arena, inputs->arena + inputs->arena_bytes);
  EndTeam();
  const int64_t alone = CountThreads();
  for (const BenchOp& op : AllOps(*inputs)) {
    CAPTURE(op.name);
    const auto run = [&](int threads) {
      omp_set_num_threads(threads);
      std::copy(numbers.begin(), numbers.end(), inputs->arena);
      Pieces set(*inputs);
      op.run(set);
      return std::vector<char>(inputs->arena, inputs->arena + (set.operands_end() - inputs->arena));
    };
    const std::vector<char> by_one = run(1);
    CHECK(CountThreads() == alone);
    const std::vector<char> by_team = run(kThreads);
    const bool adds_rows_to_a_table = op.name.find("embedding_backward") == 0;  // by one thread
    CHECK((CountThreads() > alone) == !adds_rows_to_a_table);
    CHECK((by_team == by_one));  // millions of bytes: not to be printed
    CHECK_FALSE(std::equal(by_one.begin(), by_one.end(), numbers.begin()));
    EndTeam();
  }
}
#endif

}  // namespace
}  // namespace convene::worker
