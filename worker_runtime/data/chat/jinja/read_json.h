// PURE. JSON to a value of the template language.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker_runtime/data/chat/jinja/value.h"

namespace convene::worker::jinja {

// The value that Python's json.loads gives: keys keep their order, and of a key that comes twice
// the last value counts. InvalidArgument, with the byte: not JSON (RFC 8259: no NaN), not UTF-8, an
// integer beyond 64 bits, or deeper than kMaxValueDepth.
absl::StatusOr<Value> ReadJson(absl::string_view text);

}  // namespace convene::worker::jinja
