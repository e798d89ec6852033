#include "worker_runtime/weights/adapter.h"

#include <set>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "tools/base/files.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/data/store/mapped_file.h"
#include "worker_runtime/model/shape_text.h"
#include "worker_runtime/weights/hf_folder.h"
#include "worker_runtime/weights/mapped_weights.h"
#include "worker_runtime/weights/model_tensors.h"
#include "worker_runtime/weights/open_checkpoint.h"
#include "worker_runtime/weights/peft_config.h"
#include "worker_runtime/weights/safetensors_files.h"

namespace convene::worker {
namespace {

std::string PathOf(const std::string& folder, const char* name) {
  return absl::StrCat(folder, "/", name);
}

std::string ShapeWords(const std::array<int64_t, 2>& shape) { return absl::StrJoin(shape, " x "); }

// The matrix of which this is a factor, with what its name has behind it; "": of none.
absl::string_view MatrixOf(absl::string_view name) {
  for (const absl::string_view end : {".lora_A.weight", ".lora_B.weight"}) {
    if (absl::EndsWith(name, end)) return absl::StripSuffix(name, end);
  }
  return "";
}

bool IsNumber(absl::string_view word) {
  int64_t number = 0;
  return absl::SimpleAtoi(word, &number);
}

// As PEFT names adapters of the tensors in which transformers 5 keeps a layer's experts.
bool IsOfFusedExperts(absl::string_view name) {
  constexpr absl::string_view kExperts = ".experts.";
  const size_t at = name.find(kExperts);
  if (at == name.npos) return false;
  const absl::string_view behind = name.substr(at + kExperts.size());
  return !IsNumber(behind.substr(0, behind.find('.')));
}

// The file's tensors by our names.
absl::StatusOr<HeldTensors> HoldTensors(const TensorPlaces& places) {
  HeldTensors held;
  for (const auto& [name, place] : places) {
    const absl::string_view ours = absl::StripPrefix(name, kPeftPrefix);
    const std::vector<int64_t>& shape = place.tensor.shape;
    if (IsOfFusedExperts(ours)) {
      return absl::UnimplementedError(absl::StrCat(
          place.file->path(), ": tensor \"", name,
          "\" is one adapter of all experts of a layer (target_parameters), and here each expert's "
          "matrices have their own. Merge it with PEFT (merge_and_unload), and give the folder "
          "that this makes"));
    }
    if (MatrixOf(ours).empty() || shape.size() != 2) {
      return absl::InvalidArgumentError(absl::StrCat(place.file->path(), ": tensor \"", name,
                                                     "\" is no lora_A or lora_B of a matrix"));
    }
    CONVENE_ASSIGN_OR_RETURN(const StoredMatrix matrix, Fit(place, {name, shape, 0, shape[1], 1}));
    held.insert({std::string(ours), {{shape[0], shape[1]}, matrix}});
  }
  return held;
}

absl::Status CheckHalves(const Adapter& adapter) {
  const int64_t rank = adapter.config.rank;
  for (const auto& [name, shape] : adapter.tensors) {
    const absl::string_view matrix = MatrixOf(name);
    const bool is_a = name == AdapterA(matrix);
    if (shape[is_a ? 0 : 1] != rank) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor \"", name, "\" is ", ShapeWords(shape), ", which is not of rank ", rank,
          ", as adapter_config.json says: the two were not saved "
          "together; save the adapter again"));
    }
    const std::string other = is_a ? AdapterB(matrix) : AdapterA(matrix);
    if (adapter.tensors.contains(other)) continue;
    return absl::InvalidArgumentError(absl::StrCat("it has \"", name, "\", and no \"", other,
                                                   "\": it was not saved whole; save it again"));
  }
  if (!adapter.tensors.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError("it has no adapter at all; save it again");
}

