// PURE. The methods of Python's str, dict, list and tuple.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker_runtime/data/chat/jinja/arguments.h"
#include "worker_runtime/data/chat/jinja/budget.h"
#include "worker_runtime/data/chat/jinja/value.h"

namespace convene::worker::jinja {

// Whether Python's type has a method of this name, whether we know it or not.
bool HasMethod(const Value& value, absl::string_view name);

// InvalidArgument: wrong arguments, or a method that changes its object, which the sandbox of
// transformers refuses. Unimplemented: a method that we do not know.
absl::StatusOr<Value> CallMethod(const Method& method, const Arguments& arguments, Budget* budget);

// The methods of str, for CallMethod.
absl::StatusOr<Value> CallStringMethod(const std::string& text, absl::string_view name,
                                       const Arguments& arguments, Budget* budget);

// Python's text.replace(from, to, count); a negative count replaces all. ResourceExhausted: the
// result is too long.
absl::StatusOr<std::string> Replace(absl::string_view text, absl::string_view from,
                                    absl::string_view to, int64_t count, Budget* budget);

}  // namespace convene::worker::jinja
