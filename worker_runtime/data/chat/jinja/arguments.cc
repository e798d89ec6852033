#include "worker_runtime/data/chat/jinja/arguments.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace convene::worker::jinja {

absl::StatusOr<std::vector<const Value*>> Arguments::Bind(
    std::initializer_list<const char*> parameters, size_t required) const {
  if (positional_count() > parameters.size()) {
    return absl::InvalidArgumentError(absl::StrCat("too many arguments: ", positional_count(),
                                                   " where at most ", parameters.size(),
                                                   " can be given"));
  }
  std::vector<const Value*> bound(parameters.size(), nullptr);
  for (size_t i = 0; i < positional_count(); ++i) bound[i] = &positional(i);
  for (size_t i = 0; i < named_count(); ++i) {
    const auto found = std::find_if(parameters.begin(), parameters.end(),
                                    [&](const char* parameter) { return name(i) == parameter; });
    if (found == parameters.end() || bound[found - parameters.begin()] != nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("the argument '", name(i), "' is unknown, or given twice"));
    }
    bound[found - parameters.begin()] = &named(i);
  }
  for (size_t i = 0; i < required; ++i) {
    if (bound[i] == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("the argument '", *(parameters.begin() + i), "' is missing"));
    }
  }
  return bound;
}

Arguments Arguments::Without(size_t count) const {
  return Arguments(
      std::vector<Value>(values_.begin() + std::min(count, positional_count()), values_.end()),
      names_);
}

}  // namespace convene::worker::jinja
