#include "worker_runtime/tokenizer/json_reader.h"

#include <rapidjson/error/en.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "worker_runtime/tokenizer/unicode.h"

namespace convene::worker {
namespace {

absl::Status Broken(absl::string_view text, size_t byte, absl::string_view why) {
  const absl::string_view before = text.substr(0, byte);
  const auto newlines = std::count(before.begin(), before.end(), '\n');
  return absl::InvalidArgumentError(absl::StrCat(
      "broken JSON at byte ", byte + 1,
      newlines == 0 ? "" : absl::StrCat(" (line ", newlines + 1, ")"), ": ", std::string(why)));
}

// The value of the escape "\uXXXX" whose backslash would stand at `at`; 0 where there is none.
uint32_t EscapedUnit(absl::string_view text, size_t at) {
  uint32_t unit = 0;
  const absl::string_view escape = text.substr(std::min(at, text.size()), 6);
  if (escape.size() < 6 || escape[1] != 'u' || !absl::SimpleHexAtoi(escape.substr(2), &unit)) {
    return 0;
  }
  return unit;
}

// Where an escape is the second half of a surrogate pair without the first; npos: nowhere.
size_t FindLoneHalf(absl::string_view text) {
  for (size_t at = 0; (at = text.find('\\', at)) != absl::string_view::npos;) {
    const uint32_t unit = EscapedUnit(text, at);
    if (unit >= 0xDC00 && unit <= 0xDFFF) return at;
    at += unit >= 0xD800 && unit < 0xDC00 && EscapedUnit(text, at + 6) != 0 ? 12 : 2;
  }
  return absl::string_view::npos;
}

}  // namespace

absl::Status CopyForJsonReader(absl::string_view text, std::string* buffer) {
  if (const size_t valid = ValidUtf8Prefix(text); valid < text.size()) {
    return Broken(text, valid, "not UTF-8");
  }
  if (const size_t zero = text.find('\0'); zero != absl::string_view::npos) {
    return Broken(text, zero, "a zero byte");
  }
  // The reader looks at sixteen bytes at a time, so up to fifteen behind the text's end.
  buffer->clear();
  buffer->reserve(text.size() + 16);
  buffer->assign(text.data(), text.size());
  return absl::OkStatus();
}

absl::Status CheckSurrogates(absl::string_view text, absl::string_view buffer) {
  // The text is UTF-8, so only an escape can have made one.
  for (size_t at = 0; (at = buffer.find('\xED', at)) != absl::string_view::npos; ++at) {
    if (at + 1 == buffer.size() || static_cast<uint8_t>(buffer[at + 1]) < 0xA0) continue;
    const size_t half = FindLoneHalf(text);
    return half == absl::string_view::npos ? absl::OkStatus()
                                           : Broken(text, half, "half a surrogate pair");
  }
  return absl::OkStatus();
}

absl::Status JsonError(absl::string_view text, const rapidjson::ParseResult& result,
                       absl::string_view why_stopped) {
  const size_t byte = std::min(result.Offset(), text.size());
  if (result.Code() == rapidjson::kParseErrorTermination) return Broken(text, byte, why_stopped);
  return Broken(
      text, byte,
      byte == text.size() ? "the text ends too early" : rapidjson::GetParseError_En(result.Code()));
}

}  // namespace convene::worker
