// PURE. The shape of a model as a line of text, which checkpoints carry.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker_runtime/model/config.h"

namespace convene::worker {

// The text says all that decides what the weights compute. How they are trained (the router's
// losses, the first weights' deviation) is no part of it.
std::string ShapeText(const ModelConfig& config);

// ShapeText without the ffn_size of a model in which all layers have experts: no weight has that
// size, and config.json does not say it.
std::string WeightsShapeText(ModelConfig config);

// The inverse: ShapeText of the result is `text`. InvalidArgument for any other text.
absl::StatusOr<ModelConfig> ParseShapeText(absl::string_view text);

}  // namespace convene::worker
