#include "worker_runtime/data/chat/jinja/value.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"

namespace convene::worker::jinja {
namespace {

constexpr int64_t kMaxWeight = int64_t{1} << 24;
// Up to here a search from the front is as fast as a hash.
constexpr size_t kManyKeys = 16;

int64_t WeightOfText(const std::string& text) {
  return 1 + static_cast<int64_t>(text.size() / kBytesPerStep);
}

absl::Status CheckSize(int depth, int64_t weight) {
  if (depth > kMaxValueDepth) {
    return absl::ResourceExhaustedError(
        absl::StrCat("lists and dicts within each other, more than ", kMaxValueDepth, " deep"));
  }
  if (weight > kMaxWeight) {
    return absl::ResourceExhaustedError("a list or dict with too many parts");
  }
  return absl::OkStatus();
}

bool AreEqual(const Value& left, const Value& right);

bool EqualLists(const List& left, const List& right) {
  if (left.kind != right.kind || left.items.size() != right.items.size()) return false;
  if (&left == &right) return true;
  if (left.kind == ListKind::kGenerator || left.kind == ListKind::kView) return false;
  return std::equal(left.items.begin(), left.items.end(), right.items.begin(), AreEqual);
}

bool EqualDicts(const Dict& left, const Dict& right) {
  if (&left == &right) return true;
  if (left.entries().size() != right.entries().size()) return false;
  return std::all_of(left.entries().begin(), left.entries().end(), [&](const auto& entry) {
    const Value* const other = right.Find(*entry.first);
    return other != nullptr && AreEqual(entry.second, *other);
  });
}

// An int and a float compare exactly: a long double holds every int64.
long double Exact(const Value& number) {
  return number.is_float() ? static_cast<long double>(number.as_float())
                           : static_cast<long double>(number.as_int());
}

bool AreEqual(const Value& left, const Value& right) {
  if (left.is_number() && right.is_number()) return Exact(left) == Exact(right);
  if (left.is_string() && right.is_string()) return left.as_string() == right.as_string();
  if (left.is_list() && right.is_list()) return EqualLists(left.as_list(), right.as_list());
  if (left.is_dict() && right.is_dict()) return EqualDicts(left.as_dict(), right.as_dict());
  if (left.is_undefined()) return right.is_undefined();
  if (left.is_none()) return right.is_none();
  if (left.is_namespace()) {
    return right.is_namespace() && left.as_namespace() == right.as_namespace();
  }
  if (left.is_macro()) return right.is_macro() && left.as_macro() == right.as_macro();
  if (left.is_function()) return right.is_function() && left.as_function() == right.as_function();
  if (left.is_method() && right.is_method()) {
    return left.as_method().name == right.as_method().name &&
           AreEqual(left.as_method().self, right.as_method().self);
  }
  return false;
}

}  // namespace

Value Value::OfUndefined(std::string why) {
  return Value(Undefined{std::make_shared<const std::string>(std::move(why))});
}

Value Value::OfUndefinedVariable(std::string why) {
  return Value(Undefined{std::make_shared<const std::string>(std::move(why)), true});
}

Value Value::OfString(std::string value) {
  return Value(std::make_shared<const std::string>(std::move(value)));
}

Value Value::OfMethod(Value self, std::string name) {
  return Value(std::make_shared<const Method>(Method{std::move(self), std::move(name)}));
}

std::string Value::why_undefined() const {
  const StringPtr& why = Get<Undefined>().why;
  return why == nullptr ? "the value is undefined" : *why;
}

bool Value::Truth() const {
  if (is_undefined() || is_none()) return false;
  if (is_bool()) return as_bool();
  if (is_int()) return as_int() != 0;
  if (is_float()) return as_float() != 0;
  if (is_string()) return !as_string().empty();
  if (is_list()) return as_list().kind == ListKind::kGenerator || !as_list().items.empty();
  if (is_dict()) return !as_dict().entries().empty();
  return true;
}

const char* Value::KindName() const {
  if (is_undefined()) return "an undefined value";
  if (is_none()) return "none";
  if (is_bool()) return "a boolean";
  if (is_int()) return "an integer";
  if (is_float()) return "a float";
  if (is_string()) return "a string";
  if (is_list()) {
    switch (as_list().kind) {
      case ListKind::kList:
        return "a list";
      case ListKind::kTuple:
        return "a tuple";
      case ListKind::kRange:
        return "a range";
      case ListKind::kView:
        return "a view of a dict";
      case ListKind::kGenerator:
        return "a generator";
    }
  }
  if (is_dict()) return "a dict";
  if (is_namespace()) return "a namespace";
  return "a function";
}

void Dict::Set(StringPtr key, Value value) {
  if (const Value* const found = Find(*key)) {
    const_cast<Value&>(*found) = std::move(value);
    return;
  }
  entries_.emplace_back(std::move(key), std::move(value));
  if (entries_.size() < kManyKeys) return;
  if (entries_.size() > kManyKeys) {
    places_[*entries_.back().first] = entries_.size() - 1;
    return;
  }
  for (size_t i = 0; i < entries_.size(); ++i) places_[*entries_[i].first] = i;
}

const Value* Dict::Find(absl::string_view key) const {
  if (entries_.size() >= kManyKeys) {
    const auto found = places_.find(key);
    return found == places_.end() ? nullptr : &entries_[found->second].second;
  }
  for (const auto& entry : entries_) {
    if (*entry.first == key) return &entry.second;
  }
  return nullptr;
}

int64_t WeightOf(const Value& value) {
  if (value.is_string()) return WeightOfText(value.as_string());
  if (value.is_list()) return value.as_list().weight;
  if (value.is_dict()) return value.as_dict().weight_;
  return 1;
}

int DepthOf(const Value& value) {
  if (value.is_list()) return value.as_list().depth;
  if (value.is_dict()) return value.as_dict().depth_;
  return 0;
}

absl::StatusOr<Value> NewList(std::vector<Value> items, ListKind kind) {
  auto list = std::make_shared<List>();
  list->kind = kind;
  for (const Value& item : items) {
    list->depth = std::max(list->depth, DepthOf(item) + 1);
    list->weight += WeightOf(item);
  }
  list->items = std::move(items);
  const absl::Status checked = CheckSize(list->depth, list->weight);
  if (!checked.ok()) return checked;
  return Value::OfList(std::move(list));
}

absl::StatusOr<Value> NewDict(Dict dict) {
  dict.depth_ = 1;
  dict.weight_ = 1;
  for (const auto& [key, value] : dict.entries_) {
    dict.depth_ = std::max(dict.depth_, DepthOf(value) + 1);
    dict.weight_ += WeightOfText(*key) + WeightOf(value);
  }
  const absl::Status checked = CheckSize(dict.depth_, dict.weight_);
  if (!checked.ok()) return checked;
  return Value::OfDict(std::make_shared<const Dict>(std::move(dict)));
}

absl::Status NotInSubset(absl::string_view what) {
  return absl::UnimplementedError(
      absl::StrCat(what, " is not in the subset of Jinja2 that we know"));
}

absl::StatusOr<bool> Equal(const Value& left, const Value& right, Budget* budget) {
  CONVENE_RETURN_IF_ERROR(budget->Charge(std::min(WeightOf(left), WeightOf(right))));
  return AreEqual(left, right);
}

absl::StatusOr<int> Compare(const Value& left, const Value& right, Budget* budget) {
  CONVENE_RETURN_IF_ERROR(budget->Charge(std::min(WeightOf(left), WeightOf(right))));
  if (left.is_undefined() || right.is_undefined()) {
    return absl::InvalidArgumentError(left.is_undefined() ? left.why_undefined()
                                                          : right.why_undefined());
  }
  if (left.is_number() && right.is_number()) {
    const long double a = Exact(left);
    const long double b = Exact(right);
    if (std::isnan(a) || std::isnan(b)) return absl::UnimplementedError("the order of NaN");
    return a < b ? -1 : a > b ? 1 : 0;
  }
  if (left.is_string() && right.is_string()) {
    // UTF-8 sorts as its characters do.
    const int order = left.as_string().compare(right.as_string());
    return order < 0 ? -1 : order > 0 ? 1 : 0;
  }
  if (left.is_list() && right.is_list()) return absl::UnimplementedError("the order of lists");
  return absl::InvalidArgumentError(
      absl::StrCat("there is no order between ", left.KindName(), " and ", right.KindName()));
}

}  // namespace convene::worker::jinja
