// A model by the flags of a command: its weights, its tokenizer, its device and its processes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker_runtime/comm/bootstrap.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/inference/generate_flags.h"
#include "worker_runtime/inference/language_model.h"
#include "worker_runtime/session/ranks.h"
#include "worker_runtime/tokenizer/tokenizer.h"
#include "worker_runtime/weights/open_weights.h"

namespace convene::worker {

struct OpenedModel {
  Weights weights;
  std::string tokenizer_path;
  std::unique_ptr<Tokenizer> tokenizer;
  std::vector<int32_t> end_tokens;  // of the folder, else the tokenizer's end of a document
  int longest_text = 0;  // tokens with its answer, that the model was made for; 0: not known
  std::unique_ptr<Ranks> ranks;
  std::unique_ptr<Device> device;
  CommunicatorSet communicators;
  DType dtype = DType::kFloat32;

  // With the weights. Says on stderr where the context is longer than the model was made for: its
  // rotary positions go on without an end. Errors: LanguageModel::Make's.
  absl::StatusOr<std::unique_ptr<LanguageModel>> Load(int sequences, int context);
};

// Tokens of a text with its answer, where the texts are not known yet: --context, else 4096 or as
// many as the model has positions or was made for.
int ContextOfTyped(const ModelFlags& flags, const OpenedModel& opened);

// Joins the processes of the flags' layout, and connects them. Reads no weights yet. `tokenizer` of
// the result is null where none is found and none is needed. InvalidArgument: no tokenizer, or one
// with more tokens than the model. Errors else: OpenWeights', LoadTokenizer's, the device's, those
// of Ranks.
absl::StatusOr<OpenedModel> OpenModel(const ModelFlags& flags, bool needs_tokenizer = true);

}  // namespace convene::worker
