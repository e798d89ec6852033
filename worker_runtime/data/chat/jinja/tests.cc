// Part of builtins.h: the tests, `value is test`.

#include "tools/base/status_macros.h"
#include "worker_runtime/data/chat/jinja/builtins.h"
#include "worker_runtime/data/chat/jinja/operations.h"

namespace convene::worker::jinja {
namespace {

using Result = absl::StatusOr<Value>;

// A test of the subject alone.
template <bool (Value::*test)() const>
Result Is(const Value& subject, const Bound&, Budget*) {
  return Value::OfBool((subject.*test)());
}

template <bool wanted>
Result IsBool(const Value& subject, const Bound&, Budget*) {
  return Value::OfBool(subject.is_bool() && subject.as_bool() == wanted);
}

Result IsDefined(const Value& subject, const Bound&, Budget*) {
  return Value::OfBool(!subject.is_undefined());
}

// Jinja2's undefined value can be called, which fails.
Result IsCallable(const Value& subject, const Bound&, Budget*) {
  return Value::OfBool(subject.is_callable() || subject.is_undefined());
}

// An undefined value is an empty sequence in Jinja2.
Result IsIterable(const Value& subject, const Bound&, Budget*) {
  return Value::OfBool(subject.is_string() || subject.is_list() || subject.is_dict() ||
                       subject.is_undefined());
}

Result IsSequence(const Value& subject, const Bound& arguments, Budget* budget) {
  if (!subject.is_list()) return IsIterable(subject, arguments, budget);
  const ListKind kind = subject.as_list().kind;
  return Value::OfBool(kind != ListKind::kView && kind != ListKind::kGenerator);
}

// `order` is -1, 0 or 1.
template <bool (*test)(int order)>
Result Ordered(const Value& subject, const Bound& arguments, Budget* budget) {
  CONVENE_ASSIGN_OR_RETURN(const int order, Compare(subject, *arguments[0], budget));
  return Value::OfBool(test(order));
}
bool Less(int order) { return order < 0; }
bool LessOrEqual(int order) { return order <= 0; }
bool Greater(int order) { return order > 0; }
bool GreaterOrEqual(int order) { return order >= 0; }

template <bool wanted>
Result IsEqual(const Value& subject, const Bound& arguments, Budget* budget) {
  CONVENE_ASSIGN_OR_RETURN(const bool equal, Equal(subject, *arguments[0], budget));
  return Value::OfBool(equal == wanted);
}

Result TestIn(const Value& subject, const Bound& arguments, Budget* budget) {
  CONVENE_ASSIGN_OR_RETURN(const bool is_in, IsIn(subject, *arguments[0], budget));
  return Value::OfBool(is_in);
}

Result IsSame(const Value& subject, const Bound& arguments, Budget*) {
  const Value& other = *arguments[0];
  const auto single = [](const Value& value) { return value.is_none() || value.is_bool(); };
  if (!single(subject) && !single(other)) {
    return absl::UnimplementedError("'sameas' of values other than none, true and false");
  }
  if (subject.is_none()) return Value::OfBool(other.is_none());
  return Value::OfBool(subject.is_bool() && other.is_bool() &&
                       subject.as_bool() == other.as_bool());
}

Result Divides(const Value& subject, int64_t divisor, int64_t remainder, Budget* budget) {
  CONVENE_ASSIGN_OR_RETURN(
      const Value rest, Calculate(ExpressionKind::kModulo, subject, Value::OfInt(divisor), budget));
  CONVENE_ASSIGN_OR_RETURN(const bool equal, Equal(rest, Value::OfInt(remainder), budget));
  return Value::OfBool(equal);
}

template <int64_t remainder>
Result HasParity(const Value& subject, const Bound&, Budget* budget) {
  return Divides(subject, 2, remainder, budget);
}

Result IsDivisible(const Value& subject, const Bound& arguments, Budget* budget) {
  CONVENE_ASSIGN_OR_RETURN(const int64_t divisor, arguments.Integer(0, 0));
  return Divides(subject, divisor, 0, budget);
}

constexpr char kIsLower[] = "islower", kIsUpper[] = "isupper";

constexpr Builtin kTests[] = {{"!=", IsEqual<false>, {"other"}, 1},
                              {"<", Ordered<Less>, {"other"}, 1},
                              {"<=", Ordered<LessOrEqual>, {"other"}, 1},
                              {"==", IsEqual<true>, {"other"}, 1},
                              {">", Ordered<Greater>, {"other"}, 1},
                              {">=", Ordered<GreaterOrEqual>, {"other"}, 1},
                              {"boolean", Is<&Value::is_bool>},
                              {"callable", IsCallable},
                              {"defined", IsDefined},
                              {"divisibleby", IsDivisible, {"num"}, 1},
                              {"eq", IsEqual<true>, {"other"}, 1},
                              {"equalto", IsEqual<true>, {"other"}, 1},
                              {"even", HasParity<0>},
                              {"false", IsBool<false>},
                              {"float", Is<&Value::is_float>},
                              {"ge", Ordered<GreaterOrEqual>, {"other"}, 1},
                              {"greaterthan", Ordered<Greater>, {"other"}, 1},
                              {"gt", Ordered<Greater>, {"other"}, 1},
                              {"in", TestIn, {"seq"}, 1},
                              {"integer", Is<&Value::is_int>},
                              {"iterable", IsIterable},
                              {"le", Ordered<LessOrEqual>, {"other"}, 1},
                              {"lessthan", Ordered<Less>, {"other"}, 1},
                              {"lower", AsMethod<kIsLower>, {}, 0, /*takes_any=*/true},
                              {"lt", Ordered<Less>, {"other"}, 1},
                              {"mapping", Is<&Value::is_dict>},
                              {"ne", IsEqual<false>, {"other"}, 1},
                              {"none", Is<&Value::is_none>},
                              {"number", Is<&Value::is_number>},
                              {"odd", HasParity<1>},
                              {"sameas", IsSame, {"other"}, 1},
                              {"sequence", IsSequence},
                              {"string", Is<&Value::is_string>},
                              {"true", IsBool<true>},
                              {"undefined", Is<&Value::is_undefined>},
                              {"upper", AsMethod<kIsUpper>, {}, 0, /*takes_any=*/true}};

}  // namespace

const Builtin* FindTest(absl::string_view name) { return FindIn(kTests, name); }

}  // namespace convene::worker::jinja
