#include "worker_runtime/pipeline/executor.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "tools/base/testing/status_testing.h"
#include "worker_runtime/comm/bootstrap.h"
#include "worker_runtime/comm/testing/messages_only.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/ops/elementwise.h"
#include "worker_runtime/schedule/generators.h"
#include "worker_runtime/schedule/lower.h"
#include "worker_runtime/testing/device_array.h"
#include "worker_runtime/testing/places.h"

namespace convene::worker {
namespace {

using testing::DeviceArray;

constexpr int kElements = 3;

float FirstInput(int microbatch, int i) {
  return static_cast<float>(1000 * (microbatch + 1) + 100 * i);
}

constexpr const char* kNames[] = {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe-v"};

// Every schedule of so many ranks and up to 7 microbatches, and its plans.
template <typename Check>
void ForEverySchedule(int ranks, Check check) {
  for (const char* name : kNames) {
    for (int microbatches = 1; microbatches <= 7; ++microbatches) {
      INFO(name << ", " << ranks << " ranks, " << microbatches << " microbatches");
      const auto schedule = MakeSchedule(name, ranks, 0, microbatches);
      REQUIRE_OK(schedule);
      check(*schedule);
    }
  }
}

std::vector<RankPlan> PlansOf(const Schedule& schedule) {
  auto plans = Lower(schedule);
  REQUIRE_OK(plans);
  return *std::move(plans);
}

// So many slots in the device's memory, of zeros.
class Slots {
 public:
  Slots(int64_t count, Device& device)
      : values_(std::vector<float>((count + 1) * kElements), device) {}
  float* operator[](int64_t slot) const { return values_.data() + slot * kElements; }
  std::vector<float> Fetch() const { return values_.Fetch(); }

 private:
  const DeviceArray<float> values_;
};

// Arithmetic in place of a model: every number tells which microbatch it belongs to and which
// chunks it has passed, so that one slot too early or too late is seen. All of it is queued.
class CountingStage : public PipelineStage {
 public:
  CountingStage(const Schedule& schedule, const RankPlan& plan, Device& device, int steps = 1)
      : last_chunk_(static_cast<int>(schedule.placement.size()) - 1),
        ones_(std::vector<float>(kElements, 1.0f), device),
        first_inputs_(FirstInputs(schedule.microbatches), device),
        saved_(plan.saved.count, device),
        deferred_(plan.deferred.count, device),
        activations_(plan.activations.count, device),
        gradients_(plan.gradients.count, device),
        seen_(int64_t{3} * steps * static_cast<int64_t>(plan.instructions.size()), device) {}

  absl::Status Run(const StagePass& pass, Stream& stream) override {
    const auto [kind, chunk, microbatch] = pass.compute;
    if (microbatch == fails_at) return absl::ResourceExhaustedError("no memory");
    const std::pair<int, int> place = {chunk, microbatch};
    float* const saved = saved_[pass.saved];
    switch (kind) {
      case ComputeKind::kForward:
        Copy(kElements, pass.input < 0 ? first_input(microbatch) : activations_[pass.input], saved,
             stream);
        if (pass.output < 0) break;
        Copy(kElements, saved, activations_[pass.output], stream);
        AddInPlace(kElements, ones_.data(), activations_[pass.output], stream);
        break;
      case ComputeKind::kBackward:
      case ComputeKind::kBackwardInput: {
        // The saved tensor takes part, as in a model, and so does the input.
        float* const gradient = gradients_[pass.gradient];
        if (chunk == last_chunk_) {
          Copy(kElements, saved, gradient, stream);
        } else {
          AddInPlace(kElements, saved, gradient, stream);
        }
        if (pass.input >= 0) {
          inputs_.emplace_back(See(activations_[pass.input], stream), See(saved, stream));
        }
        if (kind == ComputeKind::kBackwardInput) {
          Copy(kElements, gradient, deferred_[pass.deferred], stream);
        }
        finished_[place].push_back(See(gradient, stream));
        break;
      }
      case ComputeKind::kBackwardWeight: {
        float* const both = See(deferred_[pass.deferred], stream);
        AddInPlace(kElements, saved, both, stream);
        weights_[place].push_back(both);
        break;
      }
    }
    Count(pass);
    return absl::OkStatus();
  }
  Elements activation(int slot) override { return {activations_[slot], kElements, kFloat}; }
  Elements gradient(int slot) override { return {gradients_[slot], kElements, kFloat}; }

  // Once all is done: takes what was seen to the host.
  void Finish() {
    const std::vector<float> seen = seen_.Fetch();
    const auto at = [&](const float* place) {
      const auto first = seen.begin() + (place - seen_[0]);
      return std::vector<float>(first, first + kElements);
    };
    for (const auto& [input, saved] : inputs_) is_wrong |= at(input) != at(saved);
    for (const auto& [from, to] : {std::pair(&finished_, &finished), {&weights_, &weights}}) {
      for (const auto& [place, all] : *from) {
        for (const float* one : all) (*to)[place].push_back(at(one));
      }
    }
  }

  int fails_at = -1;
  bool is_wrong = false;  // what a pass was told, or an input at its backward pass
  // By chunk and microbatch, of every step.
  std::map<std::pair<int, int>, std::vector<std::vector<float>>> finished, weights;
  std::map<int, int> firsts, first_weights, lasts;  // by chunk

 private:
  static constexpr DType kFloat = DType::kFloat32;

  static std::vector<float> FirstInputs(int microbatches) {
    std::vector<float> inputs;
    for (int m = 0; m < microbatches; ++m) {
      for (int i = 0; i < kElements; ++i) inputs.push_back(FirstInput(m, i));
    }
    return inputs;
  }
  float* first_input(int microbatch) const {
    return first_inputs_.data() + int64_t{microbatch} * kElements;
  }
  // Keeps what stands in a slot now.
  float* See(const float* slot, Stream& stream) {
    float* const place = seen_[seen_count_++];
    Copy(kElements, slot, place, stream);
    return place;
  }
  void Count(const StagePass& pass) {
    const auto [kind, chunk, microbatch] = pass.compute;
    if (pass.is_first) ++firsts[chunk];
    if (pass.is_first_weight) {
      is_wrong |= first_weights[chunk] != lasts[chunk] || kind == ComputeKind::kBackwardInput;
      ++first_weights[chunk];
    }
    is_wrong |= kind == ComputeKind::kBackwardWeight && pass.is_first;
    is_wrong |= (pass.head >= 0) != (chunk == last_chunk_);
    if (pass.is_last) ++lasts[chunk];
  }

  const int last_chunk_;
  const DeviceArray<float> ones_, first_inputs_;
  const Slots saved_, deferred_, activations_, gradients_, seen_;
  int64_t seen_count_ = 0;
  // Places in seen_.
  std::vector<std::pair<const float*, const float*>> inputs_;
  std::map<std::pair<int, int>, std::vector<const float*>> finished_, weights_;
};

struct Result {
  std::vector<absl::Status> statuses;  // by rank
  std::vector<std::unique_ptr<CountingStage>> stages;
};

// Runs `steps` steps over one executor a rank; the rank `failing` fails in microbatch 1.
Result RunPipeline(const Schedule& schedule, int steps, testing::Places& places, int failing = -1) {
  const std::vector<RankPlan> plans = PlansOf(schedule);
  Result result;
  result.stages.resize(places.size());
  result.statuses = places.OnEveryRank([&](int rank) {
    auto& [device, communicators, memory] = places[rank];
    result.stages[rank] = std::make_unique<CountingStage>(schedule, plans[rank], *device, steps);
    CountingStage& stage = *result.stages[rank];
    if (rank == failing) stage.fails_at = 1;
    PipelineExecutor executor(stage, *communicators.pp, plans[rank]);
    absl::Status status;
    for (int step = 0; step < steps && status.ok(); ++step) {
      status = executor.Run(device->compute());
    }
    status.Update(device->Synchronize(absl::Minutes(1)));
    // The rank acts as a process that ends: its peers see the connection close.
    if (!status.ok()) communicators = CommunicatorSet();
    stage.Finish();
    return status;
  });
  return result;
}

std::unique_ptr<testing::Places> PlacesOf(int ranks) {
  auto places = testing::Places::Make({.pp = ranks});
  REQUIRE_OK(places);
  return *std::move(places);
}

TEST_CASE("every microbatch comes through every chunk and back, whatever the slots") {
  const int ranks = GENERATE(1, 2, 3, 4);
  if (!testing::HasPlacesOrSkips(ranks)) return;
  const std::unique_ptr<testing::Places> places = PlacesOf(ranks);
  ForEverySchedule(ranks, [&](const Schedule& schedule) {
    constexpr int kSteps = 2;
    const Result result = RunPipeline(schedule, kSteps, *places);
    for (const absl::Status& status : result.statuses) REQUIRE_OK(status);
    for (const auto& stage : result.stages) CHECK_FALSE(stage->is_wrong);
    const int chunks = static_cast<int>(schedule.placement.size());
    for (int chunk = 0; chunk < chunks; ++chunk) {
      CountingStage& stage = *result.stages[schedule.placement[chunk]];
      CHECK(stage.firsts[chunk] == 2 * kSteps);
      CHECK(stage.first_weights[chunk] == kSteps);
      CHECK(stage.lasts[chunk] == kSteps);
      for (int m = 0; m < schedule.microbatches; ++m) {
        const auto input = [&](int of_chunk, int i) {
          return FirstInput(m, i) + static_cast<float>(of_chunk);
        };
        std::vector<float> expected(kElements), of_weights(kElements);
        for (int i = 0; i < kElements; ++i) {
          for (int c = chunk; c < chunks; ++c) expected[i] += input(c, i);
          of_weights[i] = expected[i] + input(chunk, i);
        }
        CHECK(stage.finished[{chunk, m}] == std::vector<std::vector<float>>(kSteps, expected));
        const auto& weights = stage.weights[{chunk, m}];
        if (!weights.empty()) {
          CHECK(weights == std::vector<std::vector<float>>(kSteps, of_weights));
        }
      }
    }
  });
}

TEST_CASE("a stage that fails ends the run with its own error, its neighbours with a broken peer") {
  if (testing::OnGpus()) return;  // engine_failure_test has what NCCL says
  const Result result =
      RunPipeline(*MakeSchedule("1f1b", 3, 0, 4), /*steps=*/1, *PlacesOf(3), /*failing=*/1);
  CHECK_STATUS(result.statuses[1], absl::StatusCode::kResourceExhausted, "no memory");
  CHECK_STATUS(result.statuses[0], absl::StatusCode::kUnavailable, "rank 1");
  CHECK_STATUS(result.statuses[2], absl::StatusCode::kUnavailable, "rank 1");
}

TEST_CASE("forward only sends nothing back") {
  if (!testing::HasPlacesOrSkips(2)) return;
  const std::unique_ptr<testing::Places> places = PlacesOf(2);
  const Result result = RunPipeline(ForwardOnly({0, 1, 1, 0}, 5), /*steps=*/1, *places);
  for (const absl::Status& status : result.statuses) REQUIRE_OK(status);
  for (const auto& stage : result.stages) CHECK(stage->finished.empty());
}

// A collective whose messages nobody receives; it remembers which memory is being sent.
class UnhurriedCollective final : public testing::MessagesOnly {
 public:
  using MessagesOnly::MessagesOnly;

  bool IsSending(const void* data) const {
    return std::any_of(open_.begin(), open_.end(), [=](const auto& s) { return s.second == data; });
  }

  absl::StatusOr<PendingMessage> Send(ConstElements data, int, Stream&) override {
    open_[++last_id_] = data.data;
    return PendingMessage{last_id_};
  }
  absl::StatusOr<PendingMessage> StartRecv(Elements data, int, Stream&) override {
    if (IsSending(data.data)) return absl::InternalError("received into what is being sent");
    return PendingMessage{++last_id_};
  }
  absl::Status Wait(PendingMessage pending, Stream&) override {
    open_.erase(pending.id);
    return waited_.insert(pending.id).second ? absl::OkStatus()
                                             : absl::InternalError("waited twice");
  }

 private:
  uint64_t last_id_ = 0;
  std::map<uint64_t, const void*> open_;  // sends
  std::set<uint64_t> waited_;
};

// Fails when it is asked to write memory that is still being sent.
class CarefulStage final : public PipelineStage {
 public:
  CarefulStage(CountingStage& buffers, const UnhurriedCollective& pp)
      : buffers_(buffers), pp_(pp) {}
  absl::Status Run(const StagePass& pass, Stream& /*stream*/) override {
    const bool is_forward = pass.compute.kind == ComputeKind::kForward;
    if (pass.compute.kind == ComputeKind::kBackwardWeight || (is_forward && pass.output < 0)) {
      return absl::OkStatus();
    }
    const Elements target = is_forward ? activation(pass.output) : gradient(pass.gradient);
    return pp_.IsSending(target.data) ? absl::InternalError("wrote into what is being sent")
                                      : absl::OkStatus();
  }
  Elements activation(int slot) override { return buffers_.activation(slot); }
  Elements gradient(int slot) override { return buffers_.gradient(slot); }

 private:
  CountingStage& buffers_;
  const UnhurriedCollective& pp_;
};

void CheckSends(const Schedule& schedule) {
  const std::vector<RankPlan> plans = PlansOf(schedule);
  const int ranks = static_cast<int>(plans.size());
  const std::unique_ptr<Device> device = Device::Cpu();
  for (int rank = 0; rank < ranks; ++rank) {
    INFO("rank " << rank);
    CountingStage buffers(schedule, plans[rank], *device);
    UnhurriedCollective pp(rank, ranks);
    CarefulStage careful(buffers, pp);
    PipelineExecutor executor(careful, pp, plans[rank]);
    Stream stream = Stream::Cpu();
    CHECK_OK(executor.Run(stream));
    for (int slot = 0; slot < plans[rank].activations.count; ++slot) {
      CHECK(!pp.IsSending(buffers.activation(slot).data));
    }
    for (int slot = 0; slot < plans[rank].gradients.count; ++slot) {
      CHECK(!pp.IsSending(buffers.gradient(slot).data));
    }
  }
}

TEST_CASE("no slot is written before its last send has left it") {
  ForEverySchedule(GENERATE(1, 2, 3, 4), [](const Schedule& schedule) {
    CheckSends(schedule);
    CheckSends(ForwardOnly(schedule.placement, schedule.microbatches));
  });
}

}  // namespace
}  // namespace convene::worker
