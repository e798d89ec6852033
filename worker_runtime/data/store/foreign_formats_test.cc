#include <cerrno>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/base/files.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"
#include "worker_runtime/data/store/foreign_formats.h"
#include "worker_runtime/data/store/token_source.h"
#include "worker_runtime/data/testing/token_files.h"

namespace convene::worker {
namespace {

using convene::testing::TempDir;
using testing::DocumentsOf;
using testing::TestDocument;
using Documents = std::vector<TestDocument>;

void Put(const std::string& path, const std::string& bytes) {
  REQUIRE_OK(WriteFileAtomic(path, bytes));
}

template <typename T>
std::string Values(const std::vector<int64_t>& values) {
  std::string bytes;
  for (const int64_t value : values) {
    const T narrow = static_cast<T>(value);
    bytes.append(reinterpret_cast<const char*>(&narrow), sizeof(narrow));
  }
  return bytes;
}

// An index of sequences one behind the other.
std::string MegatronIndex(int code, int64_t width, const std::vector<int64_t>& lengths,
                          const std::vector<int64_t>& documents) {
  std::vector<int64_t> offsets;
  int64_t offset = 0;
  for (const int64_t length : lengths) {
    offsets.push_back(offset);
    offset += length * width;
  }
  return std::string(kMegatronMagic, 9) + Values<uint64_t>({1}) + Values<uint8_t>({code}) +
         Values<uint64_t>(
             {static_cast<int64_t>(lengths.size()), static_cast<int64_t>(documents.size())}) +
         Values<int32_t>(lengths) + Values<int64_t>(offsets) + Values<int64_t>(documents);
}

TEST_CASE("Megatron's tokens of every whole-number type are read, by any of their names") {
  const TempDir dir;
  const auto check = [&](int code, int64_t width, const std::string& tokens) {
    INFO("type " << code);
    Put(dir.File("x.bin"), tokens);
    Put(dir.File("x.idx"), MegatronIndex(code, width, {2, 0, 1}, {0, 2, 3}));
    for (const char* name : {"x.bin", "x.idx", "x"}) {
      CHECK(TokenFormatOf(dir.File(name)) == TokenFormat::kMegatron);
      const auto file = OpenTokenSource(dir.File(name));
      REQUIRE_OK(file);
      CHECK(DocumentsOf(**file) == Documents{{{7, 100}, {}}, {{3}, {}}});
      CHECK((*file)->sequence_count() == 3);
      CHECK((*file)->sequence_end(0) == 2);
      CHECK((*file)->sequence_end(1) == 2);
      CHECK((*file)->sequence_end(2) == 3);
      CHECK((*file)->vocabulary_size() == 0);
    }
  };
  check(1, 1, Values<uint8_t>({7, 100, 3}));
  check(2, 1, Values<int8_t>({7, 100, 3}));
  check(3, 2, Values<int16_t>({7, 100, 3}));
  check(4, 4, Values<int32_t>({7, 100, 3}));
  check(5, 8, Values<int64_t>({7, 100, 3}));
  check(8, 2, Values<uint16_t>({7, 100, 3}));
}

TEST_CASE("a value that is no id reads as -1") {
  const TempDir dir;
  Put(dir.File("x.bin"), Values<int64_t>({-5, int64_t{1} << 31, (int64_t{1} << 31) - 1}));
  Put(dir.File("x.idx"), MegatronIndex(5, 8, {3}, {0, 1}));
  const auto file = OpenTokenSource(dir.File("x"));
  REQUIRE_OK(file);
  CHECK(DocumentsOf(**file) == Documents{{{-1, -1, 2147483647}, {}}});
}

TEST_CASE("an index that lies about its tokens is refused in words") {
  const TempDir dir;
  const std::string tokens = Values<uint16_t>({1, 2, 3, 4, 5});
  const auto status = [&](const std::string& index) {
    Put(dir.File("x.bin"), tokens);
    Put(dir.File("x.idx"), index);
    return OpenMegatron(dir.File("x")).status();
  };
  const std::string good = MegatronIndex(8, 2, {2, 3}, {0, 1, 2});
  CHECK_OK(status(good));
  CHECK_OK(status(good + std::string(2, '\0')));  // modes
  using Code = absl::StatusCode;
  CHECK_STATUS(status(MegatronIndex(8, 2, {2, 2}, {0, 1, 2})), Code::kDataLoss,
               "holds 8 bytes (2 sequences of uint16), but it has 10");
  CHECK_STATUS(status(MegatronIndex(4, 4, {2, 3}, {0, 1, 2})), Code::kDataLoss, "but it has 10");
  CHECK_STATUS(status(MegatronIndex(8, 4, {2, 3}, {0, 1, 2})), Code::kDataLoss,
               "sequence 1 has 3 tokens at byte 8 instead of 4");
  CHECK_STATUS(status(MegatronIndex(8, 2, {6, -1}, {0, 1, 2})), Code::kDataLoss, "has -1 tokens");
  CHECK_STATUS(status(MegatronIndex(8, 2, {2, 3}, {0, 2, 1})), Code::kDataLoss,
               "document 2 begins");
  CHECK_STATUS(status(MegatronIndex(8, 2, {2, 3}, {1, 2})), Code::kDataLoss, "document 0 begins");
  CHECK_STATUS(status(MegatronIndex(8, 2, {2, 3}, {0, 1})), Code::kDataLoss,
               "end at sequence 1 of 2");
  CHECK_STATUS(status(MegatronIndex(8, 2, {2, 3}, {})), Code::kDataLoss, "nothing of documents");
  CHECK_STATUS(status(MegatronIndex(7, 4, {2, 3}, {0, 1, 2})), Code::kInvalidArgument, "type 7");
  std::string later = good;
  later[9] = 2;
  CHECK_STATUS(status(later), Code::kFailedPrecondition, "index version 2");
  for (size_t size = 0; size < good.size(); ++size) {
    CHECK(status(good.substr(0, size)).code() == Code::kDataLoss);
  }
  std::string huge = good;
  huge.replace(18, 16, Values<uint64_t>({INT64_MAX / 4, INT64_MAX / 2}));
  CHECK_STATUS(status(huge), Code::kDataLoss, "damaged or cut short");
  Put(dir.File("x.idx"), good);
  REQUIRE_OK(RemoveTree(dir.File("x.bin")));
  CHECK_STATUS(OpenTokenSource(dir.File("x")), Code::kNotFound, "x.bin");
}

std::string LlmcHeader(int32_t magic, int32_t version, int32_t count) {
  std::vector<int64_t> header(256, 0);
  header[0] = magic;
  header[1] = version;
  header[2] = count;
  return Values<int32_t>(header);
}

TEST_CASE("llm.c's tokens of GPT-2 and Llama 3 are read") {
  const TempDir dir;
  Put(dir.File("g.bin"), LlmcHeader(20240520, 1, 3) + Values<uint16_t>({1, 50256, 65535}));
  Put(dir.File("l.bin"), LlmcHeader(20240801, 7, 2) + Values<uint32_t>({128000, 5}));
  const auto gpt2 = OpenTokenSource(dir.File("g.bin"));
  const auto llama = OpenTokenSource(dir.File("l.bin"));
  REQUIRE_OK(gpt2);
  REQUIRE_OK(llama);
  CHECK(DocumentsOf(**gpt2) == Documents{{{1, 50256, 65535}, {}}});
  CHECK(DocumentsOf(**llama) == Documents{{{128000, 5}, {}}});
  CHECK_FALSE((*gpt2)->knows_documents());
  CHECK((*gpt2)->content_hash() != (*llama)->content_hash());
}

TEST_CASE("llm.c's files of other kinds, versions and lengths are refused") {
  const TempDir dir;
  const auto status = [&](const std::string& bytes) {
    Put(dir.File("x"), bytes);
    return OpenTokenSource(dir.File("x")).status();
  };
  using Code = absl::StatusCode;
  const std::string tokens = Values<uint16_t>({1, 2, 3});
  CHECK_OK(status(LlmcHeader(20240520, 1, 3) + tokens));
  CHECK_OK(status(LlmcHeader(20240520, 1, 0)));
  CHECK_STATUS(status(LlmcHeader(20240520, 1, 4) + tokens), Code::kDataLoss, "says that it has 4");
  CHECK_STATUS(status(LlmcHeader(20240520, 1, -1) + tokens), Code::kDataLoss, "has -1");
  CHECK_STATUS(status(LlmcHeader(20240520, 1, 3).substr(0, 1000)), Code::kDataLoss, "cut short");
  CHECK_STATUS(status(LlmcHeader(20240520, 2, 3) + tokens), Code::kFailedPrecondition, "version 2");
  CHECK_STATUS(status(LlmcHeader(20240522, 1, 3) + tokens), Code::kInvalidArgument,
               "not a file of tokens");  // questions with four answers
}

TEST_CASE("nanotron's tokens are read with and without the files beside them") {
  const TempDir dir;
  const std::string path = dir.File("x.ds");
  const std::string two = Values<uint16_t>({9, 8, 7, 65535});
  const auto read = [&](const std::string& tokens, std::optional<std::string> index,
                        std::optional<std::string> metadata, std::optional<std::string> loss) {
    for (const char* name : {"x.ds.index", "x.ds.metadata", "x.ds.loss"}) {
      REQUIRE_OK(RemoveTree(dir.File(name)));
    }
    Put(path, tokens);
    if (index.has_value()) Put(NanotronIndexPath(path), *index);
    if (metadata.has_value()) Put(NanotronMetadataPath(path), *metadata);
    if (loss.has_value()) Put(NanotronLossPath(path), *loss);
    return OpenTokenSource(path);
  };
  const std::string ends = Values<uint64_t>({1, 1, 4});
  const Documents three = {{{9}, {}}, {{}, {}}, {{8, 7, 65535}, {}}};
  auto file = read(two, ends, "gpt2|2\n4\n4 T", std::nullopt);
  REQUIRE_OK(file);
  CHECK(DocumentsOf(**file) == three);
  CHECK((*file)->tokenizer().path == "gpt2");
  file = read(two, ends, std::nullopt, std::nullopt);
  REQUIRE_OK(file);
  CHECK(DocumentsOf(**file) == three);
  file = read(two, std::nullopt, "old\n4", std::nullopt);  // without a width: two
  REQUIRE_OK(file);
  CHECK(DocumentsOf(**file) == Documents{{{9, 8, 7, 65535}, {}}});
  CHECK_FALSE((*file)->knows_documents());
  REQUIRE_OK(read(two, ends, "", std::nullopt));  // says nothing: two
  file = read(Values<uint32_t>({200000, 1}), Values<uint64_t>({2}), "a|b|4\n2\n2 T",
              std::string("\1\0", 2));
  REQUIRE_OK(file);
  CHECK(DocumentsOf(**file) == Documents{{{200000, 1}, {1, 0}}});
  CHECK((*file)->tokenizer().path == "a|b");
  using Code = absl::StatusCode;
  CHECK_STATUS(read(two, std::nullopt, std::nullopt, std::nullopt), Code::kInvalidArgument,
               "how wide a token is");
  CHECK_STATUS(read(two, Values<uint64_t>({3}), std::nullopt, std::nullopt), Code::kDataLoss,
               "says that");
  CHECK_STATUS(read(two, Values<uint64_t>({5, 4}), std::nullopt, std::nullopt), Code::kDataLoss,
               "document 0 ends at token 5");
  CHECK_STATUS(read(two, ends, "gpt2|4\n4", std::nullopt), Code::kDataLoss, "4 a token");
  CHECK_STATUS(read(two, ends, "gpt2|2\n5", std::nullopt), Code::kDataLoss,
               "says that there are 5 tokens");
  CHECK_STATUS(read(two, ends.substr(1), "gpt2|2\n4", std::nullopt), Code::kDataLoss, "cut short");
  CHECK_STATUS(read(two.substr(1), std::nullopt, "gpt2|2\n4", std::nullopt), Code::kDataLoss,
               "cut short");
  CHECK_STATUS(read(two, ends, "gpt2|2\n4", std::string("\1")), Code::kDataLoss, "1 bytes for 4");
  CHECK_STATUS(read(two, ends, "gpt2|3\n4", std::nullopt), Code::kInvalidArgument,
               "must be 2 or 4");
  CHECK_STATUS(read(two, ends, "gpt2|2\nmany", std::nullopt), Code::kInvalidArgument, "'many'");
}

TEST_CASE("files that the other programs wrote are read") {
  const std::string folder = "worker_runtime/data/store/golden/";  // make_foreign_files.py
  for (const auto& [name, largest] : std::vector<std::pair<std::string, int32_t>>{
           {"megatron16", 49999}, {"megatron32", 128255}}) {
    const auto file = OpenTokenSource(folder + name);
    REQUIRE_OK(file);
    CHECK(DocumentsOf(**file) == Documents{{{5, 4, 3}, {}}, {}, {{2}, {}}, {{largest, 1}, {}}});
  }
  for (const auto& [name, largest] : std::vector<std::pair<std::string, int32_t>>{
           {"nanotron16.ds", 49999}, {"nanotron32.ds", 128255}}) {
    const auto file = OpenTokenSource(folder + name);
    REQUIRE_OK(file);
    CHECK(DocumentsOf(**file) ==
          Documents{{{5, 4, 3}, {1, 0, 1}}, {}, {{2}, {1}}, {{largest, 1}, {1, 0}}});
    CHECK((*file)->tokenizer().path == "gpt2");
  }
}

TEST_CASE("what is no file of tokens is not taken for one") {
  const TempDir dir;
  Put(dir.File("a.txt"), "Once upon a time");
  Put(dir.File("empty.bin"), "");
  for (const char* name : {"a.txt", "empty.bin"}) {
    CHECK_FALSE(TokenFormatOf(dir.File(name)).has_value());
    CHECK_STATUS(OpenTokenSource(dir.File(name)), absl::StatusCode::kInvalidArgument,
                 "not a file of tokens");
  }
  CHECK_FALSE(TokenFormatOf(dir.path()).has_value());
  CHECK_STATUS(OpenTokenSource(dir.File("none")), absl::StatusCode::kNotFound, "no such file");
}

TEST_CASE("a file that may not be read is no file of an unknown format") {
  const TempDir dir;
  Put(dir.File("a.bin"), "");
  Put(dir.File("m.idx"), "");
  const ScopedFileFault fault([&](FileOp op, const std::string& path) {
    const bool is_closed = path == dir.File("a.bin") || path == dir.File("m.idx");
    return op == FileOp::kOpen && is_closed ? EACCES : 0;
  });
  CHECK_STATUS(OpenTokenSource(dir.File("a.bin")), absl::StatusCode::kPermissionDenied, "a.bin");
  CHECK_STATUS(OpenTokenSource(dir.File("m")), absl::StatusCode::kPermissionDenied, "m.idx");
}

}  // namespace
}  // namespace convene::worker
