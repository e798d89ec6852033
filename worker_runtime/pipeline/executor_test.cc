#include "worker_runtime/pipeline/executor.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/thread.h"
#include "worker_runtime/comm/testing/loopback.h"
#include "worker_runtime/comm/testing/messages_only.h"
#include "worker_runtime/schedule/generators.h"
#include "worker_runtime/schedule/lower.h"

namespace convene::worker {
namespace {

constexpr int kElements = 3;

constexpr const char* kNames[] = {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe-v"};

// Every schedule of up to 4 ranks and 7 microbatches, and its plans.
template <typename Check>
void ForEverySchedule(Check check) {
  for (const char* name : kNames) {
    for (int ranks = 1; ranks <= 4; ++ranks) {
      for (int microbatches = 1; microbatches <= 7; ++microbatches) {
        INFO(name << ", " << ranks << " ranks, " << microbatches << " microbatches");
        const auto schedule = MakeSchedule(name, ranks, 0, microbatches);
        REQUIRE_OK(schedule);
        check(*schedule);
      }
    }
  }
}

std::vector<RankPlan> PlansOf(const Schedule& schedule) {
  auto plans = Lower(schedule);
  REQUIRE_OK(plans);
  return *std::move(plans);
}

using Buffers = std::vector<std::vector<float>>;

// Arithmetic in place of a model: every number tells which microbatch it belongs to and which
// chunks it has passed, so that one slot too early or too late is seen.
class CountingStage : public PipelineStage {
 public:
  CountingStage(const Schedule& schedule, const RankPlan& plan)
      : last_chunk_(static_cast<int>(schedule.placement.size()) - 1),
        saved_(plan.saved.count, std::vector<float>(kElements)),
        deferred_(plan.deferred.count, std::vector<float>(kElements)),
        activations_(plan.activations.count, std::vector<float>(kElements)),
        gradients_(plan.gradients.count, std::vector<float>(kElements)) {}

  absl::Status Run(const StagePass& pass, Stream& /*stream*/) override {
    const auto [kind, chunk, microbatch] = pass.compute;
    if (microbatch == fails_at) return absl::ResourceExhaustedError("no memory");
    for (int i = 0; i < kElements; ++i) {
      switch (kind) {
        case ComputeKind::kForward: {
          const float x = pass.input < 0 ? static_cast<float>(1000 * (microbatch + 1) + 100 * i)
                                         : activations_[pass.input][i];
          saved_[pass.saved][i] = x;
          if (pass.output >= 0) activations_[pass.output][i] = x + 1;
          break;
        }
        case ComputeKind::kBackward:
        case ComputeKind::kBackwardInput: {
          // The saved tensor takes part, as in a model, and so does the input.
          float& gradient = gradients_[pass.gradient][i];
          if (chunk == last_chunk_) gradient = 0;
          gradient += saved_[pass.saved][i];
          if (pass.input >= 0) CHECK(activations_[pass.input][i] == saved_[pass.saved][i]);
          if (kind == ComputeKind::kBackwardInput) deferred_[pass.deferred][i] = gradient;
          finished[{chunk, microbatch}].push_back(gradient);
          break;
        }
        case ComputeKind::kBackwardWeight:
          weights[{chunk, microbatch}].push_back(deferred_[pass.deferred][i] +
                                                 saved_[pass.saved][i]);
          break;
      }
    }
    if (pass.is_first) ++firsts[chunk];
    if (pass.is_first_weight) {
      CHECK(first_weights[chunk] == lasts[chunk]);
      CHECK(kind != ComputeKind::kBackwardInput);
      ++first_weights[chunk];
    }
    if (kind == ComputeKind::kBackwardWeight) CHECK_FALSE(pass.is_first);
    CHECK((pass.head >= 0) == (chunk == last_chunk_));
    if (pass.is_last) ++lasts[chunk];
    return absl::OkStatus();
  }
  Elements activation(int slot) override { return absl::MakeSpan(activations_[slot]); }
  Elements gradient(int slot) override { return absl::MakeSpan(gradients_[slot]); }

  int fails_at = -1;
  // By chunk and microbatch, of every step.
  std::map<std::pair<int, int>, std::vector<float>> finished, weights;
  std::map<int, int> firsts, first_weights, lasts;  // by chunk

 private:
  const int last_chunk_;
  Buffers saved_, deferred_, activations_, gradients_;
};

struct Result {
  std::vector<absl::Status> statuses;  // by rank
  std::vector<std::unique_ptr<CountingStage>> stages;
};

// Runs `steps` steps over one executor a rank; the rank `failing` fails in microbatch 1.
Result RunPipeline(const Schedule& schedule, int steps, int failing = -1) {
  const int count = static_cast<int>(schedule.ranks.size());
  const std::vector<RankPlan> plans = PlansOf(schedule);
  Result result;
  std::vector<int> ranks;
  for (int rank = 0; rank < count; ++rank) {
    ranks.push_back(rank);
    result.stages.push_back(std::make_unique<CountingStage>(schedule, plans[rank]));
  }
  if (failing >= 0) result.stages[failing]->fails_at = 1;
  result.statuses.resize(count);
  auto group = LoopbackWorld(count).Group(ranks, "pp");
  std::vector<Thread> threads;
  for (int rank = 0; rank < count; ++rank) {
    threads.emplace_back(absl::StrCat("rank ", rank), [&, rank] {
      Stream stream = Stream::Cpu();
      PipelineExecutor executor(*result.stages[rank], *group[rank], plans[rank]);
      absl::Status& status = result.statuses[rank];
      for (int step = 0; step < steps && status.ok(); ++step) status = executor.Run(stream);
      // The rank acts as a process that ends: its peers see the connection close.
      if (!status.ok()) group[rank].reset();
    });
  }
  for (Thread& thread : threads) thread.Join();
  return result;
}

TEST_CASE("every microbatch comes through every chunk and back, whatever the slots") {
  ForEverySchedule([](const Schedule& schedule) {
    constexpr int kSteps = 2;
    const Result result = RunPipeline(schedule, kSteps);
    for (const absl::Status& status : result.statuses) REQUIRE_OK(status);
    const int chunks = static_cast<int>(schedule.placement.size());
    for (int chunk = 0; chunk < chunks; ++chunk) {
      CountingStage& stage = *result.stages[schedule.placement[chunk]];
      CHECK(stage.firsts[chunk] == 2 * kSteps);
      CHECK(stage.first_weights[chunk] == kSteps);
      CHECK(stage.lasts[chunk] == kSteps);
      for (int m = 0; m < schedule.microbatches; ++m) {
        const std::vector<float>& finished = stage.finished[{chunk, m}];
        REQUIRE(finished.size() == kSteps * kElements);
        for (size_t i = 0; i < finished.size(); ++i) {
          const auto input = [&](int of_chunk) {
            return static_cast<float>(1000 * (m + 1) + 100 * (i % kElements) + of_chunk);
          };
          float expected = 0;
          for (int c = chunk; c < chunks; ++c) expected += input(c);
          CHECK(finished[i] == expected);
          const std::vector<float>& weights = stage.weights[{chunk, m}];
          if (!weights.empty()) CHECK(weights[i] == expected + input(chunk));
        }
      }
    }
  });
}

TEST_CASE("a stage that fails ends the run with its own error, its neighbours with a broken peer") {
  const Result result = RunPipeline(*MakeSchedule("1f1b", 3, 0, 4), /*steps=*/1, /*failing=*/1);
  CHECK_STATUS(result.statuses[1], absl::StatusCode::kResourceExhausted, "no memory");
  CHECK_STATUS(result.statuses[0], absl::StatusCode::kUnavailable, "rank 1");
  CHECK_STATUS(result.statuses[2], absl::StatusCode::kUnavailable, "rank 1");
}

TEST_CASE("forward only sends nothing back") {
  const Result result = RunPipeline(ForwardOnly({0, 1, 1, 0}, 5), /*steps=*/1);
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
  for (int rank = 0; rank < ranks; ++rank) {
    INFO("rank " << rank);
    CountingStage buffers(schedule, plans[rank]);
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
  ForEverySchedule([](const Schedule& schedule) {
    CheckSends(schedule);
    CheckSends(ForwardOnly(schedule.placement, schedule.microbatches));
  });
}

}  // namespace
}  // namespace convene::worker
