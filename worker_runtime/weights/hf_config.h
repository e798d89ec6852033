// PURE. A model's shape as Hugging Face's config.json.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker_runtime/model/config.h"

namespace convene::worker {

// Of the text of a config.json: both spellings of rotary positions (`rope_scaling` and
// `rope_theta` of transformers 4, `rope_parameters` of 5), and transformers' defaults for keys that
// are absent. InvalidArgument: no JSON object, or a value of another kind. Unimplemented, by name:
// an architecture that no family has, a key that changes the arithmetic in a way that
// we lack, and every key that we do not know, since it might.
absl::StatusOr<ModelConfig> ReadHfConfig(absl::string_view text);

// "max_position_embeddings" of the same text: the most tokens that the model was made for, which a
// shape with rotary positions does not say. 0: no number stands there. InvalidArgument: no JSON.
absl::StatusOr<int> ReadLongestText(absl::string_view text);

// The same of a model of which nothing tells it: as far as scaled positions reach, else 4096.
int GuessedLongestText(const ModelConfig& config);

struct HfConfigExtras {
  const char* type = "float32";  // of the tensors: "float32" or "bfloat16"
  // As ReadLongestText gives it: programs read from it how much they may ask. 0:
  // GuessedLongestText. Learned positions are in the shape.
  int positions = 0;
  int begin_of_document = -1;  // the tokens' ids; -1: none
  int end_of_document = -1;
};

// The inverse; transformers 4 and 5 read it. Of a model without dense layers the dense ffn_size may
// be lost. Unimplemented: a shape that the family's config.json cannot say.
absl::StatusOr<std::string> WriteHfConfig(const ModelConfig& config, const HfConfigExtras& extras);

}  // namespace convene::worker
