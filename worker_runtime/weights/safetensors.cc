#include "worker_runtime/weights/safetensors.h"

#include <rapidjson/writer.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "tools/base/check.h"
#include "tools/base/json_buffer.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/tokenizer/json/json_node.h"

namespace convene::worker {
namespace {

constexpr char kMetadata[] = "__metadata__";
constexpr int64_t kLargest = int64_t{1} << 60;

constexpr std::array<std::pair<absl::string_view, int>, 16> kTypes = {{{"BOOL", 1},
                                                                       {"U8", 1},
                                                                       {"I8", 1},
                                                                       {"F8_E4M3", 1},
                                                                       {"F8_E5M2", 1},
                                                                       {"F8_E8M0", 1},
                                                                       {"I16", 2},
                                                                       {"U16", 2},
                                                                       {"F16", 2},
                                                                       {"BF16", 2},
                                                                       {"I32", 4},
                                                                       {"U32", 4},
                                                                       {"F32", 4},
                                                                       {"F64", 8},
                                                                       {"I64", 8},
                                                                       {"U64", 8}}};

// 0: an unknown type.
int BytesOf(absl::string_view type) {
  for (const auto& [name, bytes] : kTypes) {
    if (name == type) return bytes;
  }
  return 0;
}

absl::StatusOr<std::vector<int64_t>> Numbers(const JsonNode& node) {
  CONVENE_ASSIGN_OR_RETURN(const std::vector<JsonNode> elements, node.Elements());
  std::vector<int64_t> numbers;
  for (const JsonNode& element : elements) {
    CONVENE_ASSIGN_OR_RETURN(const int64_t number, element.Number(kLargest));
    numbers.push_back(number);
  }
  return numbers;
}

absl::StatusOr<SafeTensor> ReadTensor(absl::string_view name, const JsonNode& node) {
  SafeTensor tensor = {.name = std::string(name)};
  CONVENE_ASSIGN_OR_RETURN(tensor.type, node.GetString("dtype"));
  CONVENE_ASSIGN_OR_RETURN(const JsonNode shape, node.Get("shape"));
  CONVENE_ASSIGN_OR_RETURN(tensor.shape, Numbers(shape));
  CONVENE_ASSIGN_OR_RETURN(const JsonNode offsets, node.Get("data_offsets"));
  CONVENE_ASSIGN_OR_RETURN(const std::vector<int64_t> ends, Numbers(offsets));
  if (ends.size() != 2 || ends[0] > ends[1]) {
    return offsets.Error("must be two numbers, of which the first is not the larger one");
  }
  tensor.begin = ends[0];
  tensor.end = ends[1];
  int64_t bytes = BytesOf(tensor.type);
  if (bytes == 0) return node.Error(absl::StrCat("has the unknown type \"", tensor.type, "\""));
  for (const int64_t size : tensor.shape) {
    if (__builtin_mul_overflow(bytes, size, &bytes)) return shape.Error("overflows");
  }
  if (bytes == tensor.end - tensor.begin) return tensor;
  return node.Error(absl::StrCat("has a shape of ", bytes, " bytes in ", tensor.type, ", but ",
                                 tensor.end - tensor.begin,
                                 " bytes of data: the file is damaged; fetch it again"));
}

absl::Status CheckTiles(const std::vector<SafeTensor>& tensors, int64_t data_bytes) {
  int64_t end = 0;
  for (const SafeTensor& tensor : tensors) {
    if (tensor.begin != end) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor \"", tensor.name, "\" begins at byte ", tensor.begin,
                       " of the data, and the one before it ends at byte ", end,
                       tensor.begin < end ? ": they overlap" : ": no tensor has those between",
                       "; the file is damaged: fetch it again"));
    }
    end = tensor.end;
  }
  if (end == data_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "its tensors have ", end, " bytes, and the file has ", data_bytes, " behind the header",
      end > data_bytes ? ": it was cut off; fetch it again"
                       : ": no tensor has the rest; the file is damaged: fetch it again"));
}

}  // namespace

absl::StatusOr<int64_t> SafeTensorsHeaderLength(absl::string_view bytes, int64_t file_bytes) {
  uint64_t length = 0;
  if (bytes.size() < kSafeTensorsLengthBytes) {
    return absl::InvalidArgumentError(
        "it is no safetensors file, or it was cut off: it has fewer than 8 bytes; fetch it again");
  }
  std::memcpy(&length, bytes.data(), sizeof(length));
  if (length > kSafeTensorsHeaderMax ||
      static_cast<int64_t>(length) > file_bytes - kSafeTensorsLengthBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("it is no safetensors file, or it was cut off: it says that its header has ",
                     length, " bytes, and the file has ", file_bytes, "; the most is ",
                     kSafeTensorsHeaderMax, "; fetch it again"));
  }
  return static_cast<int64_t>(length);
}

absl::StatusOr<std::vector<SafeTensor>> ParseSafeTensorsHeader(absl::string_view text,
                                                               int64_t data_bytes) {
  CONVENE_ASSIGN_OR_RETURN(const JsonDocument document, JsonDocument::Parse(text));
  const JsonNode root = document.root();
  if (!root.value().IsObject()) return root.Error("must be an object");
  std::vector<SafeTensor> tensors;
  absl::flat_hash_set<absl::string_view> names;
  for (const auto& member : root.value().GetObject()) {
    const absl::string_view name = TextOf(member.name);
    if (!names.insert(name).second) {
      return absl::InvalidArgumentError(absl::StrCat("it names the tensor \"", name, "\" twice"));
    }
    if (name == kMetadata) continue;
    const JsonNode node(&member.value, absl::StrCat("tensor \"", name, "\""));
    CONVENE_ASSIGN_OR_RETURN(SafeTensor tensor, ReadTensor(name, node));
    tensors.push_back(std::move(tensor));
  }
  std::sort(tensors.begin(), tensors.end(), [](const SafeTensor& a, const SafeTensor& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  CONVENE_RETURN_IF_ERROR(CheckTiles(tensors, data_bytes));
  return tensors;
}

std::string MakeSafeTensorsHeader(std::vector<SafeTensor>* tensors) {
  JsonBuffer buffer;
  rapidjson::Writer<JsonBuffer> writer(buffer);
  const auto text = [&](absl::string_view key) {
    writer.String(key.data(), static_cast<rapidjson::SizeType>(key.size()));
  };
  writer.StartObject();
  // transformers refuses a file that does not say so.
  text(kMetadata);
  writer.StartObject();
  text("format");
  text("pt");
  writer.EndObject();
  int64_t end = 0;
  for (SafeTensor& tensor : *tensors) {
    const int64_t element_bytes = BytesOf(tensor.type);
    CONVENE_CHECK(element_bytes > 0);
    tensor.begin = end;
    end += element_bytes;
    for (const int64_t size : tensor.shape) end = tensor.begin + (end - tensor.begin) * size;
    tensor.end = end;
    text(tensor.name);
    writer.StartObject();
    text("dtype");
    text(tensor.type);
    text("shape");
    writer.StartArray();
    for (const int64_t size : tensor.shape) writer.Int64(size);
    writer.EndArray();
    text("data_offsets");
    writer.StartArray();
    writer.Int64(tensor.begin);
    writer.Int64(tensor.end);
    writer.EndArray();
    writer.EndObject();
  }
  writer.EndObject();
  std::string json = buffer.GetString();
  json.resize((json.size() + 7) / 8 * 8, ' ');
  const uint64_t length = json.size();
  std::string header(reinterpret_cast<const char*>(&length), sizeof(length));
  return header + json;
}

}  // namespace convene::worker
