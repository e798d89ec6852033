#include "worker_runtime/data/prepare/text_check.h"

#include <cstdint>
#include <string>
#include <vector>

#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"
#include "worker_runtime/data/prepare/testing/packed_files.h"

namespace convene::worker {
namespace {

using convene::testing::TempDir;

template <typename T>
std::string BytesOf(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

TEST_CASE("a text is one in whatever encoding of bytes, with a stray zero and cut anywhere") {
  const std::string words = "words \xC3\xA9\xE4\xB8\xAD\xF0\x9F\x98\x80, ";
  std::string text;
  while (text.size() < 200) text += words;
  for (size_t size = 0; size < 64; ++size) CHECK_FALSE(BeginsAsNoText(text.substr(0, size), ""));
  text[7] = '\0';
  text[6] = ' ';
  for (size_t size = 32; size < 64; ++size) CHECK_FALSE(BeginsAsNoText(text.substr(0, size), ""));
  CHECK_FALSE(BeginsAsNoText("\xE9t\xE9 en Latin-1\n", ""));
  CHECK_FALSE(BeginsAsNoText("\x1B$B$3$s$K$A$O\x1B(B", ""));  // ISO-2022-JP
  CHECK_FALSE(BeginsAsNoText("\t\n\t\r\n\f", ""));
  CHECK_FALSE(BeginsAsNoText(std::string("a\0b\0", 4), std::string("\0", 1)));
}

TEST_CASE("tokens of two and of four bytes are no text") {
  CHECK(BeginsAsNoText(BytesOf(std::vector<uint16_t>{464, 2068, 7586, 21831, 18045, 625}), ""));
  CHECK(BeginsAsNoText(BytesOf(std::vector<int32_t>{464, 92068, 107586}), ""));
  CHECK(BeginsAsNoText(BytesOf(std::vector<uint16_t>{'a', 'b'}), ""));
  CHECK(BeginsAsNoText(std::string(2000, '\0'), ""));
  // No byte of value 0 in a long text of Latin-1 but one.
  CHECK(BeginsAsNoText(std::string("\xE9t\xE9\0", 4) + std::string(1000, 'x'), ""));
}

TEST_CASE("the error says what the file is, or what is missing") {
  TempDir dir;
  const auto check = [&](const std::string& name, const std::string& content) {
    return CheckText(PutSource(dir.File(name), content), "");
  };
  const std::string tokens = BytesOf(std::vector<uint16_t>{464, 2068, 7586, 21831, 18045, 625});
  CHECK_OK(check("a.txt", "text"));
  CHECK_OK(check("a.gz", Gzip("text")));
  CHECK_STATUS(check("lost.bin", tokens), absl::StatusCode::kInvalidArgument,
               "lost.idx is missing: copy it beside them");
  CHECK_STATUS(check("lost.dat", tokens), absl::StatusCode::kInvalidArgument, "tr -d");
  CHECK_STATUS(check("packed.gz", Gzip(tokens)), absl::StatusCode::kInvalidArgument, "is no text");
  // llm.c's: 256 numbers, then the tokens.
  std::vector<int32_t> llmc(256);
  llmc[0] = 20240520;
  llmc[1] = 1;
  CHECK_STATUS(check("llmc.bin", BytesOf(llmc)), absl::StatusCode::kInvalidArgument,
               "it holds tokens already (llm.c");
  llmc[2] = 7;
  CHECK_STATUS(check("llmc.bin", BytesOf(llmc)), absl::StatusCode::kInvalidArgument,
               "says that it has 7 tokens");
  CHECK_STATUS(check("m.idx", std::string("MMIDIDX\0\0\1", 10)), absl::StatusCode::kInvalidArgument,
               "m.bin");
}

}  // namespace
}  // namespace convene::worker
