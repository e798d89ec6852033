// Part of evaluator.h: expressions and calls.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/data/chat/jinja/evaluator.h"
#include "worker_runtime/data/chat/jinja/operations.h"
#include "worker_runtime/data/chat/jinja/print.h"

namespace convene::worker::jinja {
namespace {

// As in Jinja2's sandbox.
constexpr int64_t kMaxRange = 100'000;

// Of a safe string only filters are known that do not touch its text.
absl::Status CheckSafe(absl::string_view filter) {
  for (const char* const known : {"safe", "string", "length", "count", "default", "d", "tojson"}) {
    if (filter == known) return absl::OkStatus();
  }
  return absl::UnimplementedError(absl::StrCat("the filter '", filter, "' of a safe string"));
}

Value ItemOf(const Loop& loop, int64_t index, const char* missing) {
  if (index < 0 || index >= static_cast<int64_t>(loop.items->size())) {
    return Value::OfUndefined(missing);
  }
  return (*loop.items)[index];
}

int64_t IndexOf(const Loop& loop) { return static_cast<int64_t>(loop.index); }
// How many rounds come after this one.
int64_t LeftOf(const Loop& loop) {
  return static_cast<int64_t>(loop.items->size()) - IndexOf(loop) - 1;
}

constexpr std::pair<const char*, LoopAttribute> kLoopAttributes[] = {
    {"index", [](const Loop& loop) { return Value::OfInt(IndexOf(loop) + 1); }},
    {"index0", [](const Loop& loop) { return Value::OfInt(IndexOf(loop)); }},
    {"revindex", [](const Loop& loop) { return Value::OfInt(LeftOf(loop) + 1); }},
    {"revindex0", [](const Loop& loop) { return Value::OfInt(LeftOf(loop)); }},
    {"first", [](const Loop& loop) { return Value::OfBool(loop.index == 0); }},
    {"last", [](const Loop& loop) { return Value::OfBool(LeftOf(loop) == 0); }},
    {"length", [](const Loop& loop) { return Value::OfInt(loop.items->size()); }},
    {"depth", [](const Loop&) { return Value::OfInt(1); }},
    {"depth0", [](const Loop&) { return Value::OfInt(0); }},
    {"previtem",
     [](const Loop& loop) { return ItemOf(loop, IndexOf(loop) - 1, "there is no previous item"); }},
    {"nextitem",
     [](const Loop& loop) { return ItemOf(loop, IndexOf(loop) + 1, "there is no next item"); }}};

}  // namespace

LoopAttribute FindLoopAttribute(absl::string_view name) {
  for (const auto& [known, attribute] : kLoopAttributes) {
    if (name == known) return attribute;
  }
  return nullptr;
}

Evaluator::Result Evaluator::Evaluate(const Expression& expression) {
  absl::Status status = budget_.Charge();
  if (status.ok()) status = CheckDepth();
  ++depth_;
  Result value = status.ok() ? EvaluateAt(expression) : Result(std::move(status));
  --depth_;
  if (!value.ok() && !error_place_.has_value()) error_place_ = expression.place;
  return value;
}

Evaluator::Result Evaluator::EvaluateAt(const Expression& expression) {
  const auto child = [&](size_t i) { return Evaluate(*expression.children[i]); };
  switch (expression.kind) {
    case ExpressionKind::kConstant:
      return expression.constant;
    case ExpressionKind::kName:
      return Lookup(expression.symbol);
    case ExpressionKind::kLoop:
      return expression.loop_attribute(*loop_);
    case ExpressionKind::kAttribute: {
      CONVENE_ASSIGN_OR_RETURN(const Value object, child(0));
      return GetAttribute(object, expression.name);
    }
    case ExpressionKind::kItem: {
      CONVENE_ASSIGN_OR_RETURN(const Value object, child(0));
      CONVENE_ASSIGN_OR_RETURN(const Value key, child(1));
      return GetItem(object, key, &budget_);
    }
    case ExpressionKind::kSlice:
      return EvaluateSlice(expression);
    case ExpressionKind::kCall:
      return EvaluateCall(expression);
    case ExpressionKind::kCaptured:
      return captured_;
    case ExpressionKind::kFilter:
      return EvaluateFilter(expression);
    case ExpressionKind::kTest:
      return EvaluateTest(expression);
    case ExpressionKind::kNot: {
      CONVENE_ASSIGN_OR_RETURN(const Value operand, child(0));
      return Value::OfBool(!operand.Truth());
    }
    case ExpressionKind::kNegative: {
      CONVENE_ASSIGN_OR_RETURN(const Value operand, child(0));
      return Negate(operand);
    }
    case ExpressionKind::kPositive: {
      CONVENE_ASSIGN_OR_RETURN(const Value operand, child(0));
      // Python's +x is 0 + x for numbers, and an error for all else.
      return operand.is_number()
                 ? Calculate(ExpressionKind::kSubtract, operand, Value::OfInt(0), &budget_)
                 : Negate(operand);
    }
    case ExpressionKind::kConcat:
      return EvaluateConcat(expression);
    case ExpressionKind::kCompare:
      return EvaluateCompare(expression);
    case ExpressionKind::kAnd:
    case ExpressionKind::kOr:
    case ExpressionKind::kConditional:
      return EvaluateChoice(expression);
    case ExpressionKind::kList:
    case ExpressionKind::kTuple:
      return EvaluateList(expression);
    case ExpressionKind::kDict:
      return EvaluateDict(expression);
    default:
      break;
  }
  CONVENE_ASSIGN_OR_RETURN(const Value left, child(0));
  CONVENE_ASSIGN_OR_RETURN(const Value right, child(1));
  return Calculate(expression.kind, left, right, &budget_);
}

// `and`, `or` and `a if b else c` run only the part that they need.
Evaluator::Result Evaluator::EvaluateChoice(const Expression& expression) {
  CONVENE_ASSIGN_OR_RETURN(Value first, Evaluate(*expression.children[0]));
  if (expression.kind != ExpressionKind::kConditional) {
    if (first.Truth() == (expression.kind == ExpressionKind::kOr)) return first;
    return Evaluate(*expression.children[1]);
  }
  if (first.Truth()) return Evaluate(*expression.children[1]);
  if (expression.children[2] != nullptr) return Evaluate(*expression.children[2]);
  return Value::OfUndefined("the condition of an 'if' without 'else' is false");
}

Evaluator::Result Evaluator::EvaluateList(const Expression& expression) {
  std::vector<Value> items;
  for (const ExpressionPtr& child : expression.children) {
    CONVENE_ASSIGN_OR_RETURN(Value item, Evaluate(*child));
    items.push_back(std::move(item));
  }
  const bool list = expression.kind == ExpressionKind::kList;
  return NewList(std::move(items), list ? ListKind::kList : ListKind::kTuple);
}

Evaluator::Result Evaluator::EvaluateCompare(const Expression& expression) {
  CONVENE_ASSIGN_OR_RETURN(Value left, Evaluate(*expression.children[0]));
  for (size_t i = 0; i < expression.comparisons.size(); ++i) {
    const auto [test, is_negated] = expression.comparisons[i];
    CONVENE_ASSIGN_OR_RETURN(Value right, Evaluate(*expression.children[i + 1]));
    CONVENE_ASSIGN_OR_RETURN(const Value holds, test->function(left, Bound(&right), &budget_));
    if (holds.as_bool() == is_negated) return Value::OfBool(false);
    left = std::move(right);
  }
  return Value::OfBool(true);
}

Evaluator::Result Evaluator::EvaluateConcat(const Expression& expression) {
  std::string text;
  for (const ExpressionPtr& part : expression.children) {
    CONVENE_ASSIGN_OR_RETURN(const Value value, Evaluate(*part));
    NotePrinted(value, part->place);
    CONVENE_RETURN_IF_ERROR(AppendString(value, &budget_, &text));
  }
  return Value::OfString(std::move(text));
}

Evaluator::Result Evaluator::EvaluateDict(const Expression& expression) {
  Dict dict;
  for (size_t i = 0; i < expression.children.size(); i += 2) {
    CONVENE_ASSIGN_OR_RETURN(const Value key, Evaluate(*expression.children[i]));
    CONVENE_ASSIGN_OR_RETURN(Value value, Evaluate(*expression.children[i + 1]));
    if (!key.is_string()) {
      return absl::UnimplementedError(absl::StrCat(key.KindName(), " as a dict's key"));
    }
    CONVENE_RETURN_IF_ERROR(budget_.Charge(WeightOf(key)));
    dict.Set(key.string_ptr(), std::move(value));
  }
  return NewDict(std::move(dict));
}

Evaluator::Result Evaluator::EvaluateSlice(const Expression& expression) {
  CONVENE_ASSIGN_OR_RETURN(const Value object, Evaluate(*expression.children[0]));
  if (object.is_safe()) {
    return absl::UnimplementedError("a slice of a safe string");
  }
  Value bounds[3];
  for (size_t i = 0; i < 3; ++i) {
    bounds[i] = Value::OfNone();
    if (expression.children[i + 1] == nullptr) continue;
    CONVENE_ASSIGN_OR_RETURN(bounds[i], Evaluate(*expression.children[i + 1]));
  }
  return GetSlice(object, &bounds[0], &bounds[1], &bounds[2], &budget_);
}

absl::StatusOr<Arguments> Evaluator::EvaluateArguments(const Expression& expression) {
  std::vector<Value> values;
  for (size_t i = 1; i < expression.children.size(); ++i) {
    CONVENE_ASSIGN_OR_RETURN(Value value, Evaluate(*expression.children[i]));
    values.push_back(std::move(value));
  }
  return Arguments(std::move(values), &expression.argument_names);
}

Evaluator::Result Evaluator::EvaluateFilter(const Expression& expression) {
  CONVENE_ASSIGN_OR_RETURN(const Value input, Evaluate(*expression.children[0]));
  CONVENE_ASSIGN_OR_RETURN(const Arguments arguments, EvaluateArguments(expression));
  if (input.is_safe()) CONVENE_RETURN_IF_ERROR(CheckSafe(expression.builtin->name));
  CONVENE_ASSIGN_OR_RETURN(Value output,
                           ApplyFilter(*expression.builtin, input, arguments, &budget_));
  // A filter makes a text of nothing, but for the one that says what stands there instead.
  const absl::string_view name = expression.builtin->name;
  if (output.is_string() && name != "default" && name != "d") {
    NotePrinted(input, expression.children[0]->place);
  }
  return output;
}

Evaluator::Result Evaluator::EvaluateTest(const Expression& expression) {
  CONVENE_ASSIGN_OR_RETURN(const Value subject, Evaluate(*expression.children[0]));
  CONVENE_ASSIGN_OR_RETURN(const Arguments arguments, EvaluateArguments(expression));
  return CallBuiltin(*expression.builtin, subject, arguments, &budget_);
}

Evaluator::Result Evaluator::EvaluateCall(const Expression& expression) {
  CONVENE_ASSIGN_OR_RETURN(const Value function, Evaluate(*expression.children[0]));
  CONVENE_ASSIGN_OR_RETURN(const Arguments arguments, EvaluateArguments(expression));
  if (function.is_macro()) return CallMacro(*function.as_macro(), arguments);
  if (function.is_method()) {
    return CallMethod(function.as_method(), arguments, &budget_);
  }
  if (function.is_function()) {
    return CallFunction(function.as_function(), arguments);
  }
  return absl::InvalidArgumentError(function.is_undefined()
                                        ? function.why_undefined()
                                        : absl::StrCat("a call of ", function.KindName()));
}

Evaluator::Result Evaluator::CallFunction(Function function, const Arguments& arguments) {
  switch (function) {
    case Function::kRange:
      return MakeRange(arguments);
    case Function::kNamespace:
      return MakeNamespace(arguments);
    case Function::kDict: {
      if (arguments.positional_count() > 0) {
        return absl::UnimplementedError("dict() with arguments that have no names");
      }
      Dict dict;
      for (size_t i = 0; i < arguments.named_count(); ++i) {
        dict.Set(arguments.name(i), arguments.named(i));
      }
      return NewDict(std::move(dict));
    }
    case Function::kRaiseException: {
      CONVENE_ASSIGN_OR_RETURN(const Bound bound, Bound::Of({"message"}, 1, arguments));
      CONVENE_ASSIGN_OR_RETURN(const std::string message, ToString(*bound[0], &budget_));
      return absl::InvalidArgumentError(
          absl::StrCat("the chat template refuses the conversation: ", message));
    }
    case Function::kStrftimeNow: {
      CONVENE_ASSIGN_OR_RETURN(const Bound bound, Bound::Of({"format"}, 1, arguments));
      if (!bound[0]->is_string()) return absl::InvalidArgumentError("strftime_now of no string");
      if (!options_.now.has_value()) {
        return absl::FailedPreconditionError(
            "the chat template puts today's date into its text, which would change from day to "
            "day: give a date (--chat-date YYYY-MM-DD)");
      }
      const absl::TimeZone zone = absl::UTCTimeZone();
      CONVENE_RETURN_IF_ERROR(budget_.ChargeBytes(bound[0]->as_string().size()));
      std::string date =
          absl::FormatTime(bound[0]->as_string(), absl::FromCivil(*options_.now, zone), zone);
      CONVENE_RETURN_IF_ERROR(budget_.ChargeBytes(date.size()));
      return Value::OfString(std::move(date));
    }
  }
  return Value();
}

Evaluator::Result Evaluator::CallMacro(const Statement& macro, const Arguments& arguments) {
  if (arguments.positional_count() > macro.parameters.size()) {
    return absl::InvalidArgumentError(absl::StrCat("the macro '", macro.name, "' takes at most ",
                                                   macro.parameters.size(), " arguments"));
  }
  // Each parameter is looked for among all.
  const auto parameters = static_cast<int64_t>(macro.parameters.size());
  CONVENE_RETURN_IF_ERROR(budget_.Charge(parameters * parameters / kVariablesPerStep));
  Scope scope;
  // A macro sees the template's own variables, not those of its caller.
  scope.outer = &root_;
  for (size_t i = 0; i < arguments.positional_count(); ++i) {
    scope.Set(macro.parameters[i].symbol, arguments.positional(i));
  }
  for (size_t i = 0; i < arguments.named_count(); ++i) {
    const auto begin = macro.parameters.begin();
    const auto found = std::find_if(begin, macro.parameters.end(), [&](const Parameter& parameter) {
      return parameter.name == arguments.name(i);
    });
    if (found == macro.parameters.end() ||
        found - begin < static_cast<ptrdiff_t>(arguments.positional_count())) {
      return absl::InvalidArgumentError(absl::StrCat("the macro '", macro.name,
                                                     "' has no argument '", arguments.name(i),
                                                     "', or it is given twice"));
    }
    scope.Set(found->symbol, arguments.named(i));
  }
  Scope* const caller = std::exchange(scope_, &scope);
  const Loop* const loop = std::exchange(loop_, nullptr);
  absl::Status status;
  for (const Parameter& parameter : macro.parameters) {
    const auto given = [&](const auto& variable) { return variable.first == parameter.symbol; };
    if (std::any_of(scope.variables.begin(), scope.variables.end(), given)) continue;
    Result value = parameter.default_value != nullptr
                       ? Evaluate(*parameter.default_value)
                       : Result(Value::OfUndefinedVariable(
                             absl::StrCat("parameter '", parameter.name, "' was not provided")));
    if (!value.ok()) {
      status = value.status();
      break;
    }
    scope.Set(parameter.symbol, *std::move(value));
  }
  scope_ = caller;
  CONVENE_RETURN_IF_ERROR(status);
  CONVENE_ASSIGN_OR_RETURN(std::string text, Capture(macro.bodies[0], &scope));
  loop_ = loop;
  return Value::OfString(std::move(text));
}

Evaluator::Result Evaluator::MakeRange(const Arguments& arguments) {
  CONVENE_ASSIGN_OR_RETURN(const Bound bound, Bound::Of({"start", "stop", "step"}, 1, arguments));
  int64_t numbers[3] = {0, 0, 1};
  for (size_t i = 0; i < 3; ++i) {
    if (bound[i] == nullptr) continue;
    if (!bound[i]->is_integral()) {
      return absl::InvalidArgumentError(
          absl::StrCat("range needs integers, not ", bound[i]->KindName()));
    }
    numbers[i] = bound[i]->as_int();
  }
  if (bound[1] == nullptr) std::swap(numbers[0], numbers[1]);
  const int64_t step = numbers[2];
  if (step == 0) return absl::InvalidArgumentError("range with a step of zero");
  std::vector<Value> items;
  for (int64_t i = numbers[0]; step > 0 ? i < numbers[1] : i > numbers[1];) {
    if (items.size() == kMaxRange) {
      return absl::InvalidArgumentError("a range of more than 100000 numbers");
    }
    items.push_back(Value::OfInt(i));
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  CONVENE_RETURN_IF_ERROR(budget_.Charge(items.size()));
  return NewList(std::move(items), ListKind::kRange);
}

Evaluator::Result Evaluator::MakeNamespace(const Arguments& arguments) {
  if (arguments.positional_count() > 1 ||
      (arguments.positional_count() == 1 && !arguments.positional(0).is_dict())) {
    return absl::UnimplementedError("namespace() with arguments other than a dict and names");
  }
  Namespace made;
  for (size_t i = 0; i < arguments.named_count(); ++i) {
    made.attributes.emplace(arguments.name(i), arguments.named(i));
  }
  if (arguments.positional_count() == 1) {
    CONVENE_RETURN_IF_ERROR(budget_.Charge(WeightOf(arguments.positional(0))));
    for (const auto& [key, value] : arguments.positional(0).as_dict().entries()) {
      made.attributes.emplace(*key, value);  // named arguments win
    }
  }
  namespaces_.push_back(std::move(made));
  return Value::OfNamespace(&namespaces_.back());
}

}  // namespace convene::worker::jinja
