// libFuzzer on what comes with models: files of weights, their shapes, and requests to a served
// model. The input's first byte chooses the reader of the rest.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tools/base/check.h"
#include "worker_runtime/gguf/gguf_file.h"
#include "worker_runtime/gguf/gguf_tokenizer.h"
#include "worker_runtime/inference/openai_wire.h"
#include "worker_runtime/inference/questions.h"
#include "worker_runtime/mesh/mesh.h"
#include "worker_runtime/model/shape_text.h"
#include "worker_runtime/weights/adapter.h"
#include "worker_runtime/weights/hf_config.h"
#include "worker_runtime/weights/hf_folder.h"
#include "worker_runtime/weights/llmc_model.h"
#include "worker_runtime/weights/model_tensors.h"
#include "worker_runtime/weights/peft_config.h"
#include "worker_runtime/weights/safetensors.h"

namespace convene::worker {
namespace {

// A whole file: tensors lie side by side and fill what is behind the header.
void UseSafetensors(absl::string_view file) {
  const auto size = static_cast<int64_t>(file.size());
  const auto length = SafeTensorsHeaderLength(file.substr(0, kSafeTensorsLengthBytes), size);
  if (!length.ok()) return;
  const int64_t begin = kSafeTensorsLengthBytes + *length;
  CONVENE_CHECK(begin <= size);
  auto tensors =
      ParseSafeTensorsHeader(file.substr(kSafeTensorsLengthBytes, *length), size - begin);
  if (!tensors.ok()) return;
  int64_t end = 0;
  for (const SafeTensor& tensor : *tensors) {
    CONVENE_CHECK(tensor.begin == end && tensor.end >= end);
    end = tensor.end;
  }
  CONVENE_CHECK(end == size - begin);
}

// Each shape that is written can be read again. The dense ffn_size of a model without dense layers
// may be lost.
void UseConfig(absl::string_view text) {
  const auto config = ReadHfConfig(text);
  if (!config.ok() || !ValidateModel(*config, Layout()).ok()) return;
  const auto written = WriteHfConfig(*config, {});
  if (!written.ok()) return;
  auto again = ReadHfConfig(*written);
  CONVENE_CHECK(again.ok());
  if (config->experts.count > 0) again->ffn_size = config->ffn_size;
  CONVENE_CHECK(ShapeText(*again) == ShapeText(*config));
}

void UseShape(absl::string_view text) {
  const auto config = ParseShapeText(text);
  if (config.ok()) CONVENE_CHECK(ShapeText(*config) == text);
}

// Tensors lie in the file; a vocabulary becomes texts or is refused.
void UseGguf(absl::string_view bytes) {
  const auto file = GgufFile::Parse(bytes);
  if (!file.ok()) return;
  std::vector<float> elements;
  for (const GgufTensor& tensor : file->tensors()) {
    CONVENE_CHECK(tensor.bytes.size() <= bytes.size());
    elements.resize(tensor.bytes.size() / tensor.type->bytes * tensor.type->elements);
    DecodeBlocks(*tensor.type, tensor.bytes, elements.data());
  }
  const auto tokenizer = TokenizerOf(*file);
  CONVENE_CHECK(tokenizer.ok() ? !tokenizer->content.empty()
                               : !tokenizer.status().message().empty());
}

void UseRequest(absl::string_view body) {
  for (const bool is_chat : {false, true}) {
    const auto request = ParseCompletionRequest(body, is_chat, 1);
    if (!request.ok()) {
      CONVENE_CHECK(!ErrorJson(request.status()).empty());
      continue;
    }
    CONVENE_CHECK(!request->prompts.empty() && request->choices >= 1);
  }
}

// The tensors of a model of llm.c lie side by side.
void UseLlmc(absl::string_view bytes) {
  LlmcHeader header = {};
  std::memcpy(header.data(), bytes.data(), std::min(bytes.size(), sizeof(header)));
  const auto shape = ReadLlmcHeader(header);
  if (!shape.ok() || shape->config.layers > 8) return;
  int64_t elements = 0;
  int64_t end = 0;
  for (const LlmcPlace& place : LlmcPlaces(*shape, &elements)) {
    CONVENE_CHECK(place.begin >= end);
    end = place.begin + place.tensor.shape[0] * place.tensor.shape[1];
  }
  CONVENE_CHECK(end == elements);
}

// A configuration that was written is read again as the same one.
void UsePeft(absl::string_view text) {
  const auto config = ReadPeftConfig(text);
  if (!config.ok()) return;
  const AdapterConfig& adapter = config->adapter;
  CONVENE_CHECK(adapter.rank >= 1 && adapter.alpha > 0);
  CONVENE_CHECK(adapter.dropout >= 0 && adapter.dropout < 1);
  const auto again = ReadPeftConfig(WritePeftConfig(*config, {"q_proj"}, false));
  CONVENE_CHECK(again.ok() && again->adapter == adapter && again->base == config->base);
}

void UseChoices(absl::string_view bytes) {
  const auto questions = ParseChoices(bytes);
  if (!questions.ok()) return;
  CONVENE_CHECK(!questions->empty());
  for (const Question& question : *questions) {
    CONVENE_CHECK(question.right >= 0 && !question.context.empty());
    CONVENE_CHECK(static_cast<size_t>(question.right) < question.endings.size());
  }
}

// The part before the first byte 0xFF, which no JSON has; `input` is left with the rest.
absl::string_view TakePart(absl::string_view* input) {
  const absl::string_view part = input->substr(0, input->find('\xFF'));
  input->remove_prefix(std::min(input->size(), part.size() + 1));
  return part;
}

// A folder with these files, which goes with the object. A file without content is left out.
class Folder {
 public:
  explicit Folder(const std::vector<std::pair<std::string, absl::string_view>>& files) {
    CONVENE_CHECK(mkdtemp(path_.data()) != nullptr);
    for (const auto& [name, content] : files) {
      if (!content.empty()) std::ofstream(absl::StrCat(path_, "/", name)) << content;
    }
  }
  ~Folder() { std::filesystem::remove_all(path_); }

