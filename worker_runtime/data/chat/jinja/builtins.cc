#include "worker_runtime/data/chat/jinja/builtins.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "tools/base/check.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/data/chat/jinja/operations.h"
#include "worker_runtime/data/chat/jinja/print.h"

namespace convene::worker::jinja {
namespace {

using Result = absl::StatusOr<Value>;

// The names of all that Python has, ours among them.
constexpr absl::string_view kStringNames[] = {
    "capitalize",   "casefold",    "center",    "count",      "encode",       "endswith",
    "expandtabs",   "find",        "format",    "format_map", "index",        "isalnum",
    "isalpha",      "isascii",     "isdecimal", "isdigit",    "isidentifier", "islower",
    "isnumeric",    "isprintable", "isspace",   "istitle",    "isupper",      "join",
    "ljust",        "lower",       "lstrip",    "maketrans",  "partition",    "removeprefix",
    "removesuffix", "replace",     "rfind",     "rindex",     "rjust",        "rpartition",
    "rsplit",       "rstrip",      "split",     "splitlines", "startswith",   "strip",
    "swapcase",     "title",       "translate", "upper",      "zfill"};
constexpr absl::string_view kDictNames[] = {"copy",    "fromkeys", "get",       "items",
                                            "keys",    "values",   "clear",     "pop",
                                            "popitem", "update",   "setdefault"};
constexpr absl::string_view kListNames[] = {"copy",   "count",   "index",  "append",
                                            "clear",  "extend",  "insert", "pop",
                                            "remove", "reverse", "sort"};
constexpr absl::string_view kTupleNames[] = {"count", "index"};
constexpr absl::string_view kChanges[] = {"append",     "clear",   "extend", "insert",
                                          "pop",        "popitem", "remove", "reverse",
                                          "setdefault", "sort",    "update"};

template <size_t n>
bool IsAmong(const absl::string_view (&names)[n], absl::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

Result Copy(const Value& self, const Bound&, Budget*) { return self; }

Result DictGet(const Value& self, const Bound& arguments, Budget*) {
  CONVENE_RETURN_IF_ERROR(CheckKey(*arguments[0]));
  const Value* const found =
      arguments[0]->is_string() ? self.as_dict().Find(arguments[0]->as_string()) : nullptr;
  if (found != nullptr) return *found;
  return arguments[1] != nullptr ? *arguments[1] : Value::OfNone();
}

Result DictKeys(const Value& self, const Bound&, Budget*) {
  std::vector<Value> keys;
  for (const auto& entry : self.as_dict().entries()) keys.push_back(Value::OfString(entry.first));
  return NewList(std::move(keys), ListKind::kView);
}

Result DictValues(const Value& self, const Bound&, Budget*) {
  std::vector<Value> values;
  for (const auto& entry : self.as_dict().entries()) values.push_back(entry.second);
  return NewList(std::move(values), ListKind::kView);
}

Result DictItems(const Value& self, const Bound&, Budget*) {
  CONVENE_ASSIGN_OR_RETURN(std::vector<Value> pairs, PairsOf(self.as_dict()));
  return NewList(std::move(pairs), ListKind::kView);
}

Result ListCount(const Value& self, const Bound& arguments, Budget* budget) {
  int64_t count = 0;
  for (const Value& item : self.as_list().items) {
    CONVENE_ASSIGN_OR_RETURN(const bool equal, Equal(item, *arguments[0], budget));
    count += equal ? 1 : 0;
  }
  return Value::OfInt(count);
}

Result ListIndex(const Value& self, const Bound& arguments, Budget* budget) {
  const std::vector<Value>& items = self.as_list().items;
  for (size_t i = 0; i < items.size(); ++i) {
    CONVENE_ASSIGN_OR_RETURN(const bool equal, Equal(items[i], *arguments[0], budget));
    if (equal) return Value::OfInt(static_cast<int64_t>(i));
  }
  return absl::InvalidArgumentError("the list does not have the value");
}

constexpr Builtin kDictMethods[] = {{"copy", Copy},
                                    {"get", DictGet, {"key", "default"}, 1},
                                    {"items", DictItems},
                                    {"keys", DictKeys},
                                    {"values", DictValues}};
constexpr Builtin kListMethods[] = {
    {"copy", Copy}, {"count", ListCount, {"value"}, 1}, {"index", ListIndex, {"value"}, 1}};

}  // namespace

Arguments Arguments::Without(size_t count) const {
  return Arguments(
      std::vector<Value>(values_.begin() + std::min(count, positional_count()), values_.end()),
      names_);
}

absl::StatusOr<Bound> Bound::Of(absl::Span<const char* const> parameters, size_t required,
                                const Arguments& arguments) {
  CONVENE_CHECK(parameters.size() <= kMost);
  if (arguments.positional_count() > parameters.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("too many arguments: ", arguments.positional_count(), " where at most ",
                     parameters.size(), " can be given"));
  }
  Bound bound(arguments);
  for (size_t i = 0; i < arguments.positional_count(); ++i) {
    bound.values_[i] = &arguments.positional(i);
  }
  for (size_t i = 0; i < arguments.named_count(); ++i) {
    const auto found = std::find_if(parameters.begin(), parameters.end(),
                                    [&](const char* name) { return arguments.name(i) == name; });
    const size_t place = found - parameters.begin();
    if (found == parameters.end() || bound.values_[place] != nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("the argument '", arguments.name(i), "' is unknown, or given twice"));
    }
    bound.values_[place] = &arguments.named(i);
  }
  for (size_t i = 0; i < required; ++i) {
    if (bound.values_[i] != nullptr) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("the argument '", parameters[i], "' is missing"));
  }
  return bound;
}

