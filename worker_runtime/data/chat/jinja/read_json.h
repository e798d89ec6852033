// PURE. JSON to a value of the template language.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker_runtime/data/chat/jinja/value.h"

namespace convene::worker::jinja {

enum class LargeIntegers {
  kRefuse,
  kAsFloatsOnTop,  // where they are values of the outermost object, such as a record's number
  kAsFloats
};

// The value that Python's json.loads gives: keys keep their order, and of a key that comes twice
// the last value counts. An integer beyond 64 bits with a sign is refused, or becomes a float:
// Hugging Face writes such ones into tokenizer_config.json. InvalidArgument, with the byte: not
// JSON (RFC 8259: no NaN), not UTF-8, an integer that is refused, or deeper than kMaxValueDepth.
absl::StatusOr<Value> ReadJson(absl::string_view text,
                               LargeIntegers large_integers = LargeIntegers::kRefuse);

}  // namespace convene::worker::jinja
