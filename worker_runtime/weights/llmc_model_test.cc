#include "worker_runtime/weights/llmc_model.h"

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/base/files.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"
#include "worker_runtime/model/shape_text.h"
#include "worker_runtime/weights/compare_weights.h"
#include "worker_runtime/weights/write_weights.h"

namespace convene::worker {
namespace {

using ::convene::testing::TempDir;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr int kRows = 128;  // of the table
constexpr int kVocabulary = 70;
constexpr int kHidden = 8;
constexpr int kLayers = 2;
constexpr int kPositions = 16;

template <typename T>
std::string Bytes(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

std::string Header(int version, int hidden = kHidden) {
  std::vector<int32_t> header(256);
  header[0] = 20240326;
  header[1] = version;
  header[2] = kPositions;
  header[3] = kVocabulary;
  header[4] = kLayers;
  header[5] = 2;
  header[6] = hidden;
  header[7] = kRows;
  return Bytes(header);
}

// As llm.c's train_gpt2.py writes it: each tensor of all layers, one after another. Element i has
// the value i; the rows that fill up the table are zero.
std::vector<float> Elements() {
  const int per_layer = 12 * kHidden * kHidden + 13 * kHidden;
  std::vector<float> elements((kRows + kPositions) * kHidden + kLayers * per_layer + 2 * kHidden);
  for (size_t i = 0; i < elements.size(); ++i) elements[i] = i;
  std::fill(elements.begin() + kVocabulary * kHidden, elements.begin() + kRows * kHidden, 0);
  return elements;
}

std::vector<float> Tensor(const Weights& weights, const std::string& name, int64_t rows,
                          int64_t columns) {
  std::vector<float> values(rows * columns);
  REQUIRE_OK(weights.source->Read({{{.name = name,
                                     .global_shape = {rows, columns},
                                     .local_box = {{0, 0}, {rows, columns}},
                                     .flat_count = rows * columns},
                                    absl::MakeSpan(values)}}));
  return values;
}

TEST_CASE("a model of llm.c comes in and goes out, bit for bit") {
  const TempDir dir;
  const std::string file = Header(3) + Bytes(Elements());
  REQUIRE_OK(WriteFileAtomic(dir.File("a.bin"), file));
  const auto weights = OpenWeights(dir.File("a.bin"));
  REQUIRE_OK(weights.status());
  CHECK(weights->config.ffn_size == 32);
  CHECK(weights->config.positions == 16);
  // By hand: layer 1's of tensors that begin behind the tables, wpe, and all layers before.
  const int64_t layers = (kRows + kPositions) * kHidden;
  const int64_t square = kHidden * kHidden;
  CHECK(Tensor(*weights, "transformer.wte.weight", 70, 8)[69 * 8 + 7] == 69 * 8 + 7);
  CHECK(Tensor(*weights, "transformer.wpe.weight", 16, 8)[3] == kRows * kHidden + 3);
  CHECK(Tensor(*weights, "transformer.h.1.ln_1.bias", 1, 8)[2] == layers + 2 * 8 + 8 + 2);
  CHECK(Tensor(*weights, "transformer.h.1.attn.c_attn.weight", 24, 8)[8 + 5] ==
        layers + 4 * 8 + 3 * square + 8 + 5);
  const int64_t down =
      layers + 2 * (8 + 8 + 3 * square + 24 + square + 8 + 8 + 8 + 4 * square + 32);
  CHECK(Tensor(*weights, "transformer.h.1.mlp.c_proj.weight", 8, 32)[33] == down + 4 * square + 33);
  CHECK(Tensor(*weights, "transformer.ln_f.bias", 1, 8)[7] == Elements().size() - 1);

  REQUIRE_OK(ExportLlmc(*weights, DType::kFloat32, dir.File("b.bin")));
  CHECK(ReadFile(dir.File("b.bin")).value() == file);
  REQUIRE_OK(ExportHf(*weights, {.output = dir.File("hf")}));
  const auto folder = OpenWeights(dir.File("hf"));
  REQUIRE_OK(folder.status());
  CHECK(CompareWeights(*weights, *folder).value().empty());
  REQUIRE_OK(ExportLlmc(*folder, DType::kBFloat16, dir.File("c.bin")));
  const auto rounded = OpenWeights(dir.File("c.bin"));
  REQUIRE_OK(rounded.status());
  CHECK(ReadFile(dir.File("c.bin"))->size() == 1024 + Elements().size() * 2);
  CHECK(CompareWeights(*weights, *rounded)->front().largest <= 8);
  CHECK_STATUS(ExportLlmc(*folder, DType::kBFloat16, dir.File("c.bin")),
               absl::StatusCode::kAlreadyExists, "is there already");
}

TEST_CASE("the tensors alone go into one file of safetensors") {
  const TempDir dir;
  REQUIRE_OK(WriteFileAtomic(dir.File("a.bin"), Header(3) + Bytes(Elements())));
  const auto weights = OpenWeights(dir.File("a.bin"));
  REQUIRE_OK(weights.status());
  REQUIRE_OK(ExportSafeTensors(*weights, DType::kFloat32, dir.File("all.safetensors")));
  REQUIRE_OK(ExportHf(*weights, {.output = dir.File("hf")}));
  CHECK(ReadFile(dir.File("all.safetensors")).value() ==
        ReadFile(dir.File("hf/model.safetensors")).value());
}

TEST_CASE("a model of llm.c that is damaged, and models that are not GPT-2") {
  const TempDir dir;
  const std::string data = Bytes(Elements());
  const auto open = [&](const std::string& content) {
    REQUIRE_OK(WriteFileAtomic(dir.File("a.bin"), content));
    return OpenWeights(dir.File("a.bin")).status();
  };
  CHECK_STATUS(open(Header(1) + data), kInvalid, "version 3 (fp32) or 5 (bf16)");
  CHECK_STATUS(open(Header(3) + data.substr(4)), kInvalid, "its header makes it");
  CHECK_STATUS(open(Header(5) + data), kInvalid, "its header makes it");
  CHECK_STATUS(open(Header(3, 7) + data), kInvalid, "makes no sense");
  CHECK_STATUS(open(Header(3, -8) + data), kInvalid, "makes no sense");
  Weights llama = {.config = NamedModel("llama-tiny").value()};
  CHECK_STATUS(ExportLlmc(llama, DType::kFloat32, dir.File("b.bin")), kInvalid, "hold GPT-2 alone");
}

}  // namespace
}  // namespace convene::worker