absl::StatusOr<int64_t> Bound::Integer(size_t i, int64_t missing) const {
  if (values_[i] == nullptr) return missing;
  if (values_[i]->is_integral()) return values_[i]->as_int();
  return absl::InvalidArgumentError(
      absl::StrCat("an integer is needed, not ", values_[i]->KindName()));
}

absl::StatusOr<absl::string_view> Bound::Text(size_t i) const { return TextOf(*values_[i]); }

absl::StatusOr<absl::string_view> TextOf(const Value& value) {
  if (value.is_string()) return absl::string_view(value.as_string());
  return absl::InvalidArgumentError(absl::StrCat("a string is needed, not ", value.KindName()));
}

absl::StatusOr<Value> CallBuiltin(const Builtin& builtin, const Value& subject,
                                  const Arguments& arguments, Budget* budget) {
  if (builtin.takes_any) return builtin.function(subject, Bound(arguments), budget);
  const auto end = std::find(std::begin(builtin.parameters), std::end(builtin.parameters), nullptr);
  CONVENE_ASSIGN_OR_RETURN(const Bound bound,
                           Bound::Of(absl::MakeConstSpan(std::begin(builtin.parameters), end),
                                     builtin.required, arguments));
  return builtin.function(subject, bound, budget);
}

absl::StatusOr<Value> ApplyFilter(const Builtin& filter, const Value& input,
                                  const Arguments& arguments, Budget* budget) {
  // A filter may walk over the texts that it is given; over lists it says so itself.
  if (input.is_string()) CONVENE_RETURN_IF_ERROR(budget->Charge(WeightOf(input)));
  for (const Value& value : arguments.values()) {
    if (value.is_string()) CONVENE_RETURN_IF_ERROR(budget->Charge(WeightOf(value)));
  }
  return CallBuiltin(filter, input, arguments, budget);
}

const Builtin* FindIn(absl::Span<const Builtin> table, absl::string_view name) {
  const auto found = std::find_if(table.begin(), table.end(),
                                  [&](const Builtin& builtin) { return name == builtin.name; });
  return found == table.end() ? nullptr : &*found;
}

const Builtin* FindFilter(absl::string_view name) {
  const Builtin* const found = FindIn(TextFilters(), name);
  return found != nullptr ? found : FindIn(SequenceFilters(), name);
}

bool HasMethod(const Value& value, absl::string_view name) {
  if (value.is_string()) return IsAmong(kStringNames, name);
  if (value.is_dict()) return IsAmong(kDictNames, name);
  if (!value.is_list()) return false;
  const ListKind kind = value.as_list().kind;
  if (kind == ListKind::kList) return IsAmong(kListNames, name);
  return (kind == ListKind::kTuple || kind == ListKind::kRange) && IsAmong(kTupleNames, name);
}

absl::StatusOr<Value> CallMethod(const Method& method, const Arguments& arguments, Budget* budget) {
  const Value& self = method.self;
  CONVENE_RETURN_IF_ERROR(budget->Charge(WeightOf(self)));
  for (const Value& value : arguments.values()) {
    CONVENE_RETURN_IF_ERROR(budget->Charge(WeightOf(value)));
  }
  if (self.is_safe()) return absl::UnimplementedError("a method of a safe string");
  if (IsAmong(kChanges, method.name)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", method.name, "' changes its object, which a chat template may not"));
  }
  const absl::Span<const Builtin> known = self.is_string() ? StringMethods()
                                          : self.is_dict() ? absl::MakeConstSpan(kDictMethods)
                                                           : absl::MakeConstSpan(kListMethods);
  const Builtin* const found = FindIn(known, method.name);
  if (found != nullptr) return CallBuiltin(*found, self, arguments, budget);
  return NotInSubset(absl::StrCat("the method '", method.name, "' of ", self.KindName()));
}

absl::StatusOr<Value> CallOnText(const char* method, const Value& subject, const Bound& arguments,
                                 Budget* budget) {
  CONVENE_ASSIGN_OR_RETURN(std::string text, ToString(subject, budget));
  return CallBuiltin(*FindIn(StringMethods(), method), Value::OfString(std::move(text)),
                     arguments.all(), budget);
}

absl::StatusOr<std::vector<Value>> PairsOf(const Dict& dict) {
  std::vector<Value> pairs;
  for (const auto& [key, value] : dict.entries()) {
    CONVENE_ASSIGN_OR_RETURN(Value pair, NewList({Value::OfString(key), value}, ListKind::kTuple));
    pairs.push_back(std::move(pair));
  }
  return pairs;
}

}  // namespace convene::worker::jinja
