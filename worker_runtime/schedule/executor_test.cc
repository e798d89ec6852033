#include "worker_runtime/schedule/executor.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/thread.h"
#include "worker_runtime/comm/testing/loopback.h"

namespace convene::worker {
namespace {

constexpr int kElements = 3;

// Arithmetic in place of a model: every number tells which microbatch it belongs to and which
// stages it has passed, so that one buffer too early or too late is seen.
class CountingStage : public PipelineStage {
 public:
  CountingStage(int stages, int stage, int slots)
      : is_first_(stage == 0),
        is_last_(stage == stages - 1),
        inputs_(slots, std::vector<float>(kElements)),
        outputs_(slots, std::vector<float>(kElements)),
        gradients_(2, std::vector<float>(kElements)) {}

  absl::Status Forward(int microbatch, Stream& /*stream*/) override {
    if (microbatch == fails_at) return absl::ResourceExhaustedError("no memory");
    for (int i = 0; i < kElements; ++i) {
      const float x = is_first_ ? static_cast<float>(1000 * (microbatch + 1) + 100 * i)
                                : Of(inputs_, microbatch)[i];
      Of(outputs_, microbatch)[i] = x + 1;
    }
    return absl::OkStatus();
  }
  absl::Status Backward(int microbatch, Stream& /*stream*/) override {
    std::vector<float>& gradient = Of(gradients_, microbatch);
    // The saved activation takes part, as in a model.
    for (int i = 0; i < kElements; ++i) {
      gradient[i] = Of(outputs_, microbatch)[i] + (is_last_ ? 0 : gradient[i]);
    }
    finished.push_back(gradient);
    return absl::OkStatus();
  }
  Elements input(int microbatch) override { return absl::MakeSpan(Of(inputs_, microbatch)); }
  Elements output(int microbatch) override { return absl::MakeSpan(Of(outputs_, microbatch)); }
  Elements gradient(int microbatch) override { return absl::MakeSpan(Of(gradients_, microbatch)); }

  int fails_at = -1;
  std::vector<std::vector<float>> finished;  // gradients, in microbatch order

 private:
  using Buffers = std::vector<std::vector<float>>;
  static std::vector<float>& Of(Buffers& buffers, int microbatch) {
    return buffers[microbatch % buffers.size()];
  }

  const bool is_first_;
  const bool is_last_;
  Buffers inputs_, outputs_, gradients_;
};

struct Result {
  std::vector<absl::Status> statuses;  // by stage
  std::vector<CountingStage> stages;
};

// Runs `steps` steps over one executor a stage; the stage `failing` fails in microbatch 1.
Result RunPipeline(int stages, int microbatches, int steps, int failing = -1) {
  Result result;
  std::vector<int> ranks;
  for (int stage = 0; stage < stages; ++stage) {
    ranks.push_back(stage);
    result.stages.emplace_back(stages, stage, ActivationSlots(stages, stage, microbatches));
  }
  if (failing >= 0) result.stages[failing].fails_at = 1;
  result.statuses.resize(stages);
  auto group = LoopbackWorld(stages).Group(ranks, "pp");
  std::vector<Thread> threads;
  for (int stage = 0; stage < stages; ++stage) {
    threads.emplace_back(absl::StrCat("stage ", stage), [&, stage] {
      Stream stream = Stream::Cpu();
      PipelineExecutor executor(result.stages[stage], *group[stage],
                                ActivationSlots(stages, stage, microbatches));
      absl::Status& status = result.statuses[stage];
      for (int step = 0; step < steps && status.ok(); ++step) {
        status = executor.Run(OneForwardOneBackward(stages, stage, microbatches), stream);
      }
      // The rank acts as a process that ends: its peers see the connection close.
      if (!status.ok()) group[stage].reset();
    });
  }
  for (Thread& thread : threads) thread.Join();
  return result;
}

TEST_CASE("every microbatch comes through every stage and back, whatever the buffers") {
  for (int stages = 1; stages <= 4; ++stages) {
    for (int microbatches = 1; microbatches <= 7; ++microbatches) {
      INFO(stages << " stages, " << microbatches << " microbatches");
      const Result result = RunPipeline(stages, microbatches, /*steps=*/2);
      for (const absl::Status& status : result.statuses) REQUIRE_OK(status);
      for (int stage = 0; stage < stages; ++stage) {
        const auto& finished = result.stages[stage].finished;
        REQUIRE(finished.size() == static_cast<size_t>(2 * microbatches));
        for (int m = 0; m < 2 * microbatches; ++m) {
          for (int i = 0; i < kElements; ++i) {
            float expected = 0;
            for (int s = stage; s < stages; ++s) {
              expected += static_cast<float>(1000 * (m % microbatches + 1) + 100 * i + s + 1);
            }
            CHECK(finished[m][i] == expected);
          }
        }
      }
    }
  }
}

TEST_CASE("a stage that fails ends the run with its own error, its neighbours with a broken peer") {
  const Result result = RunPipeline(/*stages=*/3, /*microbatches=*/4, /*steps=*/1, /*failing=*/1);
  CHECK_STATUS(result.statuses[1], absl::StatusCode::kResourceExhausted, "no memory");
  CHECK_STATUS(result.statuses[0], absl::StatusCode::kUnavailable, "rank 1");
  CHECK_STATUS(result.statuses[2], absl::StatusCode::kUnavailable, "rank 1");
}

TEST_CASE("forward only sends nothing back") {
  constexpr int kMicrobatches = 5;
  auto group = LoopbackWorld(2).Group({0, 1}, "pp");
  std::vector<CountingStage> stages = {{2, 0, 1}, {2, 1, 1}};
  std::vector<absl::Status> statuses(2);
  std::vector<Thread> threads;
  for (int stage = 0; stage < 2; ++stage) {
    threads.emplace_back(absl::StrCat("stage ", stage), [&, stage] {
      Stream stream = Stream::Cpu();
      PipelineExecutor executor(stages[stage], *group[stage], /*slots=*/1);
      statuses[stage] = executor.Run(ForwardOnly(2, stage, kMicrobatches), stream);
    });
  }
  for (Thread& thread : threads) thread.Join();
  for (const absl::Status& status : statuses) REQUIRE_OK(status);
  CHECK(stages[1].output(kMicrobatches - 1).As<float>()[2] == 1000 * kMicrobatches + 200 + 2);
  CHECK(stages[0].finished.empty());
}

// A collective whose messages nobody receives; it remembers which memory is being sent.
class UnhurriedCollective final : public Collective {
 public:
  UnhurriedCollective(int rank, int size) : rank_(rank), size_(size) {}

