// One record of the input (a text, or a line of JSON) to the tokens of one document.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace convene::worker {

struct EncodedDocument {
  std::vector<int32_t> ids;
  // Empty: all tokens count in the loss. Else as many as ids: 1 counts as a target, 0 does not.
  std::vector<uint8_t> counted;
  // Bytes of text that the ids stand for.
  int64_t text_bytes = 0;
  // Sentences for a person, although the document is whole; a few.
  std::vector<std::string> warnings;

  void Clear() {
    ids.clear();
    counted.clear();
    text_bytes = 0;
    warnings.clear();
  }
};

// Not thread-safe: each thread has its own, made by a factory that `prepare` is given.
class DocumentEncoder {
 public:
  virtual ~DocumentEncoder() = default;

  // Replaces `document` by that of `record`. InvalidArgument: the record is broken (what, and where
  // in the record): the caller adds file and line, counts it, and decides whether to go on.
  virtual absl::Status Encode(absl::string_view record, EncodedDocument* document) = 0;
};

}  // namespace convene::worker
