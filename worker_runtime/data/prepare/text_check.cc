#include "worker_runtime/data/prepare/text_check.h"

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/data/prepare/byte_stream.h"
#include "worker_runtime/data/store/foreign_formats.h"
#include "worker_runtime/data/store/token_source.h"
#include "worker_runtime/tokenizer/unicode.h"

namespace convene::worker {
namespace {

constexpr size_t kHeadBytes = 4096;
constexpr size_t kBytesOfControl = 16;
// U+10FFFF: so long is a character that the head's end may cut.
constexpr size_t kCharacterBytesMax = 4;

bool IsControl(char byte) {
  return static_cast<unsigned char>(byte) < 0x20 &&
         !absl::StrContains("\b\t\n\v\f\r\x1B", absl::string_view(&byte, 1));
}

absl::Status NoText(const std::string& path) {
  const absl::StatusOr<std::unique_ptr<TokenSource>> tokens = OpenTokenSource(path);
  if (tokens.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("data: ", path, " is no text: it holds tokens already (", (*tokens)->kind(),
                     "). Train on it as it is (`convene-train --data ", path,
                     "`), or write it in another format (`convene data convert`)"));
  }
  // One of two files that belong together, or a damaged one.
  if (TokenFormatOf(path).has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data: ", path, " is no text, and as a file of tokens: ", tokens.status().message()));
  }
  const std::string index = MegatronPathsOf(path).index;
  const std::string advice =
      absl::EndsWith(path, ".bin")
          ? absl::StrCat("If these are Megatron's tokens, their index ", index,
                         " is missing: copy it beside them, and train with `convene-train --data ",
                         path, "`; if a `convene data prepare` was to write the file, run it again")
          : absl::StrCat("Bytes of value 0 in a text are taken out by `tr -d '\\0' < ", path, "`");
  return absl::InvalidArgumentError(absl::StrCat(
      "data: ", path, " is no text: its first bytes are those of tokens or of another ",
      "binary file, and no format of tokens is known by them. ", advice));
}

}  // namespace

bool BeginsAsNoText(absl::string_view head, absl::string_view separator) {
  const bool zero_separates = absl::StrContains(separator, absl::string_view("\0", 1));
  size_t zeros = 0, controls = 0;
  for (const char byte : head) {
    if (byte == '\0' ? !zero_separates : IsControl(byte)) ++controls;
    if (byte == '\0' && !zero_separates) ++zeros;
  }
  if (controls * kBytesOfControl > head.size()) return true;
  return zeros > 0 && ValidUtf8Prefix(head) + kCharacterBytesMax <= head.size();
}

absl::Status CheckText(const SourceFile& source, absl::string_view separator) {
  CONVENE_ASSIGN_OR_RETURN(const std::unique_ptr<ByteStream> stream, ByteStream::Open(source));
  std::string head(kHeadBytes, '\0');
  CONVENE_ASSIGN_OR_RETURN(const size_t n, stream->Read(head.data(), head.size()));
  return BeginsAsNoText(absl::string_view(head).substr(0, n), separator) ? NoText(source.path)
                                                                         : absl::OkStatus();
}

}  // namespace convene::worker
