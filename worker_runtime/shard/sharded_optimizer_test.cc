#include "worker_runtime/shard/sharded_optimizer.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "tools/base/status_macros.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/thread.h"
#include "worker_runtime/comm/bootstrap.h"
#include "worker_runtime/comm/testing/loopback.h"
#include "worker_runtime/mesh/mesh.h"
#include "worker_runtime/model/config.h"
#include "worker_runtime/testing/forwarding_device.h"

namespace convene::worker {
namespace {

ModelConfig Tiny() {
  auto config = NamedModel("llama-tiny");
  REQUIRE_OK(config);
  return *config;
}

// One rank of a layout with dp 1: its shard is all it holds.
struct OneRank {
  OneRank(const Layout& layout, const Coordinate& coordinate,
          const ShardedOptimizer::Options& optimizer_options = {})
      : options(optimizer_options),
        table(BuildParameterTable(Tiny(), layout, coordinate)),
        parameters(table.flat_count, 1.0f),
        gradients(table.flat_count, 0.0f) {
    REQUIRE_OK(arena.Build());
    REQUIRE_OK(staging.Build());
    optimizer.Bind(absl::MakeSpan(parameters), absl::MakeSpan(gradients));
  }

  const ShardedOptimizer::Options options;
  const ParameterTable table;
  CommunicatorSet communicators = SoloCommunicators();
  Arena arena{"test"}, staging{"test"};
  std::unique_ptr<Device> device = Device::Cpu();
  ShardedOptimizer optimizer{table, options, *communicators.dp, *communicators.dp, *device,
                             arena, staging};
  std::vector<float> parameters;
  std::vector<float> gradients;
};

TEST_CASE("weight decay shrinks matrices and leaves norms alone") {
  OneRank rank({}, {});
  const AdamWFactors factors = MakeAdamWFactors({.learning_rate = 0.5, .weight_decay = 0.5});
  const StepControl control = {1.0f, 0};
  REQUIRE_OK(rank.optimizer.Update(&factors, &control));
  for (const ParameterSlice& slice : rank.table.slices) {
    INFO(slice.name);
    const bool is_norm = slice.name.find("norm") != std::string::npos;
    CHECK(slice.decayed == !is_norm);
    const auto begin = rank.parameters.begin() + slice.flat_offset;
    const float expected = is_norm ? 1.0f : 0.75f;
    CHECK(std::all_of(begin, begin + slice.count(), [=](float w) { return w == expected; }));
  }
}

TEST_CASE("the ranks' sums of squares count every parameter once") {
  for (const Layout layout : {Layout{1, 1, 1}, Layout{1, 1, 4}, Layout{4, 1, 2}}) {
    INFO(layout.ToString());
    double sum = 0;
    for (int r = 0; r < layout.world_size(); ++r) {
      OneRank rank(layout, CoordinateOf(layout, r));
      std::fill(rank.gradients.begin(), rank.gradients.end(), 2.0f);
      double squares = 0;
      rank.optimizer.SumOwnedSquares(&squares);
      sum += squares;
    }
    CHECK(sum == 4.0 * static_cast<double>(Tiny().ParameterCount()));
  }
}

// Gradients whose sum over two ranks is exact in bf16 too.
float GradientAt(int64_t place, int rank) { return static_cast<float>(place % 7 * (rank + 1)); }

// One of two data-parallel ranks, with a bucket for each group of parameters.
struct OneOfTwo {
  OneOfTwo(const ParameterTable& table, const ShardedOptimizer::Options& options,
           CommunicatorSet& set)
      : optimizer(table, options, *set.dp, *set.dp_gather, *device, arena, staging),
        gradients(table.flat_count) {
    REQUIRE_OK(arena.Build());
    REQUIRE_OK(staging.Build());
    for (int64_t i = 0; i < table.flat_count; ++i) gradients[i] = GradientAt(i, set.dp->rank());
  }

  // Returns its errors: Catch2's assertions belong to the test's own thread.
  template <typename T>
  absl::Status Step(std::vector<T>& parameters, int64_t first_from) {
    optimizer.Bind(absl::MakeSpan(parameters), absl::MakeSpan(gradients));
    optimizer.SetWeights(0, std::vector<float>(parameters.size(), 1.0f));
    CONVENE_RETURN_IF_ERROR(optimizer.ReduceGradientsFrom(first_from));
    after_first = gradients;
    CONVENE_RETURN_IF_ERROR(optimizer.FinishReducing());
    const AdamWFactors factors = MakeAdamWFactors({.learning_rate = 0.5});
    const StepControl control = {1.0f, 0};
    return optimizer.Update(&factors, &control);
  }

