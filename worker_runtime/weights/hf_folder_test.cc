#include "worker_runtime/weights/hf_folder.h"

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "tools/base/files.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"
#include "worker_runtime/model/parameters.h"
#include "worker_runtime/model/shape_text.h"
#include "worker_runtime/model/testing/tiny_models.h"
#include "worker_runtime/weights/testing/hf_folders.h"

namespace convene::worker {
namespace {

using ::convene::testing::TempDir;
using testing::AsFiles;
using testing::FolderTensor;
using testing::FolderTensors;
using testing::TensorsOf;
using testing::WriteHfFolder;
using testing::WriteSafeTensors;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kPrecondition = absl::StatusCode::kFailedPrecondition;

ModelConfig Small(const std::string& name) {
  ModelConfig config = NamedModel(name).value();
  config.layers = 3;
  if (config.experts.count > 0) config.experts.shared_ffn_size = config.experts.ffn_size;
  if (config.family->names.shared_up == nullptr) config.experts.shared_ffn_size = 0;
  if (config.family->learned_positions) config.positions = 32;
  return config;
}

TensorPiece PieceOf(const ParameterSlice& slice, int64_t begin, int64_t count) {
  return {.name = slice.name,
          .global_shape = {slice.global_shape.begin(), slice.global_shape.end()},
          .local_box = {{slice.offset.begin(), slice.offset.end()},
                        {slice.extent.begin(), slice.extent.end()}},
          .flat_begin = begin,
          .flat_count = count};
}

// Every rank of a layout reads the model's values, in pieces that begin and end anywhere.
void CheckRead(const StateSource& source, const ModelConfig& config, const FolderTensors& tensors,
               int tp, int ep) {
  const ModelChunk whole = {.layers = config.layers, .has_embedding = true, .has_head = true};
  for (int rank = 0; rank < tp * ep; ++rank) {
    for (const UnitSpec& unit : UnitsOf(config, whole, tp, rank % tp, ep, rank / tp)) {
      for (const UnitTensor& tensor : unit.tensors) {
        for (const ParameterSlice& slice : tensor.slices) {
          const int64_t begin = slice.count() / 3;
          const int64_t count = slice.count() - begin - slice.count() / 5;
          std::vector<float> read(count);
          REQUIRE_OK(source.Read({{PieceOf(slice, begin, count), absl::MakeSpan(read)}}));
          std::vector<float> wanted;
          for (int64_t i = begin; i < begin + count; ++i) {
            const int64_t row = slice.offset[0] + i / slice.extent[1];
            const int64_t column = slice.offset[1] + i % slice.extent[1];
            wanted.push_back(tensors.at(slice.name).values[row * slice.global_shape[1] + column]);
          }
          INFO(slice.name << " rank " << rank);
          REQUIRE(read == wanted);
        }
      }
    }
  }
}

TEST_CASE("every family's folder is read, by every rank's slices") {
  for (const std::string& name : testing::TinyModels()) {
    INFO(name);
    const TempDir dir;
    const ModelConfig config = Small(name);
    const FolderTensors tensors = TensorsOf(config);
    WriteHfFolder(dir.path(), config, tensors);
    const auto weights = OpenHfFolder(dir.path());
    REQUIRE_OK(weights.status());
    CHECK(weights->source->info().model == ShapeText(weights->config));
    CHECK(weights->tokenizer->empty());
    const bool has_experts = config.experts.count > 0;
    for (const auto& [tp, ep] : {std::pair{1, 1}, {2, 1}, {4, has_experts ? 2 : 1}}) {
      CheckRead(*weights->source, config, tensors, tp, ep);
    }
  }
}

TEST_CASE("GPT-2's hub files have no prefix, and carry masks") {
  const TempDir dir;
  const ModelConfig config = Small("gpt2-tiny");
  const FolderTensors tensors = TensorsOf(config);
  WriteHfFolder(dir.path(), config, tensors);
  FolderTensors hub;
  for (auto& [name, tensor] : AsFiles(config, tensors)) {
    hub[std::string(absl::StripPrefix(name, "transformer."))] = tensor;
  }
  hub["h.0.attn.bias"] = {.shape = {1, 1, 2, 2}, .values = {1, 0, 1, 1}};
  WriteSafeTensors(dir.File("model.safetensors"), hub);
  const auto weights = OpenHfFolder(dir.path());
  REQUIRE_OK(weights.status());
  CheckRead(*weights->source, config, tensors, 2, 1);
}

TEST_CASE("tensors in several files, behind an index; a tokenizer beside them") {
  const TempDir dir;
  const ModelConfig config = Small("qwen3-tiny");
  const FolderTensors tensors = TensorsOf(config);
  WriteHfFolder(dir.path(), config, tensors);
  REQUIRE_OK(RemoveTree(dir.File("model.safetensors")));
  REQUIRE_OK(WriteFileAtomic(dir.File("tokenizer.json"), "{}"));
  FolderTensors halves[2];
  std::string map;
  for (const auto& [name, tensor] : tensors) {
    const size_t half = map.size() % 2;
    halves[half][name] = tensor;
    absl::StrAppend(&map, map.empty() ? "" : ", ", "\"", name, "\": \"", half, ".safetensors\"");
  }
  WriteSafeTensors(dir.File("0.safetensors"), halves[0]);
  WriteSafeTensors(dir.File("1.safetensors"), halves[1]);
  const auto write_index = [&](const std::string& entries) {
    REQUIRE_OK(WriteFileAtomic(dir.File("model.safetensors.index.json"),
                               absl::StrCat("{\"weight_map\": {", entries, "}}")));
  };
  write_index(map);
  const auto weights = OpenHfFolder(dir.path());
  REQUIRE_OK(weights.status());
  CHECK(*weights->tokenizer == dir.path());
  CHECK(HasTokenizer({"config.json", "qwen.tiktoken"}));
  CHECK_FALSE(HasTokenizer({"config.json", "tiktoken.model"}));
  CHECK_FALSE(HasTokenizer({"config.json", "model.safetensors"}));
  CheckRead(*weights->source, config, tensors, 2, 1);

  write_index(map + R"(, "x": "2.safetensors")");
  CHECK_STATUS(OpenHfFolder(dir.path()), kInvalid, "has no file 2.safetensors");
  write_index(R"("x": "../0.safetensors")");
  CHECK_STATUS(OpenHfFolder(dir.path()), kInvalid, "../0.safetensors");
  write_index(R"("x": "0.safetensors")");
  CHECK_STATUS(OpenHfFolder(dir.path()), kInvalid, "has no tensor");
}

TEST_CASE("an index of an earlier save does not hide the one file") {
  const TempDir dir;
  const ModelConfig config = Small("qwen3-tiny");
  const FolderTensors tensors = TensorsOf(config);
  FolderTensors earlier = tensors;
  for (auto& [name, tensor] : earlier) tensor.values[0] += 1;
  WriteSafeTensors(dir.File("model-00001-of-00001.safetensors"), earlier);
  REQUIRE_OK(WriteFileAtomic(dir.File("model.safetensors.index.json"),
                             R"({"weight_map": {"x": "model-00001-of-00001.safetensors"}})"));
  WriteHfFolder(dir.path(), config, tensors);
  for (const bool has_shards : {true, false}) {
    if (!has_shards) REQUIRE_OK(RemoveTree(dir.File("model-00001-of-00001.safetensors")));
    const auto weights = OpenHfFolder(dir.path());
    REQUIRE_OK(weights.status());
    CheckRead(*weights->source, config, tensors, 1, 1);
  }
}

// By the specification, one element after another: E2M1 in halves of bytes, powers of two.
float Unpacked(int half, int scale) {
  const int exponent = (half >> 1) & 3;
  const float fraction = (half & 1) * 0.5f;
  const float size = exponent == 0 ? fraction : std::ldexp(1 + fraction, exponent - 1);
  return std::ldexp((half & 8) != 0 ? -size : size, scale - 127);
}

// The tensors of gpt-oss' experts go into a file of 4-bit blocks; their values are those of it.
std::string PackExperts(const ModelConfig& config, FolderTensors* tensors) {
  std::vector<SafeTensor> list;
  std::string data;
  const int64_t count = config.experts.count;
  auto random = [state = uint32_t{7}]() mutable {
    return (state = state * 1664525 + 1013904223) >> 24;
  };
  for (int layer = 0; layer < config.layers; ++layer) {
    const std::string experts = absl::StrCat("model.layers.", layer, ".mlp.experts.");
    for (const bool is_down : {false, true}) {
      const int64_t in = is_down ? config.experts.ffn_size : config.hidden_size;
      const int64_t out = is_down ? config.hidden_size : 2 * config.experts.ffn_size;
      std::string blocks(count * out * in / 2, '\0');
      std::string scales(count * out * in / 32, '\0');
      for (char& byte : blocks) byte = static_cast<char>(random());
      for (char& byte : scales) byte = static_cast<char>(120 + random() % 9);
      for (int64_t i = 0; i < count * out * in; ++i) {
        const int64_t row = i / in % out;
        const char* const matrix = is_down ? "down_proj" : row % 2 == 0 ? "gate_proj" : "up_proj";
        const int64_t own_row = is_down ? row : row / 2;
        auto& tensor = tensors->at(absl::StrCat(experts, i / in / out, ".", matrix, ".weight"));
        const int half = (static_cast<uint8_t>(blocks[i / 2]) >> (i % 2 * 4)) & 15;
        tensor.values[own_row * in + i % in] = Unpacked(half, static_cast<uint8_t>(scales[i / 32]));
      }
      const std::string name = experts + (is_down ? "down_proj" : "gate_up_proj");
      list.push_back({.name = name + "_blocks", .type = "U8", .shape = {count, out, in / 32, 16}});
      list.push_back({.name = name + "_scales", .type = "U8", .shape = {count, out, in / 32}});
      data += blocks + scales;
    }
  }
  return MakeSafeTensorsHeader(&list) + data;
}

TEST_CASE("gpt-oss' experts are unpacked from 4 bits, by every rank's slices") {
  const TempDir dir;
  const ModelConfig config = Small("gpt-oss-tiny");
  FolderTensors tensors = TensorsOf(config);
  const std::string packed = PackExperts(config, &tensors);
  WriteHfFolder(dir.path(), config, tensors);
  FolderTensors others = AsFiles(config, tensors);
  std::erase_if(others, [](const auto& item) {
    return absl::EndsWith(item.first, "down_proj") || absl::EndsWith(item.first, "gate_up_proj");
  });
  WriteSafeTensors(dir.File("model.safetensors"), others);
  REQUIRE_OK(WriteFileAtomic(dir.File("packed.safetensors"), packed));
  REQUIRE_OK(
      WriteFileAtomic(dir.File("model.safetensors.index.json"),
                      R"({"weight_map": {"a": "model.safetensors", "b": "packed.safetensors"}})"));
  const auto weights = OpenHfFolder(dir.path());
  REQUIRE_OK(weights.status());
  CheckRead(*weights->source, config, tensors, 1, 1);
  CheckRead(*weights->source, config, tensors, 4, 2);
  REQUIRE_OK(WriteFileAtomic(dir.File("packed.safetensors"),
                             absl::StrReplaceAll(packed, {{"\"U8\"", "\"I8\""}})));
  CHECK_STATUS(OpenHfFolder(dir.path()), absl::StatusCode::kUnimplemented, "as U8");
}

TEST_CASE("bf16 and fp16 are read as what they are") {
  const TempDir dir;
  ModelConfig config = Small("llama-tiny");
  const FolderTensors tensors = TensorsOf(config);
  WriteHfFolder(dir.path(), config, tensors);
  // 1, -2, the smallest subnormal, the largest finite number, infinity.
  const std::vector<uint16_t> halves = {0x3c00, 0xc000, 0x0001, 0x7bff, 0x7c00};
  const std::vector<float> wanted = {1, -2, 0x1p-24f, 65504, INFINITY};
  const std::vector<uint16_t> uppers = {0x3f80, 0xc000, 0x3380, 0x4780, 0x7f80};
  const std::vector<float> of_uppers = {1, -2, 0x1p-24f, 65536, INFINITY};
  std::string bytes = ReadFile(dir.File("model.safetensors")).value();
  for (const auto& [type, bits, values] :
       {std::tuple{"F16", halves, wanted}, {"BF16", uppers, of_uppers}}) {
    // The norm's 64 elements in fp32 are two tensors of 64 in half the bytes.
    std::string changed = bytes;
    const std::string norm = R"("model.norm.weight":{"dtype":"F32","shape":[64])";
    const size_t place = changed.find(norm);
    REQUIRE(place != std::string::npos);
    int64_t begin = 0, end = 0;
    const std::string offsets = changed.substr(place + norm.size());
    REQUIRE(std::sscanf(offsets.c_str(), ",\"data_offsets\":[%ld,%ld]", &begin, &end) == 2);
    const std::string entry = changed.substr(place, changed.find('}', place) - place);
    const std::string twice = absl::StrCat(
        R"("model.norm.weight":{"dtype":")", type, R"(","shape":[64],"data_offsets":[)", begin, ",",
        begin + 128, R"(]},"a.rotary_emb.inv_freq":{"dtype":")", type,
        R"(","shape":[64],"data_offsets":[)", begin + 128, ",", end, "]");
    const int64_t length = SafeTensorsHeaderLength(bytes.substr(0, 8), bytes.size()).value();
    std::string header = changed.substr(8, length);
    header.replace(place - 8, entry.size(), twice);
    std::string data = changed.substr(8 + length);
    std::memcpy(data.data() + begin, bits.data(), bits.size() * sizeof(uint16_t));
    const uint64_t size = header.size();
    REQUIRE_OK(WriteFileAtomic(
        dir.File("model.safetensors"),
        absl::StrCat(absl::string_view(reinterpret_cast<const char*>(&size), 8), header, data)));
    const auto weights = OpenHfFolder(dir.path());
    REQUIRE_OK(weights.status());
    std::vector<float> read(bits.size());
    const TensorPiece piece = {.name = "model.norm.weight",
                               .global_shape = {1, 64},
                               .local_box = {{0, 0}, {1, 64}},
                               .flat_count = static_cast<int64_t>(bits.size())};
    REQUIRE_OK(weights->source->Read({{piece, absl::MakeSpan(read)}}));
    CHECK(read == values);
    std::vector<BFloat16> rounded(bits.size());
    REQUIRE_OK(weights->source->Read({{piece, absl::MakeSpan(rounded)}}));
    for (size_t i = 0; i < values.size(); ++i) {
      CHECK(rounded[i].bits == BFloat16(values[i]).bits);
    }
  }
}

TEST_CASE("a tied head that stands in the file must be its table") {
  const TempDir dir;
  const ModelConfig config = Small("qwen2-tiny");
  FolderTensors tensors = TensorsOf(config);
  tensors["lm_head.weight"] = tensors.at("model.embed_tokens.weight");
  WriteHfFolder(dir.path(), config, tensors);
  REQUIRE_OK(OpenHfFolder(dir.path()).status());
  tensors["lm_head.weight"].values[7] += 1;
  WriteHfFolder(dir.path(), config, tensors);
  CHECK_STATUS(OpenHfFolder(dir.path()), kInvalid, "\"lm_head.weight\" differs");
}

TEST_CASE("tensors that are not the model's are refused, and named") {
  const TempDir dir;
  const ModelConfig config = Small("llama-tiny");
  const FolderTensors whole = TensorsOf(config);
  const auto with = [&](auto change) {
    FolderTensors tensors = whole;
    change(tensors);
    WriteHfFolder(dir.path(), config, tensors);
    return OpenHfFolder(dir.path()).status();
  };
  CHECK_STATUS(with([](FolderTensors& t) { t.erase("model.norm.weight"); }), kInvalid,
               "has no tensor \"model.norm.weight\"");
  CHECK_STATUS(with([](FolderTensors& t) {
                 t["model.layers.0.self_attn.q_proj.bias"] = {.shape = {1}, .values = {1}};
               }),
               kInvalid, "\"model.layers.0.self_attn.q_proj.bias\" belongs to no model");
  CHECK_STATUS(with([](FolderTensors& t) {
                 FolderTensor& down = t["model.layers.1.mlp.down_proj.weight"];
                 std::swap(down.shape[0], down.shape[1]);
               }),
               kInvalid, "is 192 x 64, and config.json makes it 64 x 192");
  REQUIRE_OK(with([](FolderTensors&) {}));
  std::string bytes = ReadFile(dir.File("model.safetensors")).value();
  REQUIRE_OK(WriteFileAtomic(dir.File("model.safetensors"), bytes.substr(0, bytes.size() - 1)));
  CHECK_STATUS(OpenHfFolder(dir.path()), kInvalid, "it was cut off");
  for (size_t at = bytes.find("F32"); at != std::string::npos; at = bytes.find("F32")) {
    bytes.replace(at, 3, "I32");
  }
  REQUIRE_OK(WriteFileAtomic(dir.File("model.safetensors"), bytes));
  CHECK_STATUS(OpenHfFolder(dir.path()), absl::StatusCode::kUnimplemented, "is in I32");
  REQUIRE_OK(RemoveTree(dir.File("model.safetensors")));
  CHECK_STATUS(OpenHfFolder(dir.path()), kInvalid, "weights are read from safetensors");
}

TEST_CASE("a piece of another tensor or shape is refused") {
  const TempDir dir;
  const ModelConfig config = Small("llama-tiny");
  WriteHfFolder(dir.path(), config, TensorsOf(config));
  const auto weights = OpenHfFolder(dir.path());
  REQUIRE_OK(weights.status());
  std::vector<float> read(4);
  TensorPiece piece = {.name = "model.norm.weight",
                       .global_shape = {1, 63},
                       .local_box = {{0, 0}, {1, 63}},
                       .flat_count = 4};
  CHECK_STATUS(weights->source->Read({{piece, absl::MakeSpan(read)}}), kPrecondition,
               "is 1 x 64, not 1 x 63");
  piece.name = "optimizer.first_moment/model.norm.weight";
  CHECK_STATUS(weights->source->Read({{piece, absl::MakeSpan(read)}}), kPrecondition,
               "has no tensor 'optimizer.first_moment");
}

}  // namespace
}  // namespace convene::worker
