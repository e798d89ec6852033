// Reads JSON (RFC 8259) with RapidJSON's reader, which does not recurse. PURE.
#pragma once

#include <rapidjson/reader.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace convene::worker {

// Copies `text` to *buffer, with room behind it for the reader's wide loads. InvalidArgument, as
// ReadJson: what the reader would let pass (bytes that are no UTF-8, half a surrogate pair), and a
// zero byte, which ends a text to it.
absl::Status CopyForJsonReader(absl::string_view text, std::string* buffer);

// The reader's complaint, or `why_stopped`. REQUIRES: result.IsError().
absl::Status JsonError(absl::string_view text, const rapidjson::ParseResult& result,
                       absl::string_view why_stopped);

// Hands what `text` says to `handler` (rapidjson/reader.h, concept Handler). Its strings are views
// of *buffer, and UTF-8. `kFlags`: more of rapidjson::ParseFlag. `why_stopped`: what an error says
// where the handler stopped the reader. InvalidArgument: no JSON, with the byte, and the line where
// there are several.
template <unsigned kFlags = 0, typename Handler>
absl::Status ReadJson(absl::string_view text, std::string* buffer, Handler* handler,
                      absl::string_view why_stopped = "") {
  absl::Status status = CopyForJsonReader(text, buffer);
  if (!status.ok()) return status;
  rapidjson::Reader reader;
  rapidjson::InsituStringStream stream(buffer->data());
  const rapidjson::ParseResult result =
      reader.Parse<rapidjson::kParseInsituFlag | rapidjson::kParseIterativeFlag |
                   rapidjson::kParseFullPrecisionFlag | kFlags>(stream, *handler);
  return result.IsError() ? JsonError(text, result, why_stopped) : absl::OkStatus();
}

}  // namespace convene::worker