absl::StatusOr<Adapter> OpenPeftFolder(const std::string& path) {
  const std::string config_path = PathOf(path, kPeftConfigName);
  CONVENE_ASSIGN_OR_RETURN(const std::string text, ReadFile(config_path));
  const absl::StatusOr<PeftConfig> config = ReadPeftConfig(text);
  if (!config.ok()) return Annotate(config.status(), config_path);
  const std::string weights_path = PathOf(path, kPeftWeightsName);
  if (!IsFile(weights_path)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " has no file ", kPeftWeightsName,
                     "; adapters are read from safetensors (save_pretrained writes these)"));
  }
  std::vector<MappedFile> files;
  CONVENE_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(weights_path));
  files.push_back(std::move(file));
  TensorPlaces places;
  CONVENE_RETURN_IF_ERROR(AddTensors(files.front(), &places));
  CONVENE_ASSIGN_OR_RETURN(HeldTensors held, HoldTensors(places));
  Adapter adapter = {.config = config->adapter, .base = config->base};
  const absl::StatusOr<std::vector<std::string>> names = ListDirectory(path);
  if (names.ok() && HasTokenizer(*names)) adapter.tokenizer = path;
  for (const auto& [name, tensor] : held) adapter.tensors[name] = tensor.shape;
  if (absl::Status halves = CheckHalves(adapter); !halves.ok()) {
    return Annotate(halves, weights_path);
  }
  adapter.config.targets = MatrixEnds(adapter);
  adapter.source = MapWeights(path, ModelConfig(), std::move(files), std::move(held));
  return adapter;
}

absl::StatusOr<Adapter> OpenCheckpointAdapter(const std::string& path) {
  CONVENE_ASSIGN_OR_RETURN(OpenedCheckpoint opened, OpenCheckpoint(path));
  if (!opened.config.adapter.is_on()) {
    return absl::InvalidArgumentError(
        absl::StrCat(opened.source->name(), " holds a whole model, and no adapters"));
  }
  Adapter adapter = {.config = opened.config.adapter,
                     .base = std::move(opened.base),
                     .tokenizer = std::move(opened.tokenizer)};
  for (const ModelTensor& tensor : AdapterTensors(opened.config)) {
    adapter.tensors[tensor.name] = tensor.shape;
  }
  adapter.source = std::move(opened.source);
  return adapter;
}

}  // namespace

std::vector<std::string> MatrixEnds(const Adapter& adapter) {
  std::set<std::string> ends;
  for (const auto& [name, shape] : adapter.tensors) {
    const std::string matrix = OfAnyExpert(MatrixOf(name));
    const std::vector<absl::string_view> words = absl::StrSplit(matrix, '.');
    size_t first = words.size();
    while (first > 0 && !IsNumber(words[first - 1])) --first;
    ends.insert(absl::StrJoin(words.begin() + static_cast<ptrdiff_t>(first), words.end(), "."));
  }
  return {ends.begin(), ends.end()};
}

bool IsPeftFolder(const std::string& path) { return IsFile(PathOf(path, kPeftConfigName)); }

absl::StatusOr<Adapter> OpenAdapter(const std::string& path) {
  return IsPeftFolder(path) ? OpenPeftFolder(path) : OpenCheckpointAdapter(path);
}

absl::Status CheckAdapterFits(const Adapter& adapter, const ModelConfig& model) {
  std::set<std::string> wanted;
  for (const ModelTensor& tensor : AdapterTensors(model)) {
    wanted.insert(tensor.name);
    const auto found = adapter.tensors.find(tensor.name);
    if (found == adapter.tensors.end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "it has no \"", tensor.name, "\", which adapters on ",
          model.adapter.targets.empty() ? "all matrices"
                                        : absl::StrJoin(model.adapter.targets, ", "),
          " of this model want: it belongs to another base, or to a part of the layers"));
    }
    if (found->second == tensor.shape) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "its \"", tensor.name, "\" is ", ShapeWords(found->second), ", and this model wants ",
        ShapeWords(tensor.shape), ": it belongs to another base"));
  }
  for (const auto& [name, shape] : adapter.tensors) {
    if (wanted.contains(name)) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "its \"", name, "\" belongs to no matrix of this model that may have an adapter"));
  }
  return absl::OkStatus();
}

}  // namespace convene::worker
