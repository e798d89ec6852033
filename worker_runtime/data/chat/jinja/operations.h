// PURE. Python's operations on values: attributes, keys, indices, slices, walking over them, and
// arithmetic.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "worker_runtime/data/chat/jinja/budget.h"
#include "worker_runtime/data/chat/jinja/syntax.h"
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

// The items that `for` walks over: those of a list, the keys of a dict, the characters of a string,
// nothing of an undefined value. InvalidArgument: cannot be walked over. Unimplemented: a generator
// for the second time, which in Jinja2 would be empty.
absl::StatusOr<ListPtr> ItemsOf(const Value& value, Budget* budget);

// Python's len().
absl::StatusOr<int64_t> LengthOf(const Value& value);

// InvalidArgument: in Python the value cannot be a dict's key.
absl::Status CheckKey(const Value& key);

// Python's `item in container`.
absl::StatusOr<bool> IsIn(const Value& item, const Value& container, Budget* budget);

// left OPERATION right. REQUIRES: kAdd, kSubtract, kMultiply, kDivide, kFloorDivide, kModulo or
// kPower. InvalidArgument: Python raises an error. Unimplemented: results beyond 64 bits, and the
// formatting of strings by '%'.
absl::StatusOr<Value> Calculate(ExpressionKind operation, const Value& left, const Value& right,
                                Budget* budget);

// -value. The same errors.
absl::StatusOr<Value> Negate(const Value& value);

}  // namespace convene::worker::jinja
