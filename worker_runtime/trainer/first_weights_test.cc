#include "worker_runtime/trainer/first_weights.h"

#include <catch2/catch.hpp>
#include <memory>
#include <vector>

#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"
#include "worker_runtime/checkpoint/checkpoint.h"
#include "worker_runtime/comm/bootstrap.h"
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

// A job's checkpoint of adapters.
void WriteAdapters(const std::string& directory, const ModelConfig& model) {
  std::vector<std::vector<float>> values;
  std::vector<PieceToWrite> pieces;
  for (const ModelTensor& tensor : AdapterTensors(model)) {
    values.emplace_back(tensor.shape[0] * tensor.shape[1], 0.5f);
    pieces.push_back({RowsOf(tensor, 0, tensor.file_rows()), absl::MakeConstSpan(values.back())});
  }
  REQUIRE_OK(WriteShard(directory, 7, 0, pieces));
  REQUIRE_OK(PublishCheckpoint(directory, {.step = 7, .model = ShapeText(model), .base = "/base"}));
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
  return MakeFirstWeights(
      options, /*resumed=*/false, **engine, [](double) {}, *communicators.world, device->host());
}

TEST_CASE("first adapters of another rank are refused with the flag that is wrong") {
  const TempDir dir;
  WriteAdapters(dir.File("same"), WithAdapters(4));
  WriteAdapters(dir.File("other"), WithAdapters(2));
  CHECK_OK(Begin(dir.File("same")));
  CHECK_STATUS(Begin(dir.File("other")), absl::StatusCode::kInvalidArgument,
               "holds adapters of rank 2, and this run's have rank 4: leave out --lora-rank");
}

}  // namespace
}  // namespace convene::worker
