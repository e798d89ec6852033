// Part of builtins.h: filters that make texts and numbers.
#include <cmath>
#include <cstdlib>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/data/chat/jinja/builtins.h"
#include "worker_runtime/data/chat/jinja/characters.h"
#include "worker_runtime/data/chat/jinja/print.h"

namespace convene::worker::jinja {
namespace {

using Result = absl::StatusOr<Value>;

Result Text(absl::StatusOr<std::string> text) {
  if (!text.ok()) return text.status();
  return Value::OfString(*std::move(text));
}

Result FilterString(const Value& input, const Bound&, Budget* budget) {
  if (input.is_string()) return input;
  return Text(ToString(input, budget));
}

constexpr char kCapitalize[] = "capitalize", kLower[] = "lower", kStrip[] = "strip",
               kUpper[] = "upper";

// Unlike Python's title(), words begin only behind white space, '-', '(', '[', '{' and '<'.
Result FilterTitle(const Value& input, const Bound&, Budget* budget) {
  CONVENE_ASSIGN_OR_RETURN(const std::string text, ToString(input, budget));
  CONVENE_ASSIGN_OR_RETURN(std::string titled, Lower(text));
  bool begins_word = true;
  for (char& c : titled) {
    if (begins_word) c = absl::ascii_toupper(c);
    begins_word = IsSpace(static_cast<uint8_t>(c)) ||
                  absl::string_view("-([{<").find(c) != absl::string_view::npos;
  }
  return Value::OfString(std::move(titled));
}

Result FilterReplace(const Value& input, const Bound& arguments, Budget* budget) {
  CONVENE_ASSIGN_OR_RETURN(const std::string text, ToString(input, budget));
  CONVENE_ASSIGN_OR_RETURN(const std::string from, ToString(*arguments[0], budget));
  CONVENE_ASSIGN_OR_RETURN(const std::string to, ToString(*arguments[1], budget));
  int64_t count = -1;
  if (arguments.Has(2)) {
    CONVENE_ASSIGN_OR_RETURN(count, arguments.Integer(2, -1));
  }
  return Text(Replace(text, from, to, count, budget));
}

Result FilterIndent(const Value& input, const Bound& arguments, Budget* budget) {
  if (!input.is_string()) {
    return absl::InvalidArgumentError(
        absl::StrCat("indent needs a string, not ", input.KindName()));
  }
  std::string margin;
  if (arguments.HasText(0)) {
    margin = arguments[0]->as_string();
  } else {
    CONVENE_ASSIGN_OR_RETURN(const int64_t width, arguments.Integer(0, 4));
    CONVENE_RETURN_IF_ERROR(budget->ChargeBytes(width < 0 ? 0 : width));
    margin.assign(width < 0 ? 0 : width, ' ');
  }
  const bool first = arguments.IsTrue(1);
  const bool blank = arguments.IsTrue(2);
  const std::string with_end = input.as_string() + "\n";
  std::string indented;
  bool first_line = true;
  for (const absl::string_view line : SplitLines(with_end, /*keep_ends=*/false)) {
    const bool moves = first_line ? first : blank || !line.empty();
    CONVENE_RETURN_IF_ERROR(budget->CheckBytes(indented.size() + margin.size() + line.size()));
    CONVENE_RETURN_IF_ERROR(budget->ChargeBytes(margin.size() + line.size()));
    absl::StrAppend(&indented, first_line ? "" : "\n", moves ? margin : "", line);
    first_line = false;
  }
  return Value::OfString(std::move(indented));
}

// json.dumps(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False).
Result FilterToJson(const Value& input, const Bound& arguments, Budget* budget) {
  JsonStyle style;
  style.ensure_ascii = arguments.IsTrue(0);
  style.sort_keys = arguments.IsTrue(3);
  if (arguments.HasText(1)) {
    style.indent = arguments[1]->as_string();
  } else if (arguments.Has(1)) {
    CONVENE_ASSIGN_OR_RETURN(const int64_t width, arguments.Integer(1, 0));
    if (width > 100) return absl::UnimplementedError("tojson with an indent of more than 100");
    style.indent = std::string(width < 0 ? 0 : width, ' ');
  }
  if (arguments.Has(2)) {
    const Value& pair = *arguments[2];
    const bool two = pair.is_list() && pair.as_list().items.size() == 2 &&
                     pair.as_list().items[0].is_string() && pair.as_list().items[1].is_string();
    if (!two) return absl::InvalidArgumentError("tojson's separators are two strings");
    style.item_separator = pair.as_list().items[0].as_string();
    style.key_separator = pair.as_list().items[1].as_string();
  }
  std::string text;
  CONVENE_RETURN_IF_ERROR(AppendJson(input, style, budget, &text));
  return Value::OfString(std::move(text));
}

// Python's float(text); nothing: not a number.
absl::StatusOr<std::optional<double>> ParseFloat(absl::string_view text) {
  text = Strip(text);
  if (!IsAscii(text) || text.find('_') != absl::string_view::npos) {
    return absl::UnimplementedError("numbers with underscores or digits outside ASCII");
  }
  const bool hexadecimal = text.find_first_of("xXpP") != absl::string_view::npos;
  double number = 0;
  if (hexadecimal || text.find('(') != absl::string_view::npos ||
      !absl::SimpleAtod(text, &number)) {
    return std::optional<double>();
  }
  return std::optional<double>(number);
}

// Python's int(number); nothing: infinite or not a number.
absl::StatusOr<std::optional<Value>> Truncated(double number) {
  if (std::isnan(number) || std::isinf(number)) return std::optional<Value>();
  if (std::abs(number) >= 9.2e18) return absl::UnimplementedError("integers beyond 64 bits");
  return std::optional<Value>(Value::OfInt(static_cast<int64_t>(number)));
}

Result FilterInt(const Value& input, const Bound& arguments, Budget*) {
  if (arguments[1] != nullptr) return absl::UnimplementedError("int with another base");
  if (input.is_undefined()) return absl::InvalidArgumentError(input.why_undefined());
  if (input.is_integral()) return Value::OfInt(input.as_int());
  std::optional<double> number;
  if (input.is_float()) number = input.as_float();
  if (input.is_string()) {
    int64_t integer = 0;
    absl::string_view text = Strip(input.as_string());
    if (absl::SimpleAtoi(text, &integer)) return Value::OfInt(integer);
    CONVENE_ASSIGN_OR_RETURN(number, ParseFloat(text));
  }
  if (number.has_value()) {
    CONVENE_ASSIGN_OR_RETURN(const std::optional<Value> integer, Truncated(*number));
    if (integer.has_value()) return *integer;
  }
  return arguments.Or(0, Value::OfInt(0));
}

Result FilterFloat(const Value& input, const Bound& arguments, Budget*) {
  if (input.is_undefined()) return absl::InvalidArgumentError(input.why_undefined());
  if (input.is_number()) return Value::OfFloat(input.as_float());
  if (input.is_string()) {
    CONVENE_ASSIGN_OR_RETURN(const std::optional<double> number, ParseFloat(input.as_string()));
    if (number.has_value()) return Value::OfFloat(*number);
  }
  return arguments.Or(0, Value::OfFloat(0));
}

Result FilterAbs(const Value& input, const Bound&, Budget*) {
  if (input.is_float()) return Value::OfFloat(std::abs(input.as_float()));
  if (!input.is_integral()) {
    return absl::InvalidArgumentError(absl::StrCat("abs of ", input.KindName()));
  }
  if (input.as_int() == INT64_MIN) return absl::UnimplementedError("integers beyond 64 bits");
  return Value::OfInt(std::abs(input.as_int()));
}

Result FilterRound(const Value& input, const Bound& arguments, Budget*) {
  CONVENE_ASSIGN_OR_RETURN(const int64_t precision, arguments.Integer(0, 0));
  if (!input.is_number()) {
    return absl::InvalidArgumentError(absl::StrCat("round of ", input.KindName()));
  }
  if (precision < 0 || precision > 15) {
    return absl::UnimplementedError("round to other than 0 to 15 digits");
  }
  const std::string method = arguments.HasText(1) ? arguments[1]->as_string() : "common";
  const double number = input.as_float();
  if (method == "ceil" || method == "floor") {
    const double scale = std::pow(10.0, static_cast<double>(precision));
    const double scaled = number * scale;
    return Value::OfFloat((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
  }
  if (method != "common") return absl::InvalidArgumentError("round knows common, ceil and floor");
  if (input.is_integral()) return Value::OfInt(input.as_int());
  if (!std::isfinite(number)) return input;
  // printf rounds the exact binary value, ties to even, as Python does.
  const std::string digits = absl::StrFormat("%.*f", static_cast<int>(precision), number);
  return Value::OfFloat(std::strtod(digits.c_str(), nullptr));
}

Result FilterDefault(const Value& input, const Bound& arguments, Budget*) {
  const bool also_false = arguments.IsTrue(1);
  if (!input.is_undefined() && !(also_false && !input.Truth())) return input;
  return arguments.Or(0, Value::OfString(std::string()));
}

Result FilterSafe(const Value& input, const Bound&, Budget* budget) {
  CONVENE_ASSIGN_OR_RETURN(std::string text, ToString(input, budget));
  return Value::OfSafe(std::make_shared<const std::string>(std::move(text)));
}

constexpr Builtin kFilters[] = {
    {"abs", FilterAbs},
    {"capitalize", AsMethod<kCapitalize>, {}, 0, /*takes_any=*/true},
    {"d", FilterDefault, {"default_value", "boolean"}},
    {"default", FilterDefault, {"default_value", "boolean"}},
    {"float", FilterFloat, {"default"}},
    {"indent", FilterIndent, {"width", "first", "blank"}},
    {"int", FilterInt, {"default", "base"}},
    {"lower", AsMethod<kLower>, {}, 0, /*takes_any=*/true},
    {"replace", FilterReplace, {"old", "new", "count"}, 2},
    {"round", FilterRound, {"precision", "method"}},
    {"safe", FilterSafe},
    {"string", FilterString},
    {"title", FilterTitle},
    {"tojson", FilterToJson, {"ensure_ascii", "indent", "separators", "sort_keys"}},
    {"trim", AsMethod<kStrip>, {}, 0, /*takes_any=*/true},
    {"upper", AsMethod<kUpper>, {}, 0, /*takes_any=*/true}};

}  // namespace

absl::Span<const Builtin> TextFilters() { return kFilters; }

}  // namespace convene::worker::jinja