  bool IsSending(const void* data) const {
    return std::any_of(open_.begin(), open_.end(), [=](const auto& s) { return s.second == data; });
  }

  const std::string& name() const override { return name_; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  absl::StatusOr<PendingSend> Send(ConstElements data, int, Stream&) override {
    open_[++last_id_] = data.data;
    return PendingSend{last_id_};
  }
  absl::Status Wait(PendingSend pending, Stream&) override {
    return open_.erase(pending.id) == 1 ? absl::OkStatus() : absl::InternalError("waited twice");
  }
  absl::Status Recv(Elements data, int, Stream&) override {
    return IsSending(data.data) ? absl::InternalError("received into what is being sent")
                                : absl::OkStatus();
  }
  absl::Status AllReduce(Elements, ReduceOp, Stream&) override { return Unused(); }
  absl::Status ReduceScatter(Elements, ReduceOp, Stream&) override { return Unused(); }
  absl::Status AllGather(Elements, Stream&) override { return Unused(); }
  absl::Status AllToAll(ConstElements, Elements, Stream&) override { return Unused(); }
  absl::Status Broadcast(Elements, int, Stream&) override { return Unused(); }
  absl::Status Barrier(Stream&) override { return Unused(); }
  absl::Status Check() override { return absl::OkStatus(); }
  void Abort(absl::string_view) override {}

 private:
  static absl::Status Unused() { return absl::UnimplementedError("not a pipeline's call"); }

  const std::string name_ = "pp";
  const int rank_;
  const int size_;
  uint64_t last_id_ = 0;
  std::map<uint64_t, const void*> open_;
};

// Fails when it is asked to write memory that is still being sent.
class CarefulStage final : public PipelineStage {
 public:
  CarefulStage(CountingStage& buffers, const UnhurriedCollective& pp)
      : buffers_(buffers), pp_(pp) {}
  absl::Status Forward(int microbatch, Stream& /*stream*/) override {
    return Check(output(microbatch));
  }
  absl::Status Backward(int microbatch, Stream& /*stream*/) override {
    return Check(gradient(microbatch));
  }
  Elements input(int microbatch) override { return buffers_.input(microbatch); }
  Elements output(int microbatch) override { return buffers_.output(microbatch); }
  Elements gradient(int microbatch) override { return buffers_.gradient(microbatch); }

 private:
  absl::Status Check(Elements target) const {
    return pp_.IsSending(target.data) ? absl::InternalError("wrote into what is being sent")
                                      : absl::OkStatus();
  }

  CountingStage& buffers_;
  const UnhurriedCollective& pp_;
};

TEST_CASE("no buffer is written before its last send has left it") {
  constexpr int kStages = 4;
  for (int stage = 0; stage < kStages; ++stage) {
    for (int microbatches = 1; microbatches <= 9; ++microbatches) {
      for (const bool train : {true, false}) {
        INFO("stage " << stage << ", " << microbatches << " microbatches");
        const int slots = ActivationSlots(kStages, stage, microbatches);
        CountingStage buffers(kStages, stage, slots);
        UnhurriedCollective pp(stage, kStages);
        CarefulStage careful(buffers, pp);
        PipelineExecutor executor(careful, pp, slots);
        Stream stream = Stream::Cpu();
        CHECK_OK(executor.Run(train ? OneForwardOneBackward(kStages, stage, microbatches)
                                    : ForwardOnly(kStages, stage, microbatches),
                              stream));
        for (int m = 0; m < microbatches; ++m) {
          CHECK(!pp.IsSending(buffers.output(m).data));
          CHECK(!pp.IsSending(buffers.gradient(m).data));
        }
      }
    }
  }
}

}  // namespace
}  // namespace convene::worker
