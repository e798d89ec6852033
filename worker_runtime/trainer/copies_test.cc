// Ranks that hold copies of one parameter keep the same bits in them, whatever order the group of
// each adds up in. On CPUs their data-parallel groups play NCCL's rings.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/base/check.h"
#include "tools/base/status_macros.h"
#include "tools/base/testing/status_testing.h"
#include "worker_runtime/comm/bootstrap.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/device/host_queue.h"
#include "worker_runtime/testing/forwarding_collective.h"
#include "worker_runtime/testing/forwarding_device.h"
#include "worker_runtime/testing/places.h"
#include "worker_runtime/trainer/engine.h"
#include "worker_runtime/trainer/testing/copy_parameters.h"
#include "worker_runtime/trainer/testing/train_step.h"

namespace convene::worker {
namespace {

constexpr int kSequenceLength = 8;
constexpr int kSteps = 20;
constexpr int kVocabulary = 16;

// Adds up in rank order, but begins with a rank of its own choice.
class Ring final : public testing::ForwardingCollective {
 public:
  Ring(std::unique_ptr<Collective> base, int first)
      : ForwardingCollective(std::move(base)), first_(first) {}

  absl::Status Call(const CollectiveCall& call, Stream& stream) override {
    const size_t count = call.output.count;
    if (call.kind == CollectiveKind::kAllReduce) return Sum(call, 0, count, stream);
    if (call.kind != CollectiveKind::kReduceScatter) {
      return ForwardingCollective::Call(call, stream);
    }
    return Sum(call, count / size() * rank(), count / size(), stream);
  }

 private:
  // Of the elements from `begin` on.
  absl::Status Sum(const CollectiveCall& call, size_t begin, size_t count, Stream& stream) {
    CONVENE_CHECK(call.op == ReduceOp::kSum);
    AwaitAll(stream);
    Stream here = Stream::Cpu();
    const absl::Span<float> values = call.output.As<float>();
    std::vector<float> all(values.size() * size());
    std::copy(values.begin(), values.end(), all.begin() + values.size() * rank());
    CONVENE_RETURN_IF_ERROR(AllGather(absl::MakeSpan(all), here));
    for (size_t i = begin; i < begin + count; ++i) {
      values[i] = 0;
      for (int step = 0; step < size(); ++step) {
        values[i] += all[values.size() * ((first_ + step) % size()) + i];
      }
    }
    return absl::OkStatus();
  }

  const int first_;
};

// A CPU that the engine takes for a GPU.
class PlayedGpu final : public testing::ForwardingDevice {
 public:
  explicit PlayedGpu(Device& device) : ForwardingDevice(device), kind_(device.kind()) {}
  DeviceKind kind() const override { return kind_; }
  void set_kind(DeviceKind kind) { kind_ = kind; }

 private:
  DeviceKind kind_;
};

using Weights = std::map<std::string, std::vector<float>>;

// The weights of one rank after some steps, by name.
absl::Status Train(const Layout& layout, bool sequence_parallel, int zero_stage, int rank,
                   testing::Place& place, Weights& weights) {
  const Coordinate coordinate = CoordinateOf(layout, rank);
  CommunicatorSet& set = place.communicators;
  PlayedGpu device(*place.device);
  if (!testing::OnGpus()) {
    for (auto group : {&CommunicatorSet::dp, &CommunicatorSet::dp_replicate}) {
      set.*group = std::make_unique<Ring>(std::move(set.*group), coordinate.tp + coordinate.pp);
    }
  }
  CONVENE_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine,
                           Engine::Create({.model = {.layers = 2,
                                                     .hidden_size = 32,
                                                     .ffn_size = 32,
                                                     .heads = 4,
                                                     .kv_heads = 2,
                                                     .head_size = 8,
                                                     .vocabulary_size = kVocabulary,
                                                     .tied_embeddings = true,
                                                     .initializer_range = 0.3},
                                           .layout = layout,
                                           .rank = rank,
                                           .deterministic = true,
                                           .sequence_parallel = sequence_parallel,
                                           .sequence_length = kSequenceLength,
                                           .bucket_count_min = 1,
                                           .zero_stage = zero_stage,
                                           .collective_memory = place.collective_memory.get()},
                                          set, device));
  device.set_kind(DeviceKind::kCuda);
  for (int step = 1; step <= kSteps; ++step) {
    std::vector<int32_t> tokens;
    for (int i = 0; i <= kSequenceLength; ++i) {
      tokens.push_back((i * i + 5 * coordinate.dp + 3 * step) % kVocabulary);
    }
    const TokenBatch batch{tokens.data(), tokens.data() + 1, int64_t{kSequenceLength} * layout.dp};
    CONVENE_RETURN_IF_ERROR(
        TrainStep(*engine, batch, {.learning_rate = 1e-2, .step = step}).status());
  }
  CONVENE_ASSIGN_OR_RETURN(const std::vector<char> parameters, CopyParameters(*engine, device));
  for (const PlacedParameter& slice : engine->placement().parameters) {
    // Of a matrix that is split over tp not all ranks have the same part.
    const std::string name =
        absl::StrCat(slice.name, " from ", slice.offset[0], ", ", slice.offset[1], " on");
    const auto* values = reinterpret_cast<const float*>(parameters.data()) + slice.flat_offset;
    weights[name].assign(values, values + slice.count());
  }
  return absl::OkStatus();
}

TEST_CASE("copies of a parameter keep the same bits over groups that add up in different orders",
          "[once]") {
  const Layout layout = GENERATE(
      Layout{.pp = 1, .dp = 3, .tp = 2}, Layout{.pp = 2, .dp = 3, .tp = 1},
      Layout{.pp = 2, .dp = 4, .tp = 2}, Layout{.dp = 6, .tp = 2, .dp_replicate = 2},
      Layout{.pp = 2, .dp = 3, .dp_replicate = 3}, Layout{.dp = 3, .tp = 2, .dp_replicate = 3},
      Layout{.pp = 2, .dp = 4, .tp = 2, .dp_replicate = 2}, Layout{.dp = 3, .tp = 4},
      Layout{.dp = 2, .tp = 2, .cp = 2}, Layout{.pp = 2, .dp = 2, .cp = 2});
  const bool sequence_parallel = layout.tp > 1 && GENERATE(false, true);
  const int zero_stage = GENERATE(1, 2, 3);
  INFO(layout.ToString() << (sequence_parallel ? ", rows split" : "") << ", ZeRO-" << zero_stage);
  if (testing::OnGpus() && (layout.world_size() > 6 || zero_stage > 1)) return;
  if (!testing::HasPlacesOrSkips(layout.world_size())) return;
  const auto places = testing::Places::Make(layout);
  REQUIRE_OK(places);
  std::vector<Weights> weights(layout.world_size());
  for (const absl::Status& end : (*places)->OnEveryRank([&](int rank) {
         return Train(layout, sequence_parallel, zero_stage, rank, (**places)[rank], weights[rank]);
       })) {
    REQUIRE_OK(end);
  }
  Weights first_copies;
  int copies = 0;
  for (const Weights& of_rank : weights) {
    for (const auto& [name, values] : of_rank) {
      INFO(name);
      const auto [first, is_new] = first_copies.emplace(name, values);
      if (is_new) continue;
      ++copies;
      CHECK(values == first->second);
      CHECK(std::none_of(values.begin(), values.end(), [](float x) { return std::isnan(x); }));
    }
  }
  CHECK(copies > 0);
}

}  // namespace
}  // namespace convene::worker
