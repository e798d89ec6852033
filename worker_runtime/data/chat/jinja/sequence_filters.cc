// Part of filters.h: filters over sequences, and the table of all filters.
#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/data/chat/jinja/access.h"
#include "worker_runtime/data/chat/jinja/characters.h"
#include "worker_runtime/data/chat/jinja/filters.h"
#include "worker_runtime/data/chat/jinja/operators.h"
#include "worker_runtime/data/chat/jinja/print.h"
#include "worker_runtime/data/chat/jinja/tests.h"

namespace convene::worker::jinja {
namespace {

using Result = absl::StatusOr<Value>;

// "a.b.0" as Jinja2's make_attrgetter reads it: keys, and indices for the parts that are digits.
class AttributePath {
 public:
  // `attribute` nullptr or none: the item itself.
  static absl::StatusOr<AttributePath> Of(const Value* attribute) {
    AttributePath path;
    if (attribute == nullptr || attribute->is_none()) return path;
    if (attribute->is_integral()) {
      path.parts_.push_back(*attribute);
      return path;
    }
    if (!attribute->is_string()) {
      return absl::InvalidArgumentError(
          absl::StrCat("an attribute's name is a string, not ", attribute->KindName()));
    }
    for (const absl::string_view part : absl::StrSplit(attribute->as_string(), '.')) {
      int64_t index = 0;
      if (path.parts_.size() > kMaxValueDepth) {
        return absl::ResourceExhaustedError("an attribute's name with more than 100 points");
      }
      const bool digits = !part.empty() && part.find_first_not_of("0123456789") == part.npos;
      if (digits && absl::SimpleAtoi(part, &index)) {
        path.parts_.push_back(Value::OfInt(index));
      } else {
        path.parts_.push_back(Value::OfString(std::string(part)));
      }
    }
    return path;
  }

  bool empty() const { return parts_.empty(); }

  Result Follow(Value item, const Value* missing, Budget* budget) const {
    for (const Value& part : parts_) {
      CONVENE_RETURN_IF_ERROR(budget->Charge());
      CONVENE_ASSIGN_OR_RETURN(item, GetItem(item, part, budget));
      if (missing != nullptr && !missing->is_none() && item.is_undefined()) item = *missing;
    }
    return item;
  }

