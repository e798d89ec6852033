#include "worker_runtime/trainer/first_weights.h"

#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "tools/base/clock.h"
#include "tools/base/status_macros.h"
#include "tools/base/testing/logged_text.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"
#include "tools/base/thread.h"
#include "worker_runtime/checkpoint/checkpoint.h"
#include "worker_runtime/checkpoint/directory_lock.h"
#include "worker_runtime/comm/bootstrap.h"
#include "worker_runtime/comm/testing/loopback.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/model/shape_text.h"
#include "worker_runtime/weights/model_tensors.h"

namespace convene::worker {
namespace {

using convene::testing::TempDir;

ModelConfig WithAdapters(int rank) {
  ModelConfig model = NamedModel("llama-tiny").value();
  model.adapter = {.rank = rank, .alpha = 8, .targets = {"v_proj"}};
  return model;
}

// A job's checkpoint of these tensors.
void Write(const std::string& directory, const ModelConfig& model,
           const std::vector<ModelTensor>& tensors, int64_t step, const std::string& base) {
  std::vector<std::vector<float>> values;
  std::vector<PieceToWrite> pieces;
  for (const ModelTensor& tensor : tensors) {
    values.emplace_back(tensor.shape[0] * tensor.shape[1], 0.5f);
    pieces.push_back({RowsOf(tensor, 0, tensor.file_rows()), absl::MakeConstSpan(values.back())});
  }
  REQUIRE_OK(WriteShard(directory, step, 0, pieces));
  REQUIRE_OK(PublishCheckpoint(directory, {.step = step, .model = ShapeText(model), .base = base}));
}

void WriteAdapters(const std::string& directory, const ModelConfig& model, int64_t step = 7,
                   const std::string& base = "/base") {
  Write(directory, model, AdapterTensors(model), step, base);
}

// A run with adapters of rank 4 that begins with those.
absl::Status Begin(const std::string& adapters) {
  TrainOptions options;
  options.model = WithAdapters(4);
  options.init_adapter = adapters;
  CommunicatorSet communicators = SoloCommunicators();
  const std::unique_ptr<Device> device = Device::Cpu();
  const auto engine =
      Engine::Create({.model = options.model, .fresh_weights = false}, communicators, *device);
  REQUIRE_OK(engine);
  Stream& host = device->host();
  CONVENE_ASSIGN_OR_RETURN(const FirstWeights first,
                           FindFirstWeights(options, *communicators.world, host));
  return MakeFirstWeights(
      options, first, /*resumed=*/false, **engine, [](double) {}, *communicators.world, host);
}

TEST_CASE("first adapters of another rank are refused with the flag that is wrong") {
  const TempDir dir;
  WriteAdapters(dir.File("same"), WithAdapters(4));
  WriteAdapters(dir.File("other"), WithAdapters(2));
  CHECK_OK(Begin(dir.File("same")));
  CHECK_STATUS(Begin(dir.File("other")), absl::StatusCode::kInvalidArgument,
               "holds adapters of rank 2, and this run's have rank 4: leave out --lora-rank");
}

TEST_CASE("a step that another job may remove is warned of, where each start needs it again") {
  const TempDir dir;
  WriteAdapters(dir.path(), WithAdapters(4));
  TrainOptions options;
  options.init_from = dir.path();
  CommunicatorSet communicators = SoloCommunicators();
  const std::unique_ptr<Device> device = Device::Cpu();
  const auto warnings = [&] {
    const convene::testing::LoggedText log;
    const auto first = FindFirstWeights(options, *communicators.world, device->host());
    REQUIRE_OK(first);
    return log.CountOf(first->weights + " again, and process ");
  };
  {
    const auto lock = LockDirectory(dir.path(), {.job = "pretraining"});
    REQUIRE_OK(lock);
    CHECK(warnings() == 0);  // A full tuning has read it when it has begun.
    options.model = WithAdapters(4);
    CHECK(warnings() == 1);
    options.init_from = dir.File("step_00000007");
    CHECK(warnings() == 0);
    options.init_from = dir.path();
  }
  CHECK(warnings() == 0);
}

TEST_CASE("a run's base is that of the checkpoint from which it goes on") {
  const TempDir dir;
  for (const int64_t step : {3, 5}) WriteAdapters(dir.File("bases"), WithAdapters(4), step);
  // Of another run, begun by mistake, and what this one is to begin with.
  WriteAdapters(dir.File("run"), WithAdapters(4), 1, dir.File("bases/step_00000005"));
  WriteAdapters(dir.File("main"), WithAdapters(4), 2, dir.File("bases/step_00000003"));
  TrainOptions options;
  options.model = WithAdapters(4);
  options.init_from = dir.File("bases");
  options.checkpoint_dir = dir.File("run");
  options.resume = ResumeMode::kDirectory;
  options.resume_directory = dir.File("main/step_00000002");
  CommunicatorSet communicators = SoloCommunicators();
  const std::unique_ptr<Device> device = Device::Cpu();
  const auto first = FindFirstWeights(options, *communicators.world, device->host());
  REQUIRE_OK(first);
  CHECK(first->weights == dir.File("bases/step_00000003"));
}

TEST_CASE("all ranks begin with the checkpoint that rank 0 finds") {
  const TempDir dir;
  // The job saves once more, and one node sees it before the other does.
  WriteAdapters(dir.File("0"), WithAdapters(4));
  WriteAdapters(dir.File("1"), WithAdapters(4));
  WriteAdapters(dir.File("1"), WithAdapters(4), /*step=*/9);
  const LoopbackWorld world(2);
  const auto group = world.Group({0, 1}, "world");
  std::vector<FirstWeights> found(2);
  std::vector<Thread> threads;
  for (const int rank : {0, 1}) {
    threads.emplace_back("rank", [&, rank] {
      TrainOptions options;
      options.init_from = dir.File("0/step_00000007");
      options.init_adapter = dir.File(std::to_string(rank));
      Stream stream = Stream::Cpu();
      const auto first = FindFirstWeights(options, *group[rank], stream);
      if (first.ok()) found[rank] = *first;
    });
  }
  for (Thread& thread : threads) thread.Join();
  for (const int rank : {0, 1}) {
    CHECK(found[rank].weights == dir.File("0/step_00000007"));
    CHECK(found[rank].adapter == dir.File(std::to_string(rank) + "/step_00000007"));
  }
}

TEST_CASE("the rank that has read its weights waits for the slowest disk as for a checkpoint") {
  const TempDir dir;
  const bool has_adapters = GENERATE(false, true);
  TrainOptions options;
  options.model = has_adapters ? WithAdapters(4) : NamedModel("llama-tiny").value();
  const ModelConfig plain = NamedModel("llama-tiny").value();
  Write(dir.path(), plain, ModelTensors(plain), /*step=*/7, /*base=*/"");
  const Layout layout = {.dp = 2};
  std::vector<CommunicatorSet> sets = LoopbackCommunicators(layout, {.timeout = absl::Seconds(1)});
  const LoopbackWorld patient(2);
  const auto checkpoint = patient.Group({0, 1}, "checkpoint");
  std::vector<absl::Status> made(2);
  std::vector<Thread> threads;
  for (const int rank : {0, 1}) {
    threads.emplace_back("rank", [&, rank] {
      const std::unique_ptr<Device> device = Device::Cpu();
      Stream stream = Stream::Cpu();
      bool is_read = rank == 0;
      const auto read_slowly = [&](double) {
        if (std::exchange(is_read, true)) return;
        const MonotonicTime end = Clock::Real().Now() + absl::Milliseconds(1500);
        while (Clock::Real().Now() < end) std::this_thread::yield();
      };
      made[rank] = [&]() -> absl::Status {
        CONVENE_ASSIGN_OR_RETURN(
            const auto engine,
            Engine::Create(
                {.model = options.model, .layout = layout, .rank = rank, .fresh_weights = false},
                sets[rank], *device));
        CONVENE_RETURN_IF_ERROR(MakeFirstWeights(options, {.weights = dir.File("step_00000007")},
                                                 /*resumed=*/false, *engine, read_slowly,
                                                 *checkpoint[rank], stream));
        CONVENE_RETURN_IF_ERROR(device->Synchronize(absl::Seconds(60)));
        return sets[rank].dp_gather->Check();
      }();
    });
  }
  for (Thread& thread : threads) thread.Join();
  for (const absl::Status& status : made) CHECK_OK(status);
}

TEST_CASE("a run that goes on has the first weights that its checkpoint names") {
  const TempDir dir;
  WriteAdapters(dir.File("given"), WithAdapters(4));
  WriteAdapters(dir.File("given"), WithAdapters(4), /*step=*/9);
  TrainOptions options;
  options.init_from = dir.File("given");
  CommunicatorSet communicators = SoloCommunicators();
  Stream stream = Stream::Cpu();
  const auto found = [&] {
    const auto first = FindFirstWeights(options, *communicators.world, stream);
    REQUIRE_OK(first);
    return first->weights;
  };
  CHECK(found() == dir.File("given/step_00000009"));
  WriteAdapters(dir.File("run"), WithAdapters(4), /*step=*/1, dir.File("given/step_00000007"));
  WriteAdapters(dir.File("elsewhere"), WithAdapters(4), /*step=*/1, "/other/step_00000007");
  options.checkpoint_dir = dir.File("run");
  CHECK(found() == dir.File("given/step_00000007"));
  options.checkpoint_dir = dir.File("elsewhere");
  CHECK(found() == dir.File("given/step_00000009"));
  options.checkpoint_dir = dir.File("nothing");
  options.resume = ResumeMode::kDirectory;
  options.resume_directory = dir.File("run/step_00000001");
  CHECK(found() == dir.File("given/step_00000007"));
}

}  // namespace
}  // namespace convene::worker
