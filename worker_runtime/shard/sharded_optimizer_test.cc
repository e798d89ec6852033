#include "worker_runtime/shard/sharded_optimizer.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "tools/base/testing/status_testing.h"
#include "worker_runtime/comm/flight_recorder.h"
#include "worker_runtime/comm/loopback.h"
#include "worker_runtime/mesh/mesh.h"
#include "worker_runtime/model/config.h"

namespace convene::worker {
namespace {

ModelConfig Tiny() {
  auto config = NamedModel("llama-tiny");
  REQUIRE_OK(config);
  return *config;
}

// One rank of a layout with dp 1: its shard is all it holds.
struct OneRank {
  explicit OneRank(const Layout& layout, const Coordinate& coordinate)
      : table(BuildParameterTable(Tiny(), layout, coordinate)),
        parameters(table.flat_count, 1.0f),
        gradients(table.flat_count, 0.0f) {
    REQUIRE_OK(arena.Build());
    optimizer.Bind(absl::MakeSpan(parameters), absl::MakeSpan(gradients));
  }

  const ParameterTable table;
  std::unique_ptr<Collective> dp = SoloCommunicator(0, "dp", FlightRecorder::OfProcess());
  Arena arena{"test"};
  std::unique_ptr<Device> device = Device::Cpu();
  ShardedOptimizer optimizer{table, ShardedOptimizer::Options{}, *dp, *dp, *device, arena};
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

}  // namespace
}  // namespace convene::worker
