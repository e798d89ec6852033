// PURE. Finds one text in a line of JSON, or says what is there.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace convene::worker {

// JSON nested deeper than this is refused, as by most readers.
inline constexpr int kMostJsonDepth = 512;

// The keys of the JSON object that the line is, in its order, for people: long ones are cut.
// InvalidArgument: it is no object.
absl::StatusOr<std::vector<std::string>> KeysOfJsonObject(absl::string_view line);

// Keeps its buffers from line to line. Not thread-safe.
class JsonField {
 public:
  // `path`: a key, or keys with dots between for objects in objects. REQUIRES: no part is empty.
  explicit JsonField(const std::string& path);

  // The text at the path, valid until the next call. Of equal keys the last counts, as in Python.
  // The whole line is read by RFC 8259 (RapidJSON's reader, which does not recurse) and must be
  // UTF-8; NaN, Infinity and -Infinity pass as numbers, because Python writes them.
  // InvalidArgument: the line is broken (why, and at which byte), no JSON object, has no such
  // field (the text names its keys), or the field is no text.
  absl::StatusOr<absl::string_view> Find(absl::string_view line);

 private:
  const std::string path_;
  const std::vector<std::string> keys_;
  std::string buffer_;  // of ReadJson
};

}  // namespace convene::worker
