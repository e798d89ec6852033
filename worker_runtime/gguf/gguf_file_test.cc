#include "worker_runtime/gguf/gguf_file.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "tools/base/testing/status_testing.h"
#include "worker_runtime/gguf/testing/gguf_writer.h"

namespace convene::worker {
namespace {

using testing::GgufWriter;

GgufWriter Small() {
  GgufWriter writer;
  writer.Text("general.architecture", "llama")
      .Count("llama.block_count", 3)
      .Real("epsilon", 0.5)
      .Bool("adds", true)
      .Texts("tokens", {"a", "bc", ""})
      .Numbers("types", {1, -3})
      .Floats("one", {3, 2}, {1, 2, 3, 4, 5, 6})
      .Tensor("two", {4}, 1, std::string("\x00\x3c\x00\xc0\x01\x00\x00\x7c", 8));
  return writer;
}

TEST_CASE("facts and tensors come as they were written") {
  const std::string bytes = Small().File();
  const auto file = GgufFile::Parse(bytes);
  REQUIRE_OK(file.status());
  CHECK(file->Text("general.architecture").value() == "llama");
  CHECK(file->Count("llama.block_count").value() == 3);
  CHECK(file->Real("epsilon").value() == 0.5);
  CHECK(file->Real("llama.block_count").value() == 3);
  CHECK(file->Bool("adds").value());
  CHECK(*file->Texts("tokens").value() == std::vector<absl::string_view>{"a", "bc", ""});
  CHECK(*file->Numbers("types").value() == std::vector<int64_t>{1, -3});
  CHECK_STATUS(file->Count("epsilon"), absl::StatusCode::kInvalidArgument, "no whole number");
  CHECK_STATUS(file->Text("absent"), absl::StatusCode::kNotFound, "has no key 'absent'");
  REQUIRE(file->tensors().size() == 2);
  CHECK(file->tensors()[0].shape == std::vector<int64_t>{2, 3});
  std::vector<float> read(6);
  DecodeBlocks(*file->tensors()[0].type, file->tensors()[0].bytes, read.data());
  CHECK(read == std::vector<float>{1, 2, 3, 4, 5, 6});
  DecodeBlocks(*file->tensors()[1].type, file->tensors()[1].bytes, read.data());
  CHECK(read[0] == 1);
  CHECK(read[1] == -2);
  CHECK(read[2] == 0x1p-24f);
  CHECK(std::isinf(read[3]));
}

TEST_CASE("a block's numbers are those of ggml's formulas") {
  // Sixteen bytes whose low halves are 0, 1, ... and whose high halves are 15, 14, ...
  std::string halves;
  for (int i = 0; i < 16; ++i) halves += static_cast<char>(i | (15 - i) << 4);
  const std::string half(std::string("\x00\x38", 2));  // 0.5
  const std::string minus_two(std::string("\x00\xc0", 2));
  float read[32];
  DecodeBlocks(**FindBlockType(2), half + halves, read);
  for (int i = 0; i < 16; ++i) {
    CHECK(read[i] == 0.5f * static_cast<float>(i - 8));
    CHECK(read[i + 16] == 0.5f * static_cast<float>(7 - i));
  }
  DecodeBlocks(**FindBlockType(3), half + minus_two + halves, read);
  CHECK(read[3] == -0.5f);
  CHECK(read[19] == 4);
  std::string bytes;
  for (int i = 0; i < 32; ++i) bytes += static_cast<char>(i - 20);
  DecodeBlocks(**FindBlockType(8), half + bytes, read);
  CHECK(read[0] == -10);
  CHECK(read[31] == 5.5f);
  DecodeBlocks(**FindBlockType(30), std::string("\x80\x3f", 2), read);
  CHECK(read[0] == 1);
}

// The values are those that gguf-py 0.19 (quants.dequantize) makes of the same bytes.
TEST_CASE("numbers of five and six bits, and those of parts with scales of their own, are ggml's") {
  struct Case {
    uint32_t number;
    int scale_at;
    int offset_at;
    std::vector<float> some;  // at 0, 1, 17, three behind the middle, the last
    double sum;               // of each element times its place, from 1 on
  };
  const std::vector<Case> cases = {{6, 0, -1, {-2, -1.5f, -8, 7.5f, 3.5f}, 495},
                                   {7, 0, 2, {0.75f, 5.75f, 7.75f, 12.25f, 5.75f}, 4411.5},
                                   {12, 0, 2, {37.75f, 61.75f, 85.75f, 2.75f, 41.5f}, 2592661.5},
                                   {13, 0, 2, {97.75f, 181.75f, 103.75f, 44.75f, 73}, 5472189.5},
                                   {14, 208, -1, {-246.5f, 59.5f, -157.5f, 552, -26}, 2557515}};
  for (const Case& each : cases) {
    const BlockType& type = **FindBlockType(each.number);
    INFO(type.name);
    std::string block;
    uint32_t state = 7;
    for (int i = 0; i < type.bytes; ++i) {
      state = state * 1664525 + 1013904223;
      block += static_cast<char>(state >> 24);
    }
    block.replace(each.scale_at, 2, std::string("\x00\x38", 2));                            // 0.5
    if (each.offset_at >= 0) block.replace(each.offset_at, 2, std::string("\x00\x34", 2));  // 0.25
    std::vector<float> read(type.elements);
    DecodeBlocks(type, block, read.data());
    CHECK(std::vector<float>{read[0], read[1], read[17], read[type.elements / 2 + 3],
                             read.back()} == each.some);
    double sum = 0;
    for (size_t i = 0; i < read.size(); ++i) sum += read[i] * static_cast<double>(i + 1);
    CHECK(sum == each.sum);
  }
}

TEST_CASE("a file of one type has a table of another, as llama-quantize writes it") {
  const std::string bytes = GgufWriter()
                                .Tensor("token_embd.weight", {512, 2}, 14, std::string(840, 'x'))
                                .Tensor("blk.0.ffn_up.weight", {512}, 2, std::string(288, 'x'))
                                .File();
  const auto file = GgufFile::Parse(bytes);
  REQUIRE_OK(file.status());
  CHECK(file->tensors()[0].bytes.size() == 840);
  CHECK(file->tensors()[1].bytes.size() == 288);
}

TEST_CASE("a file cut anywhere is refused, and so is what contradicts itself") {
  const std::string whole = Small().File();
  // The last tensor's bytes end before the file does.
  for (size_t size = 0; size < whole.size() - 24; ++size) {
    INFO(size);
    CHECK(GgufFile::Parse(absl::string_view(whole).substr(0, size)).status().code() ==
          absl::StatusCode::kInvalidArgument);
  }
  const auto refuse = [](const GgufWriter& writer, absl::StatusCode code, const char* why) {
    CHECK_STATUS(GgufFile::Parse(writer.File()), code, why);
  };
  const auto kInvalid = absl::StatusCode::kInvalidArgument;
  const auto kLack = absl::StatusCode::kUnimplemented;
  const std::string data(64, 'x');
  refuse(GgufWriter(1), kLack, "GGUF version 1");
  refuse(GgufWriter().Count("a", 1).Count("a", 1), kInvalid, "the key 'a' twice");
  refuse(GgufWriter().Fact("a", 13, "x"), kInvalid, "a value of type 13");
  refuse(GgufWriter().Count("general.alignment", 0), kInvalid, "general.alignment is 0");
  refuse(GgufWriter().Fact("a", 9, std::string("\x09\0\0\0\1\0\0\0\0\0\0\0", 12)), kLack,
         "an array of arrays");
  refuse(GgufWriter().Fact("a", 9, std::string("\x08\0\0\0\1\0\0\0\0\0\0\x7f", 12)), kInvalid,
         "are left");
  refuse(GgufWriter().Tensor("t", {16}, 0, data).Tensor("t", {16}, 0, data), kInvalid,
         "the tensor 't' twice");
  refuse(GgufWriter().Tensor("t", {16}, 0, data).Tensor("u", {16}, 0, data, 32), kInvalid,
         "'u' lies where another one lies");
  refuse(GgufWriter().Tensor("t", {8}, 0, data, 4), kInvalid, "lies at an odd place");
  refuse(GgufWriter().Tensor("t", {16}, 0, data, 64), kInvalid, "beyond the file's end");
  refuse(GgufWriter().Tensor("t", {17}, 2, data), kInvalid, "no multiple of 32 as Q4_0 wants");
  refuse(GgufWriter().Tensor("t", {128}, 14, data), kInvalid, "no multiple of 256 as Q6_K wants");
  refuse(GgufWriter().Tensor("t", {32}, 10, data), kLack, "elements of type Q2_K (10)");
  refuse(GgufWriter().Tensor("t", {32}, 4711, data), kLack, "elements of type 4711 are");
  refuse(GgufWriter().Tensor("t", {0}, 0, data), kInvalid, "a size that no tensor has");
  refuse(GgufWriter().Tensor("t", {1ull << 40, 1ull << 40}, 0, data), kInvalid,
         "a size that no tensor has");
  refuse(GgufWriter().Tensor("t", {1, 1, 1, 1, 1}, 0, data), kInvalid, "has 5 axes");
}

TEST_CASE("no byte that is flipped makes it read what is not there") {
  const std::string whole = Small().File();
  std::mt19937 random(7);  // NOLINT(cert-msc51-cpp): the same bytes in each run
  for (int round = 0; round < 20000; ++round) {
    std::string bytes = whole;
    for (unsigned i = 0; i <= random() % 3; ++i) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    const auto file = GgufFile::Parse(bytes);
    if (!file.ok()) continue;
    for (const GgufTensor& tensor : file->tensors()) {
      REQUIRE(tensor.bytes.data() >= bytes.data());
      REQUIRE(tensor.bytes.data() + tensor.bytes.size() <= bytes.data() + bytes.size());
    }
  }
}

}  // namespace
}  // namespace convene::worker
