// PURE. Values as text: Python's str() and repr(), and Hugging Face's tojson.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "worker_runtime/data/chat/jinja/budget.h"
#include "worker_runtime/data/chat/jinja/value.h"

namespace convene::worker::jinja {

// Appends str(value), as `{{ value }}` prints it; an undefined value prints nothing.
// ResourceExhausted: too long. Unimplemented: a namespace, function, range, view or generator.
absl::Status AppendString(const Value& value, Budget* budget, std::string* text);

// The same as a string.
absl::StatusOr<std::string> ToString(const Value& value, Budget* budget);

// json.dumps' arguments, with the defaults of transformers' tojson.
struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  // The text of one level; absent: all on one line.
  std::optional<std::string> indent;
  // Absent: ", ", or "," with an indent.
  std::optional<std::string> item_separator;
  std::string key_separator = ": ";
};

// Appends json.dumps(value). ResourceExhausted: too long. InvalidArgument: a value that JSON does
// not have, such as an undefined one.
absl::Status AppendJson(const Value& value, const JsonStyle& style, Budget* budget,
                        std::string* text);

}  // namespace convene::worker::jinja
