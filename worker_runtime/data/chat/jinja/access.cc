#include "worker_runtime/data/chat/jinja/operations.h"

#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/data/chat/jinja/builtins.h"
#include "worker_runtime/data/chat/jinja/characters.h"

namespace convene::worker::jinja {
namespace {

Value NoSuch(const Value& value, const std::string& name) {
  return Value::OfUndefined(absl::StrCat(value.KindName(), " has no '", name, "'"));
}

// For CharacterBegins, which writes a number for each character.
absl::Status ChargeBegins(const std::string& text, Budget* budget) {
  return budget->ChargeWalks(sizeof(size_t), text.size());
}

// The item at a Python index of a sequence of `size`; nothing: out of range.
std::optional<size_t> IndexOf(const Value& key, size_t size) {
  if (!key.is_integral()) return std::nullopt;
  const int64_t index = key.as_int() < 0 ? key.as_int() + static_cast<int64_t>(size) : key.as_int();
  if (index < 0 || index >= static_cast<int64_t>(size)) return std::nullopt;
  return static_cast<size_t>(index);
}

// The value under a key or index; nothing: there is none.
std::optional<Value> Subscript(const Value& value, const Value& key) {
  if (value.is_dict()) {
    const Value* const found = key.is_string() ? value.as_dict().Find(key.as_string()) : nullptr;
    if (found != nullptr) return *found;
  } else if (value.is_list()) {
    const List& list = value.as_list();
    if (list.kind == ListKind::kView || list.kind == ListKind::kGenerator) return std::nullopt;
    if (const auto index = IndexOf(key, list.items.size())) return list.items[*index];
  } else if (value.is_string()) {
    const std::string& text = value.as_string();
    const std::vector<size_t> begins = CharacterBegins(text);
    if (const auto index = IndexOf(key, begins.size() - 1)) {
      return Value::OfString(text.substr(begins[*index], begins[*index + 1] - begins[*index]));
    }
  }
  return std::nullopt;
}

absl::StatusOr<std::optional<int64_t>> SliceBound(const Value* bound) {
  if (bound == nullptr || bound->is_none()) return std::optional<int64_t>();
  if (bound->is_integral()) return std::optional<int64_t>(bound->as_int());
  return absl::InvalidArgumentError(
      absl::StrCat("a slice's bounds are integers, not ", bound->KindName()));
}

}  // namespace

absl::StatusOr<Value> GetAttribute(const Value& value, const std::string& name) {
  if (value.is_undefined()) return absl::InvalidArgumentError(value.why_undefined());
  if (value.is_namespace()) {
    const auto found = value.as_namespace()->attributes.find(name);
    return found == value.as_namespace()->attributes.end() ? NoSuch(value, name) : found->second;
  }
  if (HasMethod(value, name)) return Value::OfMethod(value, name);
  if (value.is_dict()) {
    if (const Value* const found = value.as_dict().Find(name)) return *found;
  }
  return NoSuch(value, name);
}

absl::StatusOr<Value> GetItem(const Value& value, const Value& key, Budget* budget) {
  if (value.is_undefined()) return absl::InvalidArgumentError(value.why_undefined());
  if (value.is_string()) CONVENE_RETURN_IF_ERROR(ChargeBegins(value.as_string(), budget));
  // Finding a key walks over it.
  if (key.is_string()) CONVENE_RETURN_IF_ERROR(budget->Charge(WeightOf(key)));
  if (std::optional<Value> found = Subscript(value, key)) return *std::move(found);
  if (key.is_string()) return GetAttribute(value, key.as_string());
  return Value::OfUndefined(
      absl::StrCat(value.KindName(), " has nothing under ",
                   key.is_integral() ? absl::StrCat("index ", key.as_int()) : key.KindName()));
}

absl::StatusOr<Value> GetSlice(const Value& value, const Value* start, const Value* stop,
                               const Value* step, Budget* budget) {
  if (value.is_undefined()) return absl::InvalidArgumentError(value.why_undefined());
  CONVENE_ASSIGN_OR_RETURN(const auto first, SliceBound(start));
  CONVENE_ASSIGN_OR_RETURN(const auto last, SliceBound(stop));
  CONVENE_ASSIGN_OR_RETURN(const auto stride, SliceBound(step));
  if (stride == int64_t{0}) return absl::InvalidArgumentError("a slice's step cannot be zero");
  const int64_t by = stride.value_or(1);
  if (value.is_string()) {
    const std::string& text = value.as_string();
    CONVENE_RETURN_IF_ERROR(ChargeBegins(text, budget));
    const std::vector<size_t> begins = CharacterBegins(text);
    std::string slice;
    for (const int64_t i : SliceIndices(begins.size() - 1, first, last, by)) {
      slice.append(text, begins[i], begins[i + 1] - begins[i]);
    }
    return Value::OfString(std::move(slice));
  }
  const bool sliceable = value.is_list() && value.as_list().kind != ListKind::kView &&
                         value.as_list().kind != ListKind::kGenerator;
  if (!sliceable) {
    return absl::InvalidArgumentError(absl::StrCat("there are no slices of ", value.KindName()));
  }
  const List& list = value.as_list();
  CONVENE_RETURN_IF_ERROR(budget->Charge(list.items.size()));
  std::vector<Value> items;
  for (const int64_t i : SliceIndices(list.items.size(), first, last, by)) {
    items.push_back(list.items[i]);
  }
  return NewList(std::move(items), list.kind);
}

absl::StatusOr<ListPtr> ItemsOf(const Value& value, Budget* budget) {
  if (value.is_list()) {
    const List& list = value.as_list();
    CONVENE_RETURN_IF_ERROR(budget->Charge(list.items.size()));
    if (list.kind == ListKind::kGenerator) {
      if (list.used_up) {
        return absl::UnimplementedError(
            "walking twice over what map, select, reject, items, unique or reverse give: Jinja2 "
            "has nothing left then; write |list behind the filter");
      }
      list.used_up = true;
    }
    return value.list_ptr();
  }
  std::vector<Value> items;
  if (value.is_string()) {
    const std::string& text = value.as_string();
    CONVENE_RETURN_IF_ERROR(budget->Charge(kPartSteps * static_cast<int64_t>(text.size())));
    for (size_t i = 0; i < text.size(); i += CharacterLength(text[i])) {
      items.push_back(Value::OfString(text.substr(i, CharacterLength(text[i]))));
    }
  } else if (value.is_dict()) {
    CONVENE_RETURN_IF_ERROR(budget->Charge(value.as_dict().entries().size()));
    for (const auto& entry : value.as_dict().entries()) {
      items.push_back(Value::OfString(entry.first));
    }
  } else if (!value.is_undefined()) {
    return absl::InvalidArgumentError(absl::StrCat("cannot walk over ", value.KindName()));
  }
  CONVENE_ASSIGN_OR_RETURN(const Value list, NewList(std::move(items)));
  return list.list_ptr();
}

absl::StatusOr<int64_t> LengthOf(const Value& value) {
  if (value.is_string()) return CountCharacters(value.as_string());
  if (value.is_dict()) return value.as_dict().entries().size();
  if (value.is_list() && value.as_list().kind != ListKind::kGenerator) {
    return value.as_list().items.size();
  }
  if (value.is_undefined()) return 0;
  return absl::InvalidArgumentError(absl::StrCat(value.KindName(), " has no length"));
}

absl::Status CheckKey(const Value& key) {
  const bool mutable_list = key.is_list() && key.as_list().kind == ListKind::kList;
  if (!mutable_list && !key.is_dict()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(key.KindName(), " cannot be a dict's key"));
}

absl::StatusOr<bool> IsIn(const Value& item, const Value& container, Budget* budget) {
  if (container.is_string()) {
    if (!item.is_string()) {
      return absl::InvalidArgumentError(
          absl::StrCat("'in' a string needs a string, not ", item.KindName()));
    }
    const size_t bytes = container.as_string().size();
    CONVENE_RETURN_IF_ERROR(budget->ChargeBytes(bytes));
    CONVENE_RETURN_IF_ERROR(budget->ChargeSearch(bytes, item.as_string().size()));
    return absl::StrContains(container.as_string(), item.as_string());
  }
  if (container.is_dict()) {
    CONVENE_RETURN_IF_ERROR(CheckKey(item));
    CONVENE_RETURN_IF_ERROR(budget->Charge(WeightOf(item)));
    return item.is_string() && container.as_dict().Find(item.as_string()) != nullptr;
  }
  CONVENE_ASSIGN_OR_RETURN(const ListPtr items, ItemsOf(container, budget));
  for (const Value& candidate : items->items) {
    CONVENE_ASSIGN_OR_RETURN(const bool equal, Equal(item, candidate, budget));
    if (equal) return true;
  }
  return false;
}

}  // namespace convene::worker::jinja
