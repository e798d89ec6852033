// A checkpoint of ours as weights, or as adapters.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker_runtime/checkpoint/state_source.h"
#include "worker_runtime/model/config.h"

namespace convene::worker {

struct OpenedCheckpoint {
  ModelConfig config;  // ValidateModel is OK for one rank; with adapters where these are all it has
  std::string base;    // of adapters: CheckpointInfo::base
  // As Weights::tokenizer; its files are compared with their checksums.
  absl::StatusOr<std::string> tokenizer = std::string();
  int longest_text = 0;  // CheckpointInfo::longest_text
  // Its info is of step 0 and has the shape as `model`; the rest stays as it is by default.
  std::unique_ptr<StateSource> source;
};

// `path`: its step's directory, or the directory of a job, whose newest checkpoint that opens is
// taken. Errors: as OpenWeights.
absl::StatusOr<OpenedCheckpoint> OpenCheckpoint(const std::string& path);

}  // namespace convene::worker