  const std::string& path() const { return path_; }

 private:
  std::string path_ = std::filesystem::temp_directory_path() / "weights_fuzz.XXXXXX";
};

// Every element that is promised can be read.
void ReadAll(const StateSource& source, const std::vector<ModelTensor>& tensors) {
  for (const ModelTensor& tensor : tensors) {
    std::vector<float> values(tensor.shape[0] * tensor.shape[1]);
    const TensorPiece piece = RowsOf(tensor, 0, tensor.file_rows());
    CONVENE_CHECK(source.Read({{piece, absl::MakeSpan(values)}}).ok());
  }
}

// config.json, an index or nothing, and a file of tensors, which an index may name too.
void UseFolder(absl::string_view input) {
  const absl::string_view config = TakePart(&input);
  const absl::string_view index = TakePart(&input);
  const Folder folder({{kHfConfigName, config}, {kHfIndexName, index}, {kHfWeightsName, input}});
  const auto weights = OpenHfFolder(folder.path());
  if (weights.ok()) ReadAll(*weights->source, ModelTensors(weights->config));
}

// adapter_config.json, and a file of tensors.
void UseAdapter(absl::string_view input) {
  const absl::string_view config = TakePart(&input);
  const Folder folder({{kPeftConfigName, config}, {kPeftWeightsName, input}});
  const auto adapter = OpenAdapter(folder.path());
  if (!adapter.ok()) return;
  std::vector<ModelTensor> tensors;
  for (const auto& [name, shape] : adapter->tensors)
    tensors.push_back({name, shape, {"", {}, 0, 1}});
  ReadAll(*adapter->source, tensors);
}

using Reader = void (*)(absl::string_view);
constexpr Reader kReaders[] = {UseSafetensors, UseConfig, UseShape,   UseGguf,   UseRequest,
                               UseLlmc,        UsePeft,   UseChoices, UseFolder, UseAdapter};

}  // namespace
}  // namespace convene::worker

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace worker = convene::worker;
  const absl::string_view input(reinterpret_cast<const char*>(data), size);
  if (input.empty()) return 0;
  const auto reader = static_cast<unsigned char>(input[0]);
  worker::kReaders[reader % std::size(worker::kReaders)](input.substr(1));
  return 0;
}
