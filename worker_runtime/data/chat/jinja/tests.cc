#include "worker_runtime/data/chat/jinja/tests.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/data/chat/jinja/access.h"
#include "worker_runtime/data/chat/jinja/methods.h"
#include "worker_runtime/data/chat/jinja/operators.h"
#include "worker_runtime/data/chat/jinja/print.h"

namespace convene::worker::jinja {
namespace {

using Result = absl::StatusOr<bool>;

// A test of the subject alone.
template <bool (*test)(const Value&)>
Result Alone(const Value& subject, const Arguments& arguments, Budget*) {
  CONVENE_RETURN_IF_ERROR(arguments.Bind({}).status());
  return test(subject);
}

bool IsDefined(const Value& value) { return !value.is_undefined(); }
bool IsUndefined(const Value& value) { return value.is_undefined(); }
bool IsNone(const Value& value) { return value.is_none(); }
bool IsBoolean(const Value& value) { return value.is_bool(); }
bool IsTrue(const Value& value) { return value.is_bool() && value.as_bool(); }
bool IsFalse(const Value& value) { return value.is_bool() && !value.as_bool(); }
bool IsInteger(const Value& value) { return value.is_int(); }
bool IsFloat(const Value& value) { return value.is_float(); }
bool IsNumber(const Value& value) { return value.is_number(); }
bool IsString(const Value& value) { return value.is_string(); }
bool IsMapping(const Value& value) { return value.is_dict(); }
// Jinja2's undefined value can be called, which fails.
bool IsCallable(const Value& value) { return value.is_callable() || value.is_undefined(); }

// An undefined value is an empty sequence in Jinja2.
bool IsIterable(const Value& value) {
  return value.is_string() || value.is_list() || value.is_dict() || value.is_undefined();
}

bool IsSequence(const Value& value) {
  if (!value.is_list()) return IsIterable(value);
  return value.as_list().kind != ListKind::kView && value.as_list().kind != ListKind::kGenerator;
}

template <bool (*test)(int)>
Result Ordered(const Value& subject, const Arguments& arguments, Budget* budget) {
  CONVENE_ASSIGN_OR_RETURN(const auto bound, arguments.Bind({"other"}, 1));
  CONVENE_ASSIGN_OR_RETURN(const int order, Compare(subject, *bound[0], budget));
  return test(order);
}
bool Less(int order) { return order < 0; }
bool LessOrEqual(int order) { return order <= 0; }
bool Greater(int order) { return order > 0; }
bool GreaterOrEqual(int order) { return order >= 0; }

template <bool wanted>
Result TestEqual(const Value& subject, const Arguments& arguments, Budget* budget) {
  CONVENE_ASSIGN_OR_RETURN(const auto bound, arguments.Bind({"other"}, 1));
  CONVENE_ASSIGN_OR_RETURN(const bool equal, Equal(subject, *bound[0], budget));
  return equal == wanted;
}

Result TestIn(const Value& subject, const Arguments& arguments, Budget* budget) {
  CONVENE_ASSIGN_OR_RETURN(const auto bound, arguments.Bind({"seq"}, 1));
  return IsIn(subject, *bound[0], budget);
}

Result TestSame(const Value& subject, const Arguments& arguments, Budget*) {
  CONVENE_ASSIGN_OR_RETURN(const auto bound, arguments.Bind({"other"}, 1));
  const Value& other = *bound[0];
  const auto single = [](const Value& value) { return value.is_none() || value.is_bool(); };
  if (!single(subject) && !single(other)) {
    return absl::UnimplementedError("'sameas' of values other than none, true and false");
  }
  if (subject.is_none() || other.is_none()) return subject.is_none() && other.is_none();
  return subject.is_bool() && other.is_bool() && subject.as_bool() == other.as_bool();
}

Result Divides(const Value& subject, int64_t divisor, int64_t remainder, Budget* budget) {
  CONVENE_ASSIGN_OR_RETURN(
      const Value rest, Calculate(ExpressionKind::kModulo, subject, Value::OfInt(divisor), budget));
  return Equal(rest, Value::OfInt(remainder), budget);
}

template <int64_t remainder>
Result TestParity(const Value& subject, const Arguments& arguments, Budget* budget) {
  CONVENE_RETURN_IF_ERROR(arguments.Bind({}).status());
  return Divides(subject, 2, remainder, budget);
}

Result TestDivisible(const Value& subject, const Arguments& arguments, Budget* budget) {
  CONVENE_ASSIGN_OR_RETURN(const auto bound, arguments.Bind({"num"}, 1));
  if (!bound[0]->is_integral()) {
    return absl::InvalidArgumentError(
        absl::StrCat("divisibleby needs an integer, not ", bound[0]->KindName()));
  }
  return Divides(subject, bound[0]->as_int(), 0, budget);
}

// A test that asks a method of strings about the subject's text.
template <const char* method>
Result TestCase(const Value& subject, const Arguments& arguments, Budget* budget) {
  CONVENE_ASSIGN_OR_RETURN(const std::string text, ToString(subject, budget));
  CONVENE_ASSIGN_OR_RETURN(const Value is, CallStringMethod(text, method, arguments, budget));
  return is.Truth();
}
constexpr char kIsLower[] = "islower", kIsUpper[] = "isupper";

constexpr TestEntry kTests[] = {{"!=", TestEqual<false>},
                                {"<", Ordered<Less>},
                                {"<=", Ordered<LessOrEqual>},
                                {"==", TestEqual<true>},
                                {">", Ordered<Greater>},
                                {">=", Ordered<GreaterOrEqual>},
                                {"boolean", Alone<IsBoolean>},
                                {"callable", Alone<IsCallable>},
                                {"defined", Alone<IsDefined>},
                                {"divisibleby", TestDivisible},
                                {"eq", TestEqual<true>},
                                {"equalto", TestEqual<true>},
                                {"even", TestParity<0>},
                                {"false", Alone<IsFalse>},
                                {"float", Alone<IsFloat>},
                                {"ge", Ordered<GreaterOrEqual>},
                                {"greaterthan", Ordered<Greater>},
                                {"gt", Ordered<Greater>},
                                {"in", TestIn},
                                {"integer", Alone<IsInteger>},
                                {"iterable", Alone<IsIterable>},
                                {"le", Ordered<LessOrEqual>},
                                {"lessthan", Ordered<Less>},
                                {"lower", TestCase<kIsLower>},
                                {"lt", Ordered<Less>},
                                {"mapping", Alone<IsMapping>},
                                {"ne", TestEqual<false>},
                                {"none", Alone<IsNone>},
                                {"number", Alone<IsNumber>},
                                {"odd", TestParity<1>},
                                {"sameas", TestSame},
                                {"sequence", Alone<IsSequence>},
                                {"string", Alone<IsString>},
                                {"true", Alone<IsTrue>},
                                {"undefined", Alone<IsUndefined>},
                                {"upper", TestCase<kIsUpper>}};

}  // namespace

const TestEntry* FindTest(absl::string_view name) {
  for (const TestEntry& entry : kTests) {
    if (name == entry.name) return &entry;
  }
  return nullptr;
}

}  // namespace convene::worker::jinja
