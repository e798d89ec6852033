// The weights of a model, from wherever they lie.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "worker_runtime/checkpoint/state_source.h"
#include "worker_runtime/model/config.h"

namespace convene::worker {

struct Weights {
  ModelConfig config;  // ValidateModel is OK for one rank
  // The weights alone, under the family's names and with the boxes of model/parameters.h. Its info
  // is of step 0 and has the shape as `model`; the rest stays as it is by default.
  std::unique_ptr<StateSource> source;
  // LoadTokenizer's path: the folder, where files of a tokenizer lie in it; of a checkpoint the
  // folder of these within it, or byte; "": it has none. DataLoss: a file of a checkpoint's folder
  // is damaged or missing, which harms nobody that takes no tokenizer from here.
  absl::StatusOr<std::string> tokenizer = std::string();
  // The most tokens of a text with its answer, that the model was made for, as these files say it:
  // max_position_embeddings, context_length, or CheckpointInfo::longest_text. 0: they do not.
  int longest_text = 0;
};

// `path`: a Hugging Face folder (hf_folder.h), a GGUF file (gguf_weights.h), a model of llm.c
// (llmc_model.h), a checkpoint of ours (its step's directory), or the directory of a job, whose
// newest checkpoint that opens is taken. Of adapters (adapter.h: PEFT's folder, or a checkpoint)
// the weights are those beside which they were trained, from where they say these lie, with the
// adapters added; `base` (not "") is where these lie now. Reads no weights.
//
// NotFound: no such path, or nothing of these in it. InvalidArgument: a file that is damaged or is
// none of these, a shape that makes no sense, tensors that are not the model's, a `base` of
// weights that are no adapters. Unimplemented: an architecture, an element type or a key that we
// lack, by its name. Else as CheckpointReader::Open and tools/base/files.h. All with the path.
absl::StatusOr<Weights> OpenWeights(const std::string& path, const std::string& base = "");

// Of a job's directory the step of the checkpoint that OpenWeights and OpenAdapter take from it as
// it is now; nullopt: the path is none. Errors as OpenWeights.
absl::StatusOr<std::optional<int64_t>> NewestStep(const std::string& path);

// The shape alone: of a Hugging Face folder config.json is enough. Errors as OpenWeights.
absl::StatusOr<ModelConfig> ReadShape(const std::string& path);

// ReadShape of the folder or GGUF file `model`, where it is one; else NamedModel. NotFound:
// neither.
absl::StatusOr<ModelConfig> FindShape(const std::string& model);

}  // namespace convene::worker
