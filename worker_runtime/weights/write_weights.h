// Writes weights for other programs, and for ours. All stream: memory is some hundred MiB,
// whatever the model's size. The output appears under its name when all of it is on the disk.
//
// Errors of all: those of weights.source, and of tools/base/files.h; AlreadyExists: the output is
// there already.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "worker_runtime/checkpoint/kept_files.h"
#include "worker_runtime/device/dtype.h"
#include "worker_runtime/weights/adapter.h"
#include "worker_runtime/weights/hf_config.h"
#include "worker_runtime/weights/model_tensors.h"
#include "worker_runtime/weights/open_weights.h"

namespace convene::worker {

struct HfExport {
  std::string output;
  // Or kBFloat16: rounded to nearest, ties to even, but for routers' biases, which stay in fp32.
  DType type = DType::kFloat32;
  int64_t file_bytes = 5'000'000'000;  // the most tensors of a file, but at least one
  HfConfigExtras extras;               // its type is this one's
  std::vector<NamedFile> other_files;  // that come into it as well
};

// A folder that transformers loads: config.json, and model.safetensors or several files with their
// index. Unimplemented: WriteHfConfig's.
absl::Status ExportHf(const Weights& weights, HfExport wanted);

// The tensors of ExportHf's folder alone, in one file of safetensors.
absl::Status ExportSafeTensors(const Weights& weights, DType type, const std::string& output);

// These tensors in one file of safetensors, under the names of their FilePlace.
absl::Status WriteTensorFile(const StateSource& source, const std::vector<ModelTensor>& tensors,
                             DType type, const std::string& path);

// A folder that PEFT loads beside the adapter's base: adapter_config.json, and
// adapter_model.safetensors in fp32. `model`: the base's, with the adapter's config. The files of
// the adapter's tokenizer come into it as well.
// InvalidArgument: CheckAdapterFits's. Unimplemented: adapters of experts of which PEFT has no such
// form, and those beside experts that PEFT would take for the experts' own.
absl::Status ExportPeft(const Adapter& adapter, const ModelConfig& model,
                        const std::string& output);

// A file of llm.c (llmc_model.h), whose rows that fill up the table are zero. InvalidArgument: the
// model is no GPT-2 of llm.c's kind.
absl::Status ExportLlmc(const Weights& weights, DType type, const std::string& output);

enum class MadeAs { kFile, kFolder };

// Calls `make` with a path in the folder `output`.partial, and gives the file or folder that it
// makes there the output's name; removes it where `make` fails, whose error it returns. The
// remains of a killed process go with the next call. AlreadyExists, before `make` is called: the
// output is there (an empty folder may be, for a folder), or another process makes it.
absl::Status MakeWhole(const std::string& output, MadeAs made_as,
                       absl::FunctionRef<absl::Status(const std::string& path)> make);

// A checkpoint of step 0 in directory `output`, of weights alone in fp32, with the files of their
// tokenizer: to begin with, to look at, not to resume from.
absl::Status ImportCheckpoint(const Weights& weights, const std::string& output);

}  // namespace convene::worker
