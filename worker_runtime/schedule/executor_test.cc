#include "worker_runtime/schedule/executor.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/thread.h"
#include "worker_runtime/comm/loopback.h"

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
  absl::Span<float> input(int microbatch) override {
    return absl::MakeSpan(Of(inputs_, microbatch));
  }
  absl::Span<float> output(int microbatch) override {
    return absl::MakeSpan(Of(outputs_, microbatch));
  }
  absl::Span<float> gradient(int microbatch) override {
    return absl::MakeSpan(Of(gradients_, microbatch));
  }

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
      // As a process that ends: its peers see the connection close.
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
  CHECK(stages[1].output(kMicrobatches - 1)[2] == 1000 * kMicrobatches + 200 + 2);
  CHECK(stages[0].finished.empty());
}

}  // namespace
}  // namespace convene::worker
