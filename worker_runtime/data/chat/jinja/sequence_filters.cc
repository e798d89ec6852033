// Part of builtins.h: filters over sequences.
#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/data/chat/jinja/builtins.h"
#include "worker_runtime/data/chat/jinja/characters.h"
#include "worker_runtime/data/chat/jinja/operations.h"
#include "worker_runtime/data/chat/jinja/print.h"

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

// The items of a sequence, and the keys by which a filter sorts or compares them.
struct KeyedItems {
  std::vector<Value> items, keys;
};

// By an attribute, or without one by the item itself; of strings the lower case, unless it matters.
absl::StatusOr<KeyedItems> KeysOf(std::vector<Value> items, const Value* attribute,
                                  bool case_sensitive, Budget* budget) {
  CONVENE_ASSIGN_OR_RETURN(const AttributePath path, AttributePath::Of(attribute));
  KeyedItems keyed = {std::move(items), {}};
  for (const Value& item : keyed.items) {
    CONVENE_ASSIGN_OR_RETURN(Value key, path.Follow(item, nullptr, budget));
    if (key.is_string() && !case_sensitive) {
      CONVENE_RETURN_IF_ERROR(budget->ChargeBytes(key.as_string().size()));
      CONVENE_ASSIGN_OR_RETURN(std::string lower, Lower(key.as_string()));
      key = Value::OfString(std::move(lower));
    }
    keyed.keys.push_back(std::move(key));
  }
  return keyed;
}

Result FilterLength(const Value& input, const Bound&, Budget*) {
  CONVENE_ASSIGN_OR_RETURN(const int64_t length, LengthOf(input));
  return Value::OfInt(length);
}

Result FilterList(const Value& input, const Bound&, Budget* budget) {
  CONVENE_ASSIGN_OR_RETURN(const ListPtr items, ItemsOf(input, budget));
  return NewList(items->items);
}

Result FilterFirst(const Value& input, const Bound&, Budget* budget) {
  CONVENE_ASSIGN_OR_RETURN(const ListPtr items, ItemsOf(input, budget));
  if (!items->items.empty()) return items->items.front();
  return Value::OfUndefined("there is no first item: the sequence is empty");
}

Result FilterLast(const Value& input, const Bound&, Budget* budget) {
  if (input.is_list() && input.as_list().kind == ListKind::kGenerator) {
    return absl::InvalidArgumentError("a generator has no last item: write |list before |last");
  }
  CONVENE_ASSIGN_OR_RETURN(const ListPtr items, ItemsOf(input, budget));
  if (!items->items.empty()) return items->items.back();
  return Value::OfUndefined("there is no last item: the sequence is empty");
}

Result FilterReverse(const Value& input, const Bound&, Budget* budget) {
  CONVENE_ASSIGN_OR_RETURN(const ListPtr items, ItemsOf(input, budget));
  std::vector<Value> reversed(items->items.rbegin(), items->items.rend());
  if (!input.is_string()) return NewList(std::move(reversed), ListKind::kGenerator);
  std::string text;
  for (const Value& character : reversed) text += character.as_string();
  return Value::OfString(std::move(text));
}

Result FilterJoin(const Value& input, const Bound& arguments, Budget* budget) {
  CONVENE_ASSIGN_OR_RETURN(const AttributePath path, AttributePath::Of(arguments[1]));
  std::string separator;
  if (arguments[0] != nullptr) {
    CONVENE_ASSIGN_OR_RETURN(separator, ToString(*arguments[0], budget));
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

Result FilterItems(const Value& input, const Bound&, Budget* budget) {
  if (input.is_undefined()) return NewList({}, ListKind::kGenerator);
  if (!input.is_dict()) {
    return absl::InvalidArgumentError(absl::StrCat("items of ", input.KindName()));
  }
  CONVENE_RETURN_IF_ERROR(budget->Charge(input.as_dict().entries().size()));
  CONVENE_ASSIGN_OR_RETURN(std::vector<Value> pairs, PairsOf(input.as_dict()));
  return NewList(std::move(pairs), ListKind::kGenerator);
}

// Stable, as Python's sorted(), also in reverse.
Result Sorted(const KeyedItems& keyed, bool reverse, Budget* budget) {
  std::vector<size_t> order(keyed.items.size());
  std::iota(order.begin(), order.end(), size_t{0});
  absl::Status status;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    // Once two cannot be compared, all are equal, which brings the sort to its end.
    if (!status.ok()) return false;
    const absl::StatusOr<int> compared = Compare(keyed.keys[a], keyed.keys[b], budget);
    status = compared.status();
    return compared.ok() && (reverse ? *compared > 0 : *compared < 0);
  });
  CONVENE_RETURN_IF_ERROR(status);
  std::vector<Value> sorted;
  for (const size_t i : order) sorted.push_back(keyed.items[i]);
  return NewList(std::move(sorted));
}