 private:
  std::vector<Value> parts_;
};

// The items by which a filter sorts or compares: of strings the lower case, unless it matters.
absl::StatusOr<std::vector<Value>> KeysOf(const List& list, const AttributePath& path,
                                          bool case_sensitive, Budget* budget) {
  std::vector<Value> keys;
  for (const Value& item : list.items) {
    CONVENE_ASSIGN_OR_RETURN(Value key, path.Follow(item, nullptr, budget));
    if (key.is_string() && !case_sensitive) {
      CONVENE_RETURN_IF_ERROR(budget->ChargeBytes(key.as_string().size()));
      CONVENE_ASSIGN_OR_RETURN(std::string lower, Lower(key.as_string()));
      key = Value::OfString(std::move(lower));
    }
    keys.push_back(std::move(key));
  }
  return keys;
}

bool Flag(const Value* value) { return value != nullptr && value->Truth(); }

Result FilterLength(const Value& input, const Arguments& arguments, Budget*) {
  CONVENE_RETURN_IF_ERROR(arguments.Bind({}).status());
  CONVENE_ASSIGN_OR_RETURN(const int64_t length, LengthOf(input));
  return Value::OfInt(length);
}

Result FilterList(const Value& input, const Arguments& arguments, Budget* budget) {
  CONVENE_RETURN_IF_ERROR(arguments.Bind({}).status());
  CONVENE_ASSIGN_OR_RETURN(const ListPtr items, ItemsOf(input, budget));
  return NewList(items->items);
}

Result FilterFirst(const Value& input, const Arguments& arguments, Budget* budget) {
  CONVENE_RETURN_IF_ERROR(arguments.Bind({}).status());
  CONVENE_ASSIGN_OR_RETURN(const ListPtr items, ItemsOf(input, budget));
  if (!items->items.empty()) return items->items.front();
  return Value::OfUndefined("there is no first item: the sequence is empty");
}

Result FilterLast(const Value& input, const Arguments& arguments, Budget* budget) {
  CONVENE_RETURN_IF_ERROR(arguments.Bind({}).status());
  if (input.is_list() && input.as_list().kind == ListKind::kGenerator) {
    return absl::InvalidArgumentError("a generator has no last item: write |list before |last");
  }
  CONVENE_ASSIGN_OR_RETURN(const ListPtr items, ItemsOf(input, budget));
  if (!items->items.empty()) return items->items.back();
  return Value::OfUndefined("there is no last item: the sequence is empty");
}

Result FilterReverse(const Value& input, const Arguments& arguments, Budget* budget) {
  CONVENE_RETURN_IF_ERROR(arguments.Bind({}).status());
  CONVENE_ASSIGN_OR_RETURN(const ListPtr items, ItemsOf(input, budget));
  std::vector<Value> reversed(items->items.rbegin(), items->items.rend());
  if (!input.is_string()) return NewList(std::move(reversed), ListKind::kGenerator);
  std::string text;
  for (const Value& character : reversed) text += character.as_string();
  return Value::OfString(std::move(text));
}

Result FilterJoin(const Value& input, const Arguments& arguments, Budget* budget) {
  CONVENE_ASSIGN_OR_RETURN(const auto bound, arguments.Bind({"d", "attribute"}));
  CONVENE_ASSIGN_OR_RETURN(const AttributePath path, AttributePath::Of(bound[1]));
  std::string separator;
  if (bound[0] != nullptr) {
    CONVENE_ASSIGN_OR_RETURN(separator, ToString(*bound[0], budget));
  }
  CONVENE_ASSIGN_OR_RETURN(const ListPtr items, ItemsOf(input, budget));
  std::string joined;
  for (size_t i = 0; i < items->items.size(); ++i) {
    CONVENE_ASSIGN_OR_RETURN(const Value part, path.Follow(items->items[i], nullptr, budget));
    CONVENE_RETURN_IF_ERROR(budget->CheckBytes(joined.size() + separator.size()));
    CONVENE_RETURN_IF_ERROR(budget->ChargeBytes(separator.size()));
    if (i > 0) joined += separator;
    CONVENE_RETURN_IF_ERROR(AppendString(part, budget, &joined));
  }
  return Value::OfString(std::move(joined));
}

Result FilterItems(const Value& input, const Arguments& arguments, Budget* budget) {
  CONVENE_RETURN_IF_ERROR(arguments.Bind({}).status());
  std::vector<Value> items;
  if (!input.is_dict() && !input.is_undefined()) {
    return absl::InvalidArgumentError(absl::StrCat("items of ", input.KindName()));
  }
  if (input.is_dict()) {
    CONVENE_RETURN_IF_ERROR(budget->Charge(input.as_dict().entries().size()));
    for (const auto& [key, value] : input.as_dict().entries()) {
      CONVENE_ASSIGN_OR_RETURN(Value pair,
                               NewList({Value::OfString(key), value}, ListKind::kTuple));
      items.push_back(std::move(pair));
    }
  }
  return NewList(std::move(items), ListKind::kGenerator);
}

// Stable, as Python's sorted(), also in reverse.
Result Sorted(const std::vector<Value>& items, const std::vector<Value>& keys, bool reverse,
              Budget* budget) {
  std::vector<size_t> order(items.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  absl::Status status;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    // Once two cannot be compared, all are equal, which brings the sort to its end.
    if (!status.ok()) return false;
    const absl::StatusOr<int> compared = Compare(keys[a], keys[b], budget);
    status = compared.status();
    return compared.ok() && (reverse ? *compared > 0 : *compared < 0);
  });
  CONVENE_RETURN_IF_ERROR(status);
  std::vector<Value> sorted;
  for (const size_t i : order) sorted.push_back(items[i]);
  return NewList(std::move(sorted));
}

Result FilterSort(const Value& input, const Arguments& arguments, Budget* budget) {
  CONVENE_ASSIGN_OR_RETURN(const auto bound,
                           arguments.Bind({"reverse", "case_sensitive", "attribute"}));
  if (bound[2] != nullptr && bound[2]->is_string() &&
      bound[2]->as_string().find(',') != std::string::npos) {
    return absl::UnimplementedError("sort by several attributes");
  }
  CONVENE_ASSIGN_OR_RETURN(const AttributePath path, AttributePath::Of(bound[2]));
  CONVENE_ASSIGN_OR_RETURN(const ListPtr list, ItemsOf(input, budget));
  CONVENE_ASSIGN_OR_RETURN(const auto keys, KeysOf(*list, path, Flag(bound[1]), budget));
  return Sorted(list->items, keys, Flag(bound[0]), budget);
}

Result FilterDictsort(const Value& input, const Arguments& arguments, Budget* budget) {
  CONVENE_ASSIGN_OR_RETURN(const auto bound, arguments.Bind({"case_sensitive", "by", "reverse"}));
  if (!input.is_dict()) {
    return absl::InvalidArgumentError(absl::StrCat("dictsort of ", input.KindName()));
  }
  const bool by_value =
      bound[1] != nullptr && bound[1]->is_string() && bound[1]->as_string() == "value";
  CONVENE_ASSIGN_OR_RETURN(const Value pairs, FilterItems(input, Arguments(), budget));
  CONVENE_ASSIGN_OR_RETURN(const ListPtr list, ItemsOf(pairs, budget));
  const Value index = Value::OfInt(by_value ? 1 : 0);
  CONVENE_ASSIGN_OR_RETURN(const AttributePath path, AttributePath::Of(&index));
  CONVENE_ASSIGN_OR_RETURN(const auto keys, KeysOf(*list, path, Flag(bound[0]), budget));
  return Sorted(list->items, keys, Flag(bound[2]), budget);
}

Result FilterUnique(const Value& input, const Arguments& arguments, Budget* budget) {
  CONVENE_ASSIGN_OR_RETURN(const auto bound, arguments.Bind({"case_sensitive", "attribute"}));
  CONVENE_ASSIGN_OR_RETURN(const AttributePath path, AttributePath::Of(bound[1]));
  CONVENE_ASSIGN_OR_RETURN(const ListPtr list, ItemsOf(input, budget));
  CONVENE_ASSIGN_OR_RETURN(const auto keys, KeysOf(*list, path, Flag(bound[0]), budget));
  std::vector<Value> kept;
  std::vector<const Value*> seen;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (keys[i].is_list() || keys[i].is_dict()) {
      return absl::InvalidArgumentError(absl::StrCat("unique of ", keys[i].KindName()));
    }
    bool found = false;
    for (size_t k = 0; k < seen.size() && !found; ++k) {
      CONVENE_ASSIGN_OR_RETURN(found, Equal(*seen[k], keys[i], budget));
    }
    if (found) continue;
    seen.push_back(&keys[i]);
    kept.push_back(list->items[i]);
  }
  return NewList(std::move(kept), ListKind::kGenerator);
}

