// PURE. Looking into values: attributes, keys, indices, slices, and walking over them.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "worker_runtime/data/chat/jinja/budget.h"
#include "worker_runtime/data/chat/jinja/value.h"

namespace convene::worker::jinja {

// `value.name`: a method of the value's type comes before a key of that name. An undefined value
// when there is neither. InvalidArgument: `value` is undefined.
absl::StatusOr<Value> GetAttribute(const Value& value, const std::string& name);

// `value[key]`: a key comes before a method. An undefined value when there is neither.
// InvalidArgument: `value` is undefined.
absl::StatusOr<Value> GetItem(const Value& value, const Value& key, Budget* budget);

// `value[start:stop:step]`. InvalidArgument: a value without slices, a step of zero, or bounds that
// are not integers.
absl::StatusOr<Value> GetSlice(const Value& value, const Value* start, const Value* stop,
                               const Value* step, Budget* budget);

// What `for` walks over: the items of a list, the keys of a dict, the characters of a string,
// nothing of an undefined value. InvalidArgument: cannot be walked over. Unimplemented: a generator
// for the second time, which in Jinja2 would be empty.
absl::StatusOr<ListPtr> ItemsOf(const Value& value, Budget* budget);

// Python's len().
absl::StatusOr<int64_t> LengthOf(const Value& value);

// Python's `item in container`.
absl::StatusOr<bool> IsIn(const Value& item, const Value& container, Budget* budget);

}  // namespace convene::worker::jinja
