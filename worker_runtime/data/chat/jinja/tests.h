// PURE. The tests of Jinja2 that we know: `value is test`.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker_runtime/data/chat/jinja/arguments.h"
#include "worker_runtime/data/chat/jinja/budget.h"
#include "worker_runtime/data/chat/jinja/value.h"

namespace convene::worker::jinja {

using TestFunction = absl::StatusOr<bool> (*)(const Value& subject, const Arguments& arguments,
                                              Budget* budget);

struct TestEntry {
  const char* name;
  // InvalidArgument: Jinja2 fails too. Unimplemented: it does not.
  TestFunction function;
};

// nullptr: no such test here.
const TestEntry* FindTest(absl::string_view name);

}  // namespace convene::worker::jinja