Result FilterSort(const Value& input, const Bound& arguments, Budget* budget) {
  if (arguments.HasText(2) && absl::StrContains(arguments[2]->as_string(), ',')) {
    return absl::UnimplementedError("sort by several attributes");
  }
  CONVENE_ASSIGN_OR_RETURN(const ListPtr list, ItemsOf(input, budget));
  CONVENE_ASSIGN_OR_RETURN(const KeyedItems keyed,
                           KeysOf(list->items, arguments[2], arguments.IsTrue(1), budget));
  return Sorted(keyed, arguments.IsTrue(0), budget);
}

Result FilterDictsort(const Value& input, const Bound& arguments, Budget* budget) {
  if (!input.is_dict()) {
    return absl::InvalidArgumentError(absl::StrCat("dictsort of ", input.KindName()));
  }
  CONVENE_RETURN_IF_ERROR(budget->Charge(2 * input.as_dict().entries().size()));
  CONVENE_ASSIGN_OR_RETURN(std::vector<Value> pairs, PairsOf(input.as_dict()));
  const bool by_value = arguments.HasText(1) && arguments[1]->as_string() == "value";
  const Value index = Value::OfInt(by_value ? 1 : 0);
  CONVENE_ASSIGN_OR_RETURN(const KeyedItems keyed,
                           KeysOf(std::move(pairs), &index, arguments.IsTrue(0), budget));
  return Sorted(keyed, arguments.IsTrue(2), budget);
}

Result FilterUnique(const Value& input, const Bound& arguments, Budget* budget) {
  CONVENE_ASSIGN_OR_RETURN(const ListPtr list, ItemsOf(input, budget));
  CONVENE_ASSIGN_OR_RETURN(const KeyedItems keyed,
                           KeysOf(list->items, arguments[1], arguments.IsTrue(0), budget));
  std::vector<Value> kept;
  std::vector<const Value*> seen;
  for (size_t i = 0; i < keyed.keys.size(); ++i) {
    const Value& key = keyed.keys[i];
    if (key.is_list() || key.is_dict()) {
      return absl::InvalidArgumentError(absl::StrCat("unique of ", key.KindName()));
    }
    bool found = false;
    for (size_t k = 0; k < seen.size() && !found; ++k) {
      CONVENE_ASSIGN_OR_RETURN(found, Equal(*seen[k], key, budget));
    }
    if (found) continue;
    seen.push_back(&key);
    kept.push_back(keyed.items[i]);
  }
  return NewList(std::move(kept), ListKind::kGenerator);
}

// The first item that is the least, or, with 1, the greatest.
template <int wanted>
Result Extreme(const Value& input, const Bound& arguments, Budget* budget) {
  CONVENE_ASSIGN_OR_RETURN(const ListPtr list, ItemsOf(input, budget));
  if (list->items.empty()) return Value::OfUndefined("min or max of an empty sequence");
  CONVENE_ASSIGN_OR_RETURN(const KeyedItems keyed,
                           KeysOf(list->items, arguments[1], arguments.IsTrue(0), budget));
  size_t best = 0;
  for (size_t i = 1; i < keyed.keys.size(); ++i) {
    CONVENE_ASSIGN_OR_RETURN(const int order, Compare(keyed.keys[i], keyed.keys[best], budget));
    if (order == wanted) best = i;
  }
  return keyed.items[best];
}

Result FilterSum(const Value& input, const Bound& arguments, Budget* budget) {
  CONVENE_ASSIGN_OR_RETURN(const AttributePath path, AttributePath::Of(arguments[0]));
  CONVENE_ASSIGN_OR_RETURN(const ListPtr list, ItemsOf(input, budget));
  Value sum = arguments.Or(1, Value::OfInt(0));
  if (sum.is_string()) return absl::InvalidArgumentError("sum that starts with a string");
  for (const Value& item : list->items) {
    CONVENE_ASSIGN_OR_RETURN(const Value part, path.Follow(item, nullptr, budget));
    CONVENE_ASSIGN_OR_RETURN(sum, Calculate(ExpressionKind::kAdd, sum, part, budget));
  }
  return sum;
}

