// PURE. A template's text to its tree. The grammar is Jinja2 3.1's (its parser.py), less what
// README.md leaves out.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker_runtime/data/chat/jinja/syntax.h"

namespace convene::worker::jinja {

// InvalidArgument: Jinja2 refuses it too. Unimplemented: Jinja2 takes it, we do not; named.
// ResourceExhausted: deeper than 100 levels. All with line and column.
absl::StatusOr<Program> ParseTemplate(absl::string_view source);

}  // namespace convene::worker::jinja