  Arena arena{"test"}, staging{"test"};
  std::unique_ptr<Device> device = Device::Cpu();
  ShardedOptimizer optimizer;
  std::vector<float> gradients;
  std::vector<float> after_first;  // when the first part of the reductions had been queued
};

template <typename T>
void CheckStepOfTwo(DType reduce_dtype) {
  const Layout layout{.dp = 2};
  const ParameterTable table = BuildParameterTable(Tiny(), layout, {}, /*bucket_count_min=*/1);
  std::vector<CommunicatorSet> sets = LoopbackCommunicators(layout);
  // In the middle of a bucket, which has to wait for its other gradients.
  const ParameterBucket& split = table.buckets[3];
  const int64_t first_from = split.begin + kParameterAlignment;
  std::vector<std::unique_ptr<OneOfTwo>> ranks;
  std::vector<std::vector<T>> parameters(2, std::vector<T>(table.flat_count));
  for (CommunicatorSet& set : sets) {
    ranks.push_back(std::make_unique<OneOfTwo>(
        table, ShardedOptimizer::Options{.dtype = kDTypeOf<T>, .reduce_dtype = reduce_dtype}, set));
  }
  std::vector<absl::Status> statuses(2);
  std::vector<Thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back(absl::StrCat("rank ", rank), [&, rank] {
      statuses[rank] = ranks[rank]->Step(parameters[rank], first_from);
    });
  }
  for (Thread& thread : threads) thread.Join();
  for (int rank = 0; rank < 2; ++rank) {
    REQUIRE_OK(statuses[rank]);
    int64_t wrong_first = 0;
    int64_t wrong_sums = 0;
    for (const ShardPart& part : MakeFlatShard(table, 2, rank).parts) {
      for (int64_t i = part.flat_begin; i < part.flat_begin + part.count; ++i) {
        const float sum = GradientAt(i, 0) + GradientAt(i, 1);
        wrong_sums += ranks[rank]->gradients[i] != sum;
        wrong_first += ranks[rank]->after_first[i] !=
                       (part.bucket.begin > split.begin ? sum : GradientAt(i, rank));
      }
    }
    CHECK(wrong_sums == 0);
    CHECK(wrong_first == 0);
  }
  // Adam's first step moves by the learning rate what has a gradient, whoever updated it.
  int64_t wrong_parameters = 0;
  for (int64_t i = 0; i < table.flat_count; ++i) {
    const float expected = i % 7 == 0 ? 1.0f : 0.5f;
    for (const auto& held : parameters) {
      wrong_parameters += std::abs(static_cast<float>(held[i]) - expected) > 1e-2f;
    }
  }
  CHECK(wrong_parameters == 0);
}

TEST_CASE("buckets are reduced when all of their gradients are final, and gathered when updated") {
  CheckStepOfTwo<float>(DType::kFloat32);
  CheckStepOfTwo<BFloat16>(DType::kFloat32);
  CheckStepOfTwo<BFloat16>(DType::kBFloat16);
}

TEST_CASE("gradients on the wire take the memory of one bucket") {
  const Layout layout{.dp = 2};
  const CommunicatorSet set = PlannedCommunicators(layout, 0);
  const std::unique_ptr<Device> device = Device::Cpu();
  const auto bytes = [&](int64_t bucket_count_min, DType reduce_dtype) {
    const ParameterTable table = BuildParameterTable(Tiny(), layout, {}, bucket_count_min);
    Arena arena{"test"};
    const ShardedOptimizer optimizer(table,
                                     {.dtype = DType::kBFloat16, .reduce_dtype = reduce_dtype},
                                     *set.dp, *set.dp_gather, *device, arena, arena);
    return arena.total_bytes();
  };
  const auto wire = [&](int64_t bucket_count_min) {
    return bytes(bucket_count_min, DType::kBFloat16) - bytes(bucket_count_min, DType::kFloat32);
  };
  CHECK(wire(1) * 8 < wire(int64_t{1} << 40));
}

TEST_CASE(
    "checkpoints pass through a copy that was planned, and change nothing before they are read") {
  OneRank rank({}, {}, {.copies_for_checkpoints = true});
  CHECK(rank.staging.total_bytes() == 3 * sizeof(float) * rank.table.flat_count);
  const auto is_copy = [&](const float* data) {
    return data < rank.parameters.data() || data >= rank.parameters.data() + rank.table.flat_count;
  };
  const auto written = rank.optimizer.PiecesToWrite();
  REQUIRE_OK(written);
  REQUIRE(written->size() == 3 * rank.table.slices.size());
  for (const PieceToWrite& piece : *written) {
    CHECK(is_copy(piece.data));
    // Weights are 1, moments 0.
    CHECK(piece.data[0] == (piece.piece.name.find("moment") == std::string::npos ? 1.0f : 0.0f));
  }
  const auto read = rank.optimizer.PiecesToRead();
  REQUIRE_OK(read);
  for (const PieceToRead& piece : *read) std::fill_n(piece.data, piece.piece.flat_count, 3.0f);
  const ParameterSlice& last = rank.table.slices.back();
  CHECK(rank.parameters[last.flat_offset] == 1.0f);
  REQUIRE_OK(rank.optimizer.FinishRead());
  CHECK(rank.parameters[last.flat_offset] == 3.0f);
  const auto again = rank.optimizer.PiecesToWrite();
  REQUIRE_OK(again);
  for (const PieceToWrite& piece : *again) CHECK(piece.data[piece.piece.flat_count - 1] == 3.0f);
}

TEST_CASE("a GPU's state cannot be saved without the copy") {
  class PlayedGpu final : public testing::ForwardingDevice {
   public:
    using ForwardingDevice::ForwardingDevice;
    DeviceKind kind() const override { return kind_; }
    DeviceKind kind_ = DeviceKind::kCpu;
  };
  const std::unique_ptr<Device> cpu = Device::Cpu();
  PlayedGpu device(*cpu);
  const CommunicatorSet set = PlannedCommunicators({}, 0);
  const ParameterTable table = BuildParameterTable(Tiny(), {}, {});
  Arena arena{"test"};
  ShardedOptimizer optimizer(table, {}, *set.dp, *set.dp_gather, device, arena, arena);
  device.kind_ = DeviceKind::kCuda;
  CHECK_STATUS(optimizer.PiecesToWrite(), absl::StatusCode::kFailedPrecondition, "was planned");
  CHECK_STATUS(optimizer.PiecesToRead(), absl::StatusCode::kFailedPrecondition, "was planned");
}

}  // namespace
}  // namespace convene::worker
