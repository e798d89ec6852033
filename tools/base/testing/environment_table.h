// An environment of a test's own, for code that takes an EnvironmentLookup.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>

#include "tools/base/environment.h"

namespace convene::testing {

using EnvironmentTable = std::map<std::string, std::string>;

inline EnvironmentLookup LookupIn(EnvironmentTable table) {
  return [table = std::move(table)](const std::string& name) -> std::optional<std::string> {
    const auto found = table.find(name);
    if (found == table.end()) return std::nullopt;
    return found->second;
  };
}

}  // namespace convene::testing
