// The process's environment as a function, so that pure code and tests can be given another one.
#pragma once

#include <cstdlib>
#include <functional>
#include <optional>
#include <string>

namespace convene {

using EnvironmentLookup = std::function<std::optional<std::string>(const std::string& name)>;

inline EnvironmentLookup ProcessEnvironment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* const value = std::getenv(name.c_str());
    if (value == nullptr) return std::nullopt;
    return value;
  };
}

}  // namespace convene
