#include "worker_runtime/data/chat/jinja/operations.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"

namespace convene::worker::jinja {
namespace {

using Result = absl::StatusOr<Value>;

// From ExpressionKind::kAdd on.
constexpr const char* kSigns[] = {"+", "-", "*", "/", "//", "%", "**"};

absl::Status Overflow() {
  return absl::UnimplementedError("integers beyond 64 bits, which the chat template calculates");
}

absl::Status ByZero() { return absl::InvalidArgumentError("a division by zero"); }

Result Power(int64_t base, int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) return ByZero();
    return Value::OfFloat(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  if (base == 0 || base == 1 || base == -1) {
    return Value::OfInt(exponent == 0 ? 1 : base == -1 && exponent % 2 == 0 ? 1 : base);
  }
  int64_t power = 1;
  for (int64_t i = 0; i < exponent; ++i) {
    // Another base overflows before 64 rounds.
    if (__builtin_mul_overflow(power, base, &power)) return Overflow();
  }
  return Value::OfInt(power);
}

Result OfIntegers(ExpressionKind operation, int64_t a, int64_t b) {
  int64_t result = 0;
  switch (operation) {
    case ExpressionKind::kAdd:
      if (__builtin_add_overflow(a, b, &result)) return Overflow();
      return Value::OfInt(result);
    case ExpressionKind::kSubtract:
      if (__builtin_sub_overflow(a, b, &result)) return Overflow();
      return Value::OfInt(result);
    case ExpressionKind::kMultiply:
      if (__builtin_mul_overflow(a, b, &result)) return Overflow();
      return Value::OfInt(result);
    case ExpressionKind::kPower:
      return Power(a, b);
    case ExpressionKind::kDivide:
      if (b == 0) return ByZero();
      // Python divides exactly and rounds once; two doubles hold these exactly.
      if (std::abs(static_cast<double>(a)) > 9e15 || std::abs(static_cast<double>(b)) > 9e15) {
        return Overflow();
      }
      return Value::OfFloat(static_cast<double>(a) / static_cast<double>(b));
    default:
      break;
  }
  if (b == 0) return ByZero();
  if (a == INT64_MIN && b == -1) {
    return operation == ExpressionKind::kModulo ? Result(Value::OfInt(0)) : Result(Overflow());
  }
  // Python rounds down, and a remainder has the sign of the divisor.
  int64_t quotient = a / b;
  int64_t remainder = a % b;
  if (remainder != 0 && (remainder < 0) != (b < 0)) {
    --quotient;
    remainder += b;
  }
  return Value::OfInt(operation == ExpressionKind::kModulo ? remainder : quotient);
}

Result OfFloats(ExpressionKind operation, double a, double b) {
  switch (operation) {
    case ExpressionKind::kAdd:
      return Value::OfFloat(a + b);
    case ExpressionKind::kSubtract:
      return Value::OfFloat(a - b);
    case ExpressionKind::kMultiply:
      return Value::OfFloat(a * b);
    case ExpressionKind::kPower: {
      const double power = std::pow(a, b);
      const bool finite = std::isfinite(a) && std::isfinite(b);
      if (finite && !std::isfinite(power)) {
        return absl::UnimplementedError("a power that is no finite real number");
      }
      return Value::OfFloat(power);
    }
    case ExpressionKind::kDivide:
      if (b == 0) return ByZero();
      return Value::OfFloat(a / b);
    default:
      break;
  }
  if (b == 0) return ByZero();
  if (!std::isfinite(a) || !std::isfinite(b)) {
    return absl::UnimplementedError("'//' and '%' of an infinite number");
  }
  double remainder = std::fmod(a, b);
  if (remainder != 0 && (remainder < 0) != (b < 0)) remainder += b;
  if (remainder == 0) remainder = std::copysign(0.0, b);
  if (operation == ExpressionKind::kModulo) return Value::OfFloat(remainder);
  // As in CPython: the division of what the remainder leaves, rounded to the nearest whole number.
  const double quotient = (a - remainder) / b;
  if (quotient == 0) return Value::OfFloat(std::copysign(0.0, a / b));
  const double whole = std::floor(quotient);
  return Value::OfFloat(quotient - whole > 0.5 ? whole + 1 : whole);
}

// sequence * count.
Result Repeat(const Value& sequence, int64_t count, Budget* budget) {
  count = std::max<int64_t>(count, 0);
  const int64_t size =
      sequence.is_string() ? sequence.as_string().size() : sequence.as_list().items.size();
  int64_t total = 0;
  if (__builtin_mul_overflow(size, count, &total)) total = INT64_MAX;
  if (sequence.is_string()) {
    CONVENE_RETURN_IF_ERROR(budget->ChargeBytes(total));
    std::string text;
    if (size > 0) {
      text.reserve(total);
      for (int64_t i = 0; i < count; ++i) text += sequence.as_string();
    }
    return Value::OfString(std::move(text));
  }
  CONVENE_RETURN_IF_ERROR(budget->Charge(total));
  std::vector<Value> items;
  if (size > 0) {
    items.reserve(total);
    for (int64_t i = 0; i < count; ++i) {
      items.insert(items.end(), sequence.as_list().items.begin(), sequence.as_list().items.end());
    }
  }
  return NewList(std::move(items), sequence.as_list().kind);
}

bool CanRepeat(const Value& value) {
  return value.is_string() || (value.is_list() && (value.as_list().kind == ListKind::kList ||
                                                   value.as_list().kind == ListKind::kTuple));
}

}  // namespace

absl::StatusOr<Value> Calculate(ExpressionKind operation, const Value& left, const Value& right,
                                Budget* budget) {
  if (left.is_undefined()) return absl::InvalidArgumentError(left.why_undefined());
  if (operation == ExpressionKind::kModulo && left.is_string()) {
    return NotInSubset("the formatting of strings by '%'");
  }
  if (right.is_undefined()) return absl::InvalidArgumentError(right.why_undefined());
  if (left.is_integral() && right.is_integral()) {
    return OfIntegers(operation, left.as_int(), right.as_int());
  }
  if (left.is_number() && right.is_number()) {
    return OfFloats(operation, left.as_float(), right.as_float());
  }
  if (operation == ExpressionKind::kAdd && left.is_string() && right.is_string()) {
    const size_t size = left.as_string().size() + right.as_string().size();
    CONVENE_RETURN_IF_ERROR(budget->ChargeBytes(size));
    std::string sum = absl::StrCat(left.as_string(), right.as_string());
    if (!left.is_safe() && !right.is_safe()) return Value::OfString(std::move(sum));
    for (const Value* const part : {&left, &right}) {
      if (!part->is_safe() && part->as_string().find_first_of("&<>'\"") != std::string::npos) {
        return absl::UnimplementedError(
            "'+' of a safe string and one with & < > ' \" in it, which Jinja2 would escape");
      }
    }
    return Value::OfSafe(std::make_shared<const std::string>(std::move(sum)));
  }
  if (operation == ExpressionKind::kAdd && left.is_list() && right.is_list() &&
      left.as_list().kind == right.as_list().kind && CanRepeat(left)) {
    std::vector<Value> items = left.as_list().items;
    items.insert(items.end(), right.as_list().items.begin(), right.as_list().items.end());
    CONVENE_RETURN_IF_ERROR(budget->Charge(items.size()));
    return NewList(std::move(items), left.as_list().kind);
  }
  if (operation == ExpressionKind::kMultiply && CanRepeat(left) && right.is_integral()) {
    return Repeat(left, right.as_int(), budget);
  }
  if (operation == ExpressionKind::kMultiply && CanRepeat(right) && left.is_integral()) {
    return Repeat(right, left.as_int(), budget);
  }
  const int sign = static_cast<int>(operation) - static_cast<int>(ExpressionKind::kAdd);
  return absl::InvalidArgumentError(
      absl::StrCat("there is no ", left.KindName(), " ", kSigns[sign], " ", right.KindName()));
}

absl::StatusOr<Value> Negate(const Value& value) {
  if (value.is_undefined()) return absl::InvalidArgumentError(value.why_undefined());
  if (value.is_float()) return Value::OfFloat(-value.as_float());
  if (!value.is_integral()) {
    return absl::InvalidArgumentError(absl::StrCat("there is no minus ", value.KindName()));
  }
  if (value.as_int() == INT64_MIN) return Overflow();
  return Value::OfInt(-value.as_int());
}

}  // namespace convene::worker::jinja
