#include "worker_runtime/data/prepare/byte_stream.h"

#include <zstd.h>

#include <memory>
#include <string>

#include "tools/base/files.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"
#include "worker_runtime/data/prepare/testing/packed_files.h"

namespace convene::worker {
namespace {

using convene::testing::TempDir;

// Reads in blocks of `block` bytes.
absl::StatusOr<std::string> ReadAll(const SourceFile& source, size_t block = 7,
                                    int64_t skipped = 0) {
  auto stream = ByteStream::Open(source);
  if (!stream.ok()) return stream.status();
  if (absl::Status status = (*stream)->Skip(skipped); !status.ok()) return status;
  std::string text;
  while (true) {
    std::string buffer(block, '\0');
    const auto n = (*stream)->Read(buffer.data(), block);
    if (!n.ok()) return n.status();
    text += buffer.substr(0, *n);
    if (*n < block) break;
  }
  CHECK((*stream)->file_offset() == source.bytes);
  return text;
}

std::string LongText() {
  std::string text;
  for (int i = 0; i < 200'000; ++i) text += std::to_string(i * 7919 % 100'003) + " ";
  return text;
}

TEST_CASE("the packing is known by the content, whatever the name") {
  TempDir dir;
  const std::string text = LongText();
  for (const std::string& content : {text, Gzip(text), Zstd(text)}) {
    for (const std::string name : {"plain.txt", "packed.gz", "packed.zst"}) {
      const SourceFile source = PutSource(dir.File(name), content);
      CHECK(*ReadAll(source, 1000) == text);
      CHECK(*ReadAll(source, 1 << 20, 12345) == text.substr(12345));
    }
  }
}

TEST_CASE("packed parts one behind the other are one text") {
  TempDir dir;
  CHECK(*ReadAll(PutSource(dir.File("g"), Gzip("one ") + Gzip("") + Gzip("two"))) == "one two");
  CHECK(*ReadAll(PutSource(dir.File("p"), Gzip("one") + std::string(600, '\0'))) == "one");
  CHECK(*ReadAll(PutSource(dir.File("z"), Zstd("one ") + Zstd("") + Zstd("two"))) == "one two");
  const std::string skipped("\x52\x2A\x4D\x18\x03\0\0\0abc", 11);
  CHECK(*ReadAll(PutSource(dir.File("s"), skipped + Zstd("text"))) == "text");
}

TEST_CASE("packed data that ends too early is told, wherever it ends") {
  TempDir dir;
  for (const std::string& whole : {Gzip("a few words"), Zstd("a few words")}) {
    for (size_t size = 4; size < whole.size(); ++size) {
      INFO(size << " of " << whole.size());
      CHECK_STATUS(ReadAll(PutSource(dir.File("cut"), whole.substr(0, size))),
                   absl::StatusCode::kDataLoss,
                   "data ends too early, at byte " + std::to_string(size));
    }
  }
}

TEST_CASE("damaged packed data is told with its place") {
  TempDir dir;
  const std::string text = LongText();
  std::string gzip = Gzip(text);
  gzip[gzip.size() - 6] ^= 1;  // the checksum
  CHECK_STATUS(ReadAll(PutSource(dir.File("g"), gzip), 1 << 20), absl::StatusCode::kDataLoss,
               "the gzip data is damaged at byte");
  CHECK_STATUS(ReadAll(PutSource(dir.File("t"), Gzip("text") + "trailing")),
               absl::StatusCode::kDataLoss, "damaged at byte");
  std::string zstd = Zstd(text);
  for (size_t i = zstd.size() / 2; i < zstd.size() / 2 + 64; ++i) zstd[i] = '\x55';
  const auto read = ReadAll(PutSource(dir.File("z"), zstd), 1 << 20);
  // zstd's frames of one call have no checksum, so that a text of the right length may pass.
  if (!read.ok()) CHECK_STATUS(read, absl::StatusCode::kDataLoss, "damaged at byte");
}

TEST_CASE("a frame that needs too large a window is whole, and another reader is named") {
  TempDir dir;
  const std::unique_ptr<ZSTD_CCtx, size_t (*)(ZSTD_CCtx*)> context(ZSTD_createCCtx(),
                                                                   ZSTD_freeCCtx);
  const auto pack = [&](int window_log, std::string text) {
    ZSTD_CCtx_setParameter(context.get(), ZSTD_c_windowLog, window_log);
    std::string packed(ZSTD_compressBound(text.size()), '\0');
    ZSTD_inBuffer in = {text.data(), text.size(), 0};
    ZSTD_outBuffer out = {packed.data(), packed.size(), 0};
    // In two calls, so that the frame does not say how long its content is.
    ZSTD_compressStream2(context.get(), &out, &in, ZSTD_e_continue);
    REQUIRE(ZSTD_compressStream2(context.get(), &out, &in, ZSTD_e_end) == 0);
    packed.resize(out.pos);
    return packed;
  };
  CHECK(*ReadAll(PutSource(dir.File("27"), pack(27, "text"))) == "text");
  const auto wide = ReadAll(PutSource(dir.File("28"), pack(28, "text")));
  CHECK_STATUS(wide, absl::StatusCode::kInvalidArgument, dir.File("28") + " was packed with");
  CHECK_STATUS(wide, absl::StatusCode::kInvalidArgument, "--through 'zstd -dc --long=31 {}'");
}

TEST_CASE("files of other formats are named") {
  TempDir dir;
  const auto refusal = [&](const std::string& content) {
    return ByteStream::Open(PutSource(dir.File("f"), content)).status();
  };
  CHECK_STATUS(refusal("PAR1\x15\x04"), absl::StatusCode::kInvalidArgument, "is a Parquet file");
  CHECK_STATUS(refusal("\x93NUMPY\1"), absl::StatusCode::kInvalidArgument, "array of NumPy");
  CHECK_STATUS(refusal(std::string("\x40\1\0\0\0\0\0\0{\"a\"", 12)),
               absl::StatusCode::kInvalidArgument, "is a safetensors file");
  CHECK_STATUS(refusal(std::string("GGUF\3\0\0\0", 8)), absl::StatusCode::kInvalidArgument,
               "is a GGUF file");
  CHECK_STATUS(refusal("PK\x03\x04"), absl::StatusCode::kInvalidArgument, "is a zip archive");
  CHECK_STATUS(refusal("\xFD"
                       "7zXZ"),
               absl::StatusCode::kInvalidArgument, "is packed by xz");
  CHECK_STATUS(refusal(std::string("\xFF\xFEh\0i\0", 6)), absl::StatusCode::kInvalidArgument,
               "UTF-16");
  for (const std::string text : {"PAR1 is a magic number", "ARROW1", "GGUF 3", "BZh9", "Obj"}) {
    CHECK(*ReadAll(PutSource(dir.File("f"), text), 1000) == text);
  }
}

TEST_CASE("a file that changes is refused") {
  TempDir dir;
  SourceFile source = PutSource(dir.File("f"), "some text");
  REQUIRE_OK(WriteFileAtomic(dir.File("f"), "other text"));
  CHECK_STATUS(ReadAll(source), absl::StatusCode::kFailedPrecondition, "changed while it was read");
  source = PutSource(dir.File("f"), "some text");
  CHECK_STATUS(ReadAll(source, 7, 100), absl::StatusCode::kFailedPrecondition, "changed");
  const SourceFile packed = PutSource(dir.File("g"), Gzip("some text"));
  CHECK_STATUS(ReadAll(packed, 7, 100), absl::StatusCode::kDataLoss, "less content");
}

}  // namespace
}  // namespace convene::worker
