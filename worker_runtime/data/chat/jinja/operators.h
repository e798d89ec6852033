// PURE. Python's arithmetic over values.
#pragma once

#include "absl/status/statusor.h"
#include "worker_runtime/data/chat/jinja/budget.h"
#include "worker_runtime/data/chat/jinja/syntax.h"
#include "worker_runtime/data/chat/jinja/value.h"

namespace convene::worker::jinja {

// left OPERATION right. REQUIRES: kAdd, kSubtract, kMultiply, kDivide, kFloorDivide, kModulo or
// kPower. InvalidArgument: Python raises an error. Unimplemented: results beyond 64 bits, and the
// formatting of strings by '%'.
absl::StatusOr<Value> Calculate(ExpressionKind operation, const Value& left, const Value& right,
                                Budget* budget);

// -value. The same errors.
absl::StatusOr<Value> Negate(const Value& value);

}  // namespace convene::worker::jinja
