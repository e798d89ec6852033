#include "worker_runtime/pipeline/graphed_stage.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/base/testing/logged_text.h"
#include "tools/base/testing/status_testing.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/testing/forwarding_device.h"

namespace convene::worker {
namespace {

using Calls = std::vector<std::string>;
using convene::testing::LoggedText;

class NamedGraph final : public Graph {
 public:
  explicit NamedGraph(Calls work) : work(std::move(work)) {}
  const Calls work;
};

// Captures words: what the stage says while it is captured is replayed at each launch.
class WordDevice final : public testing::ForwardingDevice {
 public:
  explicit WordDevice(Device& device) : ForwardingDevice(device) {}

  void Say(const std::string& word) { (recording_ != nullptr ? *recording_ : ran).push_back(word); }

  absl::StatusOr<std::unique_ptr<Graph>> Capture(Stream& /*stream*/,
                                                 absl::FunctionRef<absl::Status()> work) override {
    ++captures;
    Calls words;
    recording_ = &words;
    const absl::Status status = work();
    recording_ = nullptr;
    if (!status.ok()) return status;
    if (captures == fails_at) return absl::InternalError("attention cannot be captured");
    return std::make_unique<NamedGraph>(std::move(words));
  }
  void Launch(Graph& graph, Stream& /*stream*/) override {
    ran.push_back("launch");
    for (const std::string& word : static_cast<NamedGraph&>(graph).work) ran.push_back(word);
  }

  Calls ran;
  int captures = 0;
  int fails_at = 0;

 private:
  Calls* recording_ = nullptr;
};

class WordStage final : public PipelineStage {
 public:
  explicit WordStage(WordDevice& device) : device_(device) {}
  absl::Status Run(const StagePass& pass, Stream& stream) override {
    if (pass.compute.microbatch == fails_at) return absl::ResourceExhaustedError("no memory");
    const std::string word = ToString(pass.compute).substr(1);
    if (pass.graphs == nullptr) {
      device_.Say(word);
      return absl::OkStatus();
    }
    for (const int unit : {0, 1}) {
      device_.Say("await");  // between units, and in no graph
      const absl::Status status = pass.graphs->Run({pass.compute, unit}, stream, [&] {
        device_.Say(absl::StrCat(word, ".", unit));
        return absl::OkStatus();
      });
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }
  Elements activation(int slot) override { return {&buffers_[0], size_t(slot), kType}; }
  Elements gradient(int slot) override { return {&buffers_[1], size_t(slot), kType}; }

  int fails_at = -1;

 private:
  static constexpr DType kType = DType::kFloat32;
  WordDevice& device_;
  float buffers_[2] = {};
};

StagePass PassOf(ComputeKind kind, int microbatch, int microbatches) {
  const bool is_forward = kind == ComputeKind::kForward;
  return {.compute = {kind, 0, microbatch},
          .is_first = microbatch == 0,
          .is_last = !is_forward && microbatch == microbatches - 1};
}

struct Fixture {
  explicit Fixture(int microbatches, bool ends_communicate = false)
      : microbatches(microbatches), graphed(stage, device, {ends_communicate}) {}

  // Every microbatch forward, then back; what ran since the last step.
  Calls Step() {
    device.ran.clear();
    for (const ComputeKind kind : {ComputeKind::kForward, ComputeKind::kBackward}) {
      for (int m = 0; m < microbatches; ++m) {
        REQUIRE_OK(graphed.Run(PassOf(kind, m, microbatches), stream));
      }
    }
    return device.ran;
  }

  const int microbatches;
  std::unique_ptr<Device> cpu = Device::Cpu();
  Stream stream = Stream::Cpu();
  WordDevice device{*cpu};
  WordStage stage{device};
  GraphedStage graphed;
};

TEST_CASE("a pass runs op by op, is captured and launched, then only launched") {
  Fixture fixture(2);
  CHECK(fixture.Step() == Calls{"F0", "F1", "B0", "B1"});
  CHECK(fixture.device.captures == 0);
  const Calls launched = {"launch", "F0", "launch", "F1", "launch", "B0", "launch", "B1"};
  CHECK(fixture.Step() == launched);
  CHECK(fixture.device.captures == 4);
  CHECK(fixture.Step() == launched);
  CHECK(fixture.device.captures == 4);
}

TEST_CASE("of passes that communicate each unit is captured, and nothing between the units") {
  Fixture fixture(3, /*ends_communicate=*/true);
  CHECK(fixture.Step() == Calls{"await", "F0.0", "await", "F0.1", "F1", "F2",  //
                                "B0", "B1", "await", "B2.0", "await", "B2.1"});
  const Calls launched = {"await", "launch", "F0.0", "await",  "launch", "F0.1",   "launch",
                          "F1",    "launch", "F2",   "launch", "B0",     "launch", "B1",
                          "await", "launch", "B2.0", "await",  "launch", "B2.1"};
  CHECK(fixture.Step() == launched);
  CHECK(fixture.Step() == launched);
  CHECK(fixture.device.captures == 8);
}

TEST_CASE("the number of graphs has a bound") {
  Fixture fixture(GraphedPasses::kMicrobatchesMax + 2);
  fixture.Step();
  const Calls ran = fixture.Step();
  CHECK(fixture.device.captures == 2 * GraphedPasses::kMicrobatchesMax);
  CHECK(std::count(ran.begin(), ran.end(), "launch") == 2 * GraphedPasses::kMicrobatchesMax);
  CHECK(std::count(ran.begin(), ran.end(), "F65") == 1);
}

TEST_CASE("after a failed capture everything runs op by op for good, and one warning says why") {
  const LoggedText log;
  Fixture fixture(2);
  fixture.device.fails_at = 3;  // the second step's first backward pass
  fixture.Step();
  CHECK(fixture.Step() == Calls{"launch", "F0", "launch", "F1", "B0", "B1"});
  CHECK(fixture.Step() == Calls{"F0", "F1", "B0", "B1"});
  CHECK(fixture.device.captures == 3);
  CHECK(log.CountOf("attention cannot be captured") == 1);
}

TEST_CASE("an error of the stage comes back as it is, captured or not") {
  const LoggedText log;
  Fixture fixture(1);
  fixture.stage.fails_at = 0;
  for (int run = 0; run < 3; ++run) {
    CHECK_STATUS(fixture.graphed.Run(PassOf(ComputeKind::kForward, 0, 1), fixture.stream),
                 absl::StatusCode::kResourceExhausted, "no memory");
  }
}

TEST_CASE("buffers are the stage's") {
  Fixture fixture(1);
  CHECK(fixture.graphed.activation(3).data == fixture.stage.activation(3).data);
  CHECK(fixture.graphed.gradient(5).data == fixture.stage.gradient(5).data);
  CHECK(fixture.graphed.gradient(5).count == 5);
}

TEST_CASE("on a CPU nothing is captured, and the passes run") {
  const LoggedText log;
  Fixture fixture(1);
  GraphedStage graphed(fixture.stage, *fixture.cpu, {});
  for (int run = 0; run < 3; ++run)
    REQUIRE_OK(graphed.Run(PassOf(ComputeKind::kForward, 0, 1), fixture.stream));
  CHECK(fixture.device.ran == Calls{"F0", "F0", "F0"});
  CHECK(log.CountOf("on a CPU") == 1);
}

}  // namespace
}  // namespace convene::worker
