// PURE. The values of a chat template: what Python's str, int, list, dict and Jinja's Undefined are
// there. A value never changes, apart from a namespace; copying one is cheap.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker_runtime/data/chat/jinja/budget.h"

namespace convene::worker::jinja {

class Value;
class Dict;
struct List;
struct Method;
struct Namespace;
struct Statement;

using StringPtr = std::shared_ptr<const std::string>;
using ListPtr = std::shared_ptr<const List>;
using DictPtr = std::shared_ptr<const Dict>;

// A variable or attribute that is not there; `why` is a sentence such as "'tools' is undefined".
struct Undefined {
  StringPtr why;
  bool is_variable = false;  // not an attribute, an item or the like
};
struct None {};
// A string that the filter 'safe' made: Jinja2 escapes what is added to it.
struct SafeString {
  StringPtr text;
};
enum class Function { kRange, kNamespace, kDict, kRaiseException, kStrftimeNow };

class Value {
 public:
  Value() : data_(Undefined{}) {}
  static Value OfUndefined(std::string why);
  static Value OfUndefinedVariable(std::string why);
  static Value OfNone() { return Value(None{}); }
  static Value OfBool(bool value) { return Value(value); }
  static Value OfInt(int64_t value) { return Value(value); }
  static Value OfFloat(double value) { return Value(value); }
  // REQUIRES: UTF-8.
  static Value OfString(std::string value);
  static Value OfString(StringPtr value) { return Value(std::move(value)); }
  static Value OfSafe(StringPtr value) { return Value(SafeString{std::move(value)}); }
  static Value OfList(ListPtr value) { return Value(std::move(value)); }
  static Value OfDict(DictPtr value) { return Value(std::move(value)); }
  static Value OfNamespace(Namespace* value) { return Value(value); }
  static Value OfMacro(const Statement* value) { return Value(value); }
  static Value OfMethod(Value self, std::string name);
  static Value OfFunction(Function value) { return Value(value); }

  bool is_undefined() const { return Is<Undefined>(); }
  bool is_undefined_variable() const { return is_undefined() && Get<Undefined>().is_variable; }
  bool is_none() const { return Is<None>(); }
  bool is_bool() const { return Is<bool>(); }
  bool is_int() const { return Is<int64_t>(); }
  bool is_float() const { return Is<double>(); }
  bool is_string() const { return Is<StringPtr>() || is_safe(); }
  bool is_safe() const { return Is<SafeString>(); }
  bool is_list() const { return Is<ListPtr>(); }
  bool is_dict() const { return Is<DictPtr>(); }
  bool is_namespace() const { return Is<Namespace*>(); }
  bool is_macro() const { return Is<const Statement*>(); }
  bool is_method() const { return Is<std::shared_ptr<const Method>>(); }
  bool is_function() const { return Is<Function>(); }
  // Python counts True and False among the numbers.
  bool is_integral() const { return is_int() || is_bool(); }
  bool is_number() const { return is_integral() || is_float(); }
  bool is_callable() const { return is_macro() || is_method() || is_function(); }

  // REQUIRES: the value is of that kind; as_int: is_integral(), as_float: is_number().
  int64_t as_int() const { return is_bool() ? Get<bool>() : Get<int64_t>(); }
  double as_float() const { return is_float() ? Get<double>() : static_cast<double>(as_int()); }
  bool as_bool() const { return Get<bool>(); }
  const std::string& as_string() const { return *string_ptr(); }
  const StringPtr& string_ptr() const {
    return is_safe() ? Get<SafeString>().text : Get<StringPtr>();
  }
  const List& as_list() const { return *Get<ListPtr>(); }
  const ListPtr& list_ptr() const { return Get<ListPtr>(); }
  const Dict& as_dict() const { return *Get<DictPtr>(); }
  Namespace* as_namespace() const { return Get<Namespace*>(); }
  const Statement* as_macro() const { return Get<const Statement*>(); }
  const Method& as_method() const { return *Get<std::shared_ptr<const Method>>(); }
  Function as_function() const { return Get<Function>(); }
  // "'tools' is undefined". REQUIRES: is_undefined().
  std::string why_undefined() const;

  // Python's bool(value).
  bool Truth() const;
  // "a string", for messages.
  const char* KindName() const;

 private:
  using Data =
      std::variant<Undefined, None, bool, int64_t, double, StringPtr, SafeString, ListPtr, DictPtr,
                   Namespace*, const Statement*, std::shared_ptr<const Method>, Function>;

  template <typename T>
  explicit Value(T value) : data_(std::move(value)) {}
  template <typename T>
  bool Is() const {
    return std::holds_alternative<T>(data_);
  }
  template <typename T>
  const T& Get() const {
    return *std::get_if<T>(&data_);
  }

  Data data_;
};

// Python and Jinja have several kinds of sequence, which differ in what they allow.
enum class ListKind {
  kList,
  kTuple,
  kRange,
  kView,       // dict.items(), .keys(), .values(): has a length, but no index
  kGenerator,  // of map, select, items, reverse: true even when empty, and can be used once
};

struct List {
  std::vector<Value> items;
  ListKind kind = ListKind::kList;
  int depth = 1;
  int64_t weight = 1;
  mutable bool used_up = false;  // of a generator
};

// Keeps the order of its keys, as Python does. Finding a key takes constant time.
class Dict {
 public:
  using Entries = std::vector<std::pair<StringPtr, Value>>;

  // A key that is there already keeps its place and gets the new value.
  void Set(StringPtr key, Value value);
  void Set(absl::string_view key, Value value) {
    Set(std::make_shared<const std::string>(key), std::move(value));
  }
  // nullptr: no such key.
  const Value* Find(absl::string_view key) const;
  const Entries& entries() const { return entries_; }

 private:
  friend absl::StatusOr<Value> NewDict(Dict dict);
  friend int DepthOf(const Value& value);
  friend int64_t WeightOf(const Value& value);

  Entries entries_;
  // Only of a dict with many keys.
  absl::flat_hash_map<absl::string_view, size_t> places_;
  int depth_ = 1;
  int64_t weight_ = 1;
};

// The one value that changes. The rendering owns it, so that it may contain itself.
struct Namespace {
  absl::flat_hash_map<std::string, Value> attributes;
};

struct Method {
  Value self;
  std::string name;
};

// A list or dict is at most so deep: reading, printing and freeing it recurses.
constexpr int kMaxValueDepth = 100;

// ResourceExhausted: too deep, or too large when it is written out (lists may share their parts).
absl::StatusOr<Value> NewList(std::vector<Value> items, ListKind kind = ListKind::kList);
absl::StatusOr<Value> NewDict(Dict dict);
// The cost of printing or comparing the value, in steps.
int64_t WeightOf(const Value& value);
int DepthOf(const Value& value);

// Unimplemented: Jinja2 has `what`, and we have not.
absl::Status NotInSubset(absl::string_view what);

// Python's ==. A namespace, macro or method equals itself. ResourceExhausted: `budget` is.
absl::StatusOr<bool> Equal(const Value& left, const Value& right, Budget* budget);
// Python's < as -1, 0 or 1. InvalidArgument: no order between these; Unimplemented: lists, NaN.
// ResourceExhausted: `budget` is.
absl::StatusOr<int> Compare(const Value& left, const Value& right, Budget* budget);

}  // namespace convene::worker::jinja
