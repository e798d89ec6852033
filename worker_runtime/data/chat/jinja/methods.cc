#include "worker_runtime/data/chat/jinja/methods.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/data/chat/jinja/access.h"

namespace convene::worker::jinja {
namespace {

constexpr absl::string_view kStringMethods[] = {
    "capitalize",   "casefold",    "center",    "count",      "encode",       "endswith",
    "expandtabs",   "find",        "format",    "format_map", "index",        "isalnum",
    "isalpha",      "isascii",     "isdecimal", "isdigit",    "isidentifier", "islower",
    "isnumeric",    "isprintable", "isspace",   "istitle",    "isupper",      "join",
    "ljust",        "lower",       "lstrip",    "maketrans",  "partition",    "removeprefix",
    "removesuffix", "replace",     "rfind",     "rindex",     "rjust",        "rpartition",
    "rsplit",       "rstrip",      "split",     "splitlines", "startswith",   "strip",
    "swapcase",     "title",       "translate", "upper",      "zfill"};
constexpr absl::string_view kDictMethods[] = {"copy",    "fromkeys", "get",       "items",
                                              "keys",    "values",   "clear",     "pop",
                                              "popitem", "update",   "setdefault"};
constexpr absl::string_view kListMethods[] = {"copy",   "count",   "index",  "append",
                                              "clear",  "extend",  "insert", "pop",
                                              "remove", "reverse", "sort"};
constexpr absl::string_view kTupleMethods[] = {"count", "index"};
constexpr absl::string_view kChanges[] = {"append",     "clear",   "extend", "insert",
                                          "pop",        "popitem", "remove", "reverse",
                                          "setdefault", "sort",    "update"};

template <size_t n>
bool Has(const absl::string_view (&names)[n], absl::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

absl::StatusOr<Value> CallDictMethod(const Dict& dict, absl::string_view name, const Value& self,
                                     const Arguments& arguments) {
  if (name == "get") {
    CONVENE_ASSIGN_OR_RETURN(const auto bound, arguments.Bind({"key", "default"}, 1));
    CONVENE_RETURN_IF_ERROR(CheckKey(*bound[0]));
    const Value* const found = bound[0]->is_string() ? dict.Find(bound[0]->as_string()) : nullptr;
    if (found != nullptr) return *found;
    return bound[1] != nullptr ? *bound[1] : Value::OfNone();
  }
  CONVENE_RETURN_IF_ERROR(arguments.Bind({}).status());
  if (name == "copy") return self;
  std::vector<Value> items;
  for (const auto& [key, value] : dict.entries()) {
    if (name == "keys") {
      items.push_back(Value::OfString(key));
    } else if (name == "values") {
      items.push_back(value);
    } else {
      CONVENE_ASSIGN_OR_RETURN(Value pair,
                               NewList({Value::OfString(key), value}, ListKind::kTuple));
      items.push_back(std::move(pair));
    }
  }
  return NewList(std::move(items), ListKind::kView);
}

absl::StatusOr<Value> CallListMethod(const List& list, absl::string_view name, const Value& self,
                                     const Arguments& arguments, Budget* budget) {
  if (name == "copy") {
    CONVENE_RETURN_IF_ERROR(arguments.Bind({}).status());
    return self;
  }
  CONVENE_ASSIGN_OR_RETURN(const auto bound, arguments.Bind({"value"}, 1));
  int64_t count = 0;
  for (size_t i = 0; i < list.items.size(); ++i) {
    CONVENE_ASSIGN_OR_RETURN(const bool equal, Equal(list.items[i], *bound[0], budget));
    if (!equal) continue;
    if (name == "index") return Value::OfInt(static_cast<int64_t>(i));
    ++count;
  }
  if (name == "index") return absl::InvalidArgumentError("the list does not have the value");
  return Value::OfInt(count);
}

}  // namespace

bool HasMethod(const Value& value, absl::string_view name) {
  if (value.is_string()) return Has(kStringMethods, name);
  if (value.is_dict()) return Has(kDictMethods, name);
  if (!value.is_list()) return false;
  switch (value.as_list().kind) {
    case ListKind::kList:
      return Has(kListMethods, name);
    case ListKind::kTuple:
    case ListKind::kRange:
      return Has(kTupleMethods, name);
    default:
      return false;
  }
}

absl::StatusOr<Value> CallMethod(const Method& method, const Arguments& arguments, Budget* budget) {
  const Value& self = method.self;
  const absl::string_view name = method.name;
  CONVENE_RETURN_IF_ERROR(budget->Charge(WeightOf(self)));
  for (const Value& value : arguments.values()) {
    CONVENE_RETURN_IF_ERROR(budget->Charge(WeightOf(value)));
  }
  if (self.is_safe()) return absl::UnimplementedError("a method of a safe string");
  if (self.is_string()) return CallStringMethod(self.as_string(), name, arguments, budget);
  if (Has(kChanges, name)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", name, "' changes its object, which a chat template may not"));
  }
  if (self.is_dict() && name != "fromkeys") {
    return CallDictMethod(self.as_dict(), name, self, arguments);
  }
  if (self.is_list()) return CallListMethod(self.as_list(), name, self, arguments, budget);
  return absl::UnimplementedError(
      absl::StrCat("the method '", name, "' is not in the subset of Jinja2 that we know"));
}

}  // namespace convene::worker::jinja
