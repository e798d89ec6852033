// PURE. The arguments of one call.
#pragma once

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "worker_runtime/data/chat/jinja/value.h"

namespace convene::worker::jinja {

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

  // The arguments in the order of `parameters`; nullptr for one that is not given.
  // InvalidArgument: too many, an unknown name, one given twice, or one of the first `required` is
  // missing.
  absl::StatusOr<std::vector<const Value*>> Bind(std::initializer_list<const char*> parameters,
                                                 size_t required = 0) const;
  // The same arguments without the first `count` positional ones.
  Arguments Without(size_t count) const;

 private:
  std::vector<Value> values_;
  const std::vector<std::string>* names_ = nullptr;
};

}  // namespace convene::worker::jinja
