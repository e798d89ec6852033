// Reads JSON (RFC 8259) with RapidJSON's reader, which does not recurse. PURE.
#pragma once

#include <emmintrin.h>
#include <rapidjson/reader.h>

#include <array>
#include <bit>
#include <cstddef>
#include <cstring>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace convene::worker {

// By the character behind a backslash the one that they stand for, or 0.
inline constexpr std::array<char, 256> kEscapes = [] {
  std::array<char, 256> escapes = {};
  constexpr absl::string_view kNames = "\"\\/bfnrt", kCharacters = "\"\\/\b\f\n\r\t";
  for (size_t i = 0; i < kNames.size(); ++i) escapes[kNames[i]] = kCharacters[i];
  return escapes;
}();

// The reader's own stream, with the scan below in place of RapidJSON's.
struct JsonStream : rapidjson::InsituStringStream {
  explicit JsonStream(char* text) : rapidjson::InsituStringStream(text) {}
};

}  // namespace convene::worker

namespace rapidjson {

template <>
struct StreamTraits<convene::worker::JsonStream> {
  enum { copyOptimization = 1 };
};

// As for RapidJSON's own stream in memory. It stops at the text's zero byte, and its aligned loads
// begin no later than there.
template <>
inline void SkipWhitespace(convene::worker::JsonStream& stream) {
  stream.src_ = const_cast<char*>(SkipWhitespace_SIMD(stream.src_));
}

// Goes to the next quote, control character or \\u, undoes the other escapes on the way, and copies
// the rest. RapidJSON's scan goes byte by byte to a multiple of sixteen behind each escape, and
// lets some control characters pass.
template <>
template <>
inline void Reader::ScanCopyUnescapedString(convene::worker::JsonStream& stream,
                                            convene::worker::JsonStream&) {
  const __m128i quote = _mm_set1_epi8('"');
  const __m128i backslash = _mm_set1_epi8('\\');
  const __m128i last_control = _mm_set1_epi8(0x1F);
  char *from = stream.src_, *to = stream.dst_;
  while (true) {
    const __m128i block = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    const __m128i is_control = _mm_cmpeq_epi8(_mm_max_epu8(block, last_control), last_control);
    const __m128i is_mark =
        _mm_or_si128(_mm_cmpeq_epi8(block, quote), _mm_cmpeq_epi8(block, backslash));
    const auto ends = static_cast<unsigned>(_mm_movemask_epi8(_mm_or_si128(is_mark, is_control)));
    const int count = ends == 0 ? 16 : std::countr_zero(ends);
    if (from - to >= 16) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to), block);
    } else if (from != to) {
      std::memmove(to, from, count);
    }
    from += count;
    to += count;
    if (ends == 0) continue;
    const char escaped =
        *from == '\\' ? convene::worker::kEscapes[static_cast<unsigned char>(from[1])] : 0;
    if (escaped == 0) break;
    *to++ = escaped;
    from += 2;
  }
  stream.src_ = from;
  stream.dst_ = to;
}

}  // namespace rapidjson

namespace convene::worker {

// Copies `text` to *buffer, with room behind it for the reader's wide loads. InvalidArgument, as
// ReadJson: what the reader would let pass (bytes that are no UTF-8), and a zero byte, which ends a
// text to it.
absl::Status CopyForJsonReader(absl::string_view text, std::string* buffer);

// The same for half a surrogate pair, when `buffer` has what was read.
absl::Status CheckSurrogates(absl::string_view text, absl::string_view buffer);

// The reader's complaint, or `why_stopped`. REQUIRES: result.IsError().
absl::Status JsonError(absl::string_view text, const rapidjson::ParseResult& result,
                       absl::string_view why_stopped);

// Hands what `text` says to `handler` (rapidjson/reader.h, concept Handler). Its strings are views
// of *buffer; that they are UTF-8 is certain only once ReadJson has returned OK, as half a
// surrogate pair is found last. `kFlags`: more of rapidjson::ParseFlag. `why_stopped`: what an
// error says where the handler stopped the reader. InvalidArgument: no JSON, with the byte, and the
// line where there are several.
template <unsigned kFlags = 0, typename Handler>
absl::Status ReadJson(absl::string_view text, std::string* buffer, Handler* handler,
                      absl::string_view why_stopped = "") {
  absl::Status status = CopyForJsonReader(text, buffer);
  if (!status.ok()) return status;
  rapidjson::Reader reader;
  JsonStream stream(buffer->data());
  const rapidjson::ParseResult result =
      reader.Parse<rapidjson::kParseInsituFlag | rapidjson::kParseIterativeFlag |
                   rapidjson::kParseFullPrecisionFlag | kFlags>(stream, *handler);
  if (result.IsError()) return JsonError(text, result, why_stopped);
  return CheckSurrogates(text, *buffer);
}

}  // namespace convene::worker
