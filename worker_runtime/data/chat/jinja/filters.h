// PURE. The filters of Jinja2 that we know, with tojson as transformers defines it.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker_runtime/data/chat/jinja/arguments.h"
#include "worker_runtime/data/chat/jinja/budget.h"
#include "worker_runtime/data/chat/jinja/value.h"

namespace convene::worker::jinja {

using FilterFunction = absl::StatusOr<Value> (*)(const Value& input, const Arguments& arguments,
                                                 Budget* budget);

struct FilterEntry {
  const char* name;
  FilterFunction function;
};

// The filter's value for `input`. InvalidArgument: Jinja2 fails too. Unimplemented: it does not.
// ResourceExhausted: a limit.
absl::StatusOr<Value> ApplyFilter(const FilterEntry& filter, const Value& input,
                                  const Arguments& arguments, Budget* budget);

// nullptr: no such filter here.
const FilterEntry* FindFilter(absl::string_view name);

// The parts of FindFilter's table, each with a nullptr name at its end.
extern const FilterEntry kTextFilters[];
extern const FilterEntry kSequenceFilters[];

}  // namespace convene::worker::jinja
