// PURE. The functions that Jinja2 and Python have by name: filters (tojson as transformers defines
// it), tests, and the methods of str, dict, list and tuple.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "worker_runtime/data/chat/jinja/budget.h"
#include "worker_runtime/data/chat/jinja/value.h"

namespace convene::worker::jinja {

// The arguments of one call, as the template gives them.
class Arguments {
 public:
  Arguments() = default;
  // The last `names.size()` of `values` have these names. `names` must outlive the arguments.
  Arguments(std::vector<Value> values, const std::vector<std::string>* names)
      : values_(std::move(values)), names_(names) {}

  const std::vector<Value>& values() const { return values_; }
  size_t positional_count() const { return values_.size() - named_count(); }
  size_t named_count() const { return names_ == nullptr ? 0 : names_->size(); }
  const Value& positional(size_t i) const { return values_[i]; }
  const std::string& name(size_t i) const { return (*names_)[i]; }
  const Value& named(size_t i) const { return values_[positional_count() + i]; }

  // The same arguments without the first `count` positional ones.
  Arguments Without(size_t count) const;

 private:
  std::vector<Value> values_;
  const std::vector<std::string>* names_ = nullptr;
};

// The arguments of one call in the order of the function's parameters. Must not outlive them.
class Bound {
 public:
  static constexpr size_t kMost = 4;

  // InvalidArgument: too many, an unknown name, one given twice, or one of the first `required` is
  // missing. REQUIRES: kMost parameters at most.
  static absl::StatusOr<Bound> Of(absl::Span<const char* const> parameters, size_t required,
                                  const Arguments& arguments);
  // Of a function that takes any arguments and looks at all() itself.
  explicit Bound(const Arguments& all) : all_(&all) {}
  // One argument, for a function that does not look at all().
  explicit Bound(const Value* only) : values_{only} {}

  // nullptr: not given.
  const Value* operator[](size_t i) const { return values_[i]; }
  // Whether it is given and no None.
  bool Has(size_t i) const { return values_[i] != nullptr && !values_[i]->is_none(); }
  bool HasText(size_t i) const { return values_[i] != nullptr && values_[i]->is_string(); }
  Value Or(size_t i, Value missing) const {
    if (values_[i] != nullptr) return *values_[i];
    return missing;
  }
  // Whether it is given and true.
  bool IsTrue(size_t i) const { return values_[i] != nullptr && values_[i]->Truth(); }
  // InvalidArgument: another value. REQUIRES, of Text: it is given.
  absl::StatusOr<int64_t> Integer(size_t i, int64_t missing) const;
  absl::StatusOr<absl::string_view> Text(size_t i) const;
  const Arguments& all() const { return *all_; }

 private:
  std::array<const Value*, kMost> values_ = {};
  const Arguments* all_ = nullptr;
};

// InvalidArgument: no string.
absl::StatusOr<absl::string_view> TextOf(const Value& value);

// `subject`: the filter's input, the tested value, the method's object. InvalidArgument: Jinja2
// fails too. Unimplemented: it does not. ResourceExhausted: a limit.
using BuiltinFunction = absl::StatusOr<Value> (*)(const Value& subject, const Bound& arguments,
                                                  Budget* budget);

struct Builtin {
  const char* name;
  BuiltinFunction function;
  const char* parameters[Bound::kMost] = {};
  size_t required = 0;     // so many of the parameters must be given
  bool takes_any = false;  // has no parameters: see Bound::all
};

// Binds the arguments and calls the function. A test gives true or false.
absl::StatusOr<Value> CallBuiltin(const Builtin& builtin, const Value& subject,
                                  const Arguments& arguments, Budget* budget);
// The filter's value for `input`; charges for the texts that it is given.
absl::StatusOr<Value> ApplyFilter(const Builtin& filter, const Value& input,
                                  const Arguments& arguments, Budget* budget);

// nullptr: not known here.
const Builtin* FindFilter(absl::string_view name);
const Builtin* FindTest(absl::string_view name);

// Whether Python's type has a method of this name, whether we know it or not.
bool HasMethod(const Value& value, absl::string_view name);
// InvalidArgument: wrong arguments, or a method that changes its object, which the sandbox of
// transformers refuses. Unimplemented: a method that we do not know.
absl::StatusOr<Value> CallMethod(const Method& method, const Arguments& arguments, Budget* budget);
// The value of a method of strings for the subject's text, with all of the arguments.
absl::StatusOr<Value> CallOnText(const char* method, const Value& subject, const Bound& arguments,
                                 Budget* budget);
// The same as a filter or test.
template <const char* method>
absl::StatusOr<Value> AsMethod(const Value& subject, const Bound& arguments, Budget* budget) {
  return CallOnText(method, subject, arguments, budget);
}

// Python's text.replace(from, to, count); a negative count replaces all. ResourceExhausted: the
// result is too long.
absl::StatusOr<std::string> Replace(absl::string_view text, absl::string_view from,
                                    absl::string_view to, int64_t count, Budget* budget);

// The parts of these tables, each in its own file.
absl::Span<const Builtin> TextFilters();
absl::Span<const Builtin> SequenceFilters();
absl::Span<const Builtin> StringMethods();
// nullptr: none has this name.
const Builtin* FindIn(absl::Span<const Builtin> table, absl::string_view name);

// {key, value} as a tuple, for each entry.
absl::StatusOr<std::vector<Value>> PairsOf(const Dict& dict);

}  // namespace convene::worker::jinja