// The first item that is the least, or, with 1, the greatest.
template <int wanted>
Result Extreme(const Value& input, const Arguments& arguments, Budget* budget) {
  CONVENE_ASSIGN_OR_RETURN(const auto bound, arguments.Bind({"case_sensitive", "attribute"}));
  CONVENE_ASSIGN_OR_RETURN(const AttributePath path, AttributePath::Of(bound[1]));
  CONVENE_ASSIGN_OR_RETURN(const ListPtr list, ItemsOf(input, budget));
  if (list->items.empty()) return Value::OfUndefined("min or max of an empty sequence");
  CONVENE_ASSIGN_OR_RETURN(const auto keys, KeysOf(*list, path, Flag(bound[0]), budget));
  size_t best = 0;
  for (size_t i = 1; i < keys.size(); ++i) {
    CONVENE_ASSIGN_OR_RETURN(const int order, Compare(keys[i], keys[best], budget));
    if (order == wanted) best = i;
  }
  return list->items[best];
}

Result FilterSum(const Value& input, const Arguments& arguments, Budget* budget) {
  CONVENE_ASSIGN_OR_RETURN(const auto bound, arguments.Bind({"attribute", "start"}));
  CONVENE_ASSIGN_OR_RETURN(const AttributePath path, AttributePath::Of(bound[0]));
  CONVENE_ASSIGN_OR_RETURN(const ListPtr list, ItemsOf(input, budget));
  Value sum = bound[1] != nullptr ? *bound[1] : Value::OfInt(0);
  if (sum.is_string()) return absl::InvalidArgumentError("sum that starts with a string");
  for (const Value& item : list->items) {
    CONVENE_ASSIGN_OR_RETURN(const Value part, path.Follow(item, nullptr, budget));
    CONVENE_ASSIGN_OR_RETURN(sum, Calculate(ExpressionKind::kAdd, sum, part, budget));
  }
  return sum;
}