// The filter or test that the argument `name` names.
absl::StatusOr<const Builtin*> Named(const Value& name, const char* kind,
                                     const Builtin* (*find)(absl::string_view)) {
  const Builtin* const found = name.is_string() ? find(name.as_string()) : nullptr;
  if (found != nullptr) return found;
  return NotInSubset(
      absl::StrCat("the ", kind, " '", name.is_string() ? name.as_string() : name.KindName(), "'"));
}

Result FilterMap(const Value& input, const Bound& bound, Budget* budget) {
  const Arguments& arguments = bound.all();
  if (!input.Truth()) return NewList({}, ListKind::kGenerator);
  CONVENE_ASSIGN_OR_RETURN(const ListPtr list, ItemsOf(input, budget));
  std::vector<Value> mapped;
  if (arguments.positional_count() == 0) {
    CONVENE_ASSIGN_OR_RETURN(const Bound by_name,
                             Bound::Of({"attribute", "default"}, 1, arguments));
    CONVENE_ASSIGN_OR_RETURN(const AttributePath path, AttributePath::Of(by_name[0]));
    for (const Value& item : list->items) {
      CONVENE_ASSIGN_OR_RETURN(Value value, path.Follow(item, by_name[1], budget));
      mapped.push_back(std::move(value));
    }
    return NewList(std::move(mapped), ListKind::kGenerator);
  }
  CONVENE_ASSIGN_OR_RETURN(const Builtin* const filter,
                           Named(arguments.positional(0), "filter", FindFilter));
  const Arguments rest = arguments.Without(1);
  for (const Value& item : list->items) {
    CONVENE_ASSIGN_OR_RETURN(Value value, ApplyFilter(*filter, item, rest, budget));
    mapped.push_back(std::move(value));
  }
  return NewList(std::move(mapped), ListKind::kGenerator);
}

// select, reject, selectattr, rejectattr: the items of which the test is `wanted`.
template <bool by_attribute, bool wanted>
Result Choose(const Value& input, const Bound& bound, Budget* budget) {
  const Arguments& arguments = bound.all();
  if (!input.Truth()) return NewList({}, ListKind::kGenerator);
  const size_t offset = by_attribute ? 1 : 0;
  if (arguments.positional_count() < offset) {
    return absl::InvalidArgumentError("selectattr and rejectattr need an attribute's name");
  }
  CONVENE_ASSIGN_OR_RETURN(const AttributePath path,
                           AttributePath::Of(by_attribute ? &arguments.positional(0) : nullptr));
  const Builtin* test = nullptr;
  if (arguments.positional_count() > offset) {
    CONVENE_ASSIGN_OR_RETURN(test, Named(arguments.positional(offset), "test", FindTest));
  }
  CONVENE_ASSIGN_OR_RETURN(const ListPtr list, ItemsOf(input, budget));
  const Arguments rest = arguments.Without(offset + 1);
  std::vector<Value> chosen;
  for (const Value& item : list->items) {
    CONVENE_ASSIGN_OR_RETURN(Value subject, path.Follow(item, nullptr, budget));
    if (test != nullptr) {
      CONVENE_ASSIGN_OR_RETURN(subject, CallBuiltin(*test, subject, rest, budget));
    }
    if (subject.Truth() == wanted) chosen.push_back(item);
  }
  return NewList(std::move(chosen), ListKind::kGenerator);
}

constexpr Builtin kFilters[] = {{"count", FilterLength},
                                {"dictsort", FilterDictsort, {"case_sensitive", "by", "reverse"}},
                                {"first", FilterFirst},
                                {"items", FilterItems},
                                {"join", FilterJoin, {"d", "attribute"}},
                                {"last", FilterLast},
                                {"length", FilterLength},
                                {"list", FilterList},
                                {"map", FilterMap, {}, 0, /*takes_any=*/true},
                                {"max", Extreme<1>, {"case_sensitive", "attribute"}},
                                {"min", Extreme<-1>, {"case_sensitive", "attribute"}},
                                {"reject", Choose<false, false>, {}, 0, /*takes_any=*/true},
                                {"rejectattr", Choose<true, false>, {}, 0, /*takes_any=*/true},
                                {"reverse", FilterReverse},
                                {"select", Choose<false, true>, {}, 0, /*takes_any=*/true},
                                {"selectattr", Choose<true, true>, {}, 0, /*takes_any=*/true},
                                {"sort", FilterSort, {"reverse", "case_sensitive", "attribute"}},
                                {"sum", FilterSum, {"attribute", "start"}},
                                {"unique", FilterUnique, {"case_sensitive", "attribute"}}};

}  // namespace

absl::Span<const Builtin> SequenceFilters() { return kFilters; }

}  // namespace convene::worker::jinja