Result FilterMap(const Value& input, const Arguments& arguments, Budget* budget) {
  if (!input.Truth()) return NewList({}, ListKind::kGenerator);
  CONVENE_ASSIGN_OR_RETURN(const ListPtr list, ItemsOf(input, budget));
  std::vector<Value> mapped;
  if (arguments.positional_count() == 0) {
    CONVENE_ASSIGN_OR_RETURN(const auto bound, arguments.Bind({"attribute", "default"}, 1));
    CONVENE_ASSIGN_OR_RETURN(const AttributePath path, AttributePath::Of(bound[0]));
    for (const Value& item : list->items) {
      CONVENE_ASSIGN_OR_RETURN(Value value, path.Follow(item, bound[1], budget));
      mapped.push_back(std::move(value));
    }
    return NewList(std::move(mapped), ListKind::kGenerator);
  }
  const Value& name = arguments.positional(0);
  const FilterEntry* const filter = name.is_string() ? FindFilter(name.as_string()) : nullptr;
  if (filter == nullptr) {
    return absl::UnimplementedError(
        absl::StrCat("map by the filter '", name.is_string() ? name.as_string() : name.KindName(),
                     "' is not in the subset of Jinja2 that we know"));
  }
  const Arguments rest = arguments.Without(1);
  for (const Value& item : list->items) {
    CONVENE_ASSIGN_OR_RETURN(Value value, ApplyFilter(*filter, item, rest, budget));
    mapped.push_back(std::move(value));
  }
  return NewList(std::move(mapped), ListKind::kGenerator);
}

// select, reject, selectattr, rejectattr: the items of which the test is `wanted`.
template <bool by_attribute, bool wanted>
Result Choose(const Value& input, const Arguments& arguments, Budget* budget) {
  if (!input.Truth()) return NewList({}, ListKind::kGenerator);
  const size_t offset = by_attribute ? 1 : 0;
  AttributePath path;
  if (by_attribute) {
    if (arguments.positional_count() == 0) {
      return absl::InvalidArgumentError("selectattr and rejectattr need an attribute's name");
    }
    CONVENE_ASSIGN_OR_RETURN(path, AttributePath::Of(&arguments.positional(0)));
  }
  const TestEntry* test = nullptr;
  if (arguments.positional_count() > offset) {
    const Value& name = arguments.positional(offset);
    test = name.is_string() ? FindTest(name.as_string()) : nullptr;
    if (test == nullptr) {
      return absl::UnimplementedError(
          absl::StrCat("the test '", name.is_string() ? name.as_string() : name.KindName(),
                       "' is not in the subset of Jinja2 that we know"));
    }
  }
  CONVENE_ASSIGN_OR_RETURN(const ListPtr list, ItemsOf(input, budget));
  const Arguments rest = arguments.Without(offset + 1);
  std::vector<Value> chosen;
  for (const Value& item : list->items) {
    CONVENE_ASSIGN_OR_RETURN(const Value subject, path.Follow(item, nullptr, budget));
    bool passes = false;
    if (test == nullptr) {
      passes = subject.Truth();
    } else {
      CONVENE_ASSIGN_OR_RETURN(passes, test->function(subject, rest, budget));
    }
    if (passes == wanted) chosen.push_back(item);
  }
  return NewList(std::move(chosen), ListKind::kGenerator);
}

}  // namespace

const FilterEntry kSequenceFilters[] = {{"count", FilterLength},
                                        {"dictsort", FilterDictsort},
                                        {"first", FilterFirst},
                                        {"items", FilterItems},
                                        {"join", FilterJoin},
                                        {"last", FilterLast},
                                        {"length", FilterLength},
                                        {"list", FilterList},
                                        {"map", FilterMap},
                                        {"max", Extreme<1>},
                                        {"min", Extreme<-1>},
                                        {"reject", Choose<false, false>},
                                        {"rejectattr", Choose<true, false>},
                                        {"reverse", FilterReverse},
                                        {"select", Choose<false, true>},
                                        {"selectattr", Choose<true, true>},
                                        {"sort", FilterSort},
                                        {"sum", FilterSum},
                                        {"unique", FilterUnique},
                                        {nullptr, nullptr}};

const FilterEntry* FindFilter(absl::string_view name) {
  for (const FilterEntry* const table : {kTextFilters, kSequenceFilters}) {
    for (const FilterEntry* entry = table; entry->name != nullptr; ++entry) {
      if (name == entry->name) return entry;
    }
  }
  return nullptr;
}

absl::StatusOr<Value> ApplyFilter(const FilterEntry& filter, const Value& input,
                                  const Arguments& arguments, Budget* budget) {
  // A filter may walk over the texts that it is given; over lists it says so itself.
  if (input.is_string()) CONVENE_RETURN_IF_ERROR(budget->Charge(WeightOf(input)));
  for (const Value& value : arguments.values()) {
    if (value.is_string()) CONVENE_RETURN_IF_ERROR(budget->Charge(WeightOf(value)));
  }
  return filter.function(input, arguments, budget);
}

}  // namespace convene::worker::jinja
