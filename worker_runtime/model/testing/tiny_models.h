// The small shapes of all families, from the table itself. A test of each family goes through
// TinyModels(). Where a test needs a list of its own (golden files, weights of a draw), it checks
// that FamiliesOf(its list) are FamiliesOf(ModelNames()), so that a new family in the table fails.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "worker_runtime/model/config.h"

namespace convene::worker::testing {

inline std::vector<std::string> TinyModels() {
  std::vector<std::string> tiny;
  for (const std::string& name : ModelNames()) {
    if (absl::EndsWith(name, "-tiny")) tiny.push_back(name);
  }
  return tiny;
}

// REQUIRES: names of models.
inline std::set<std::string> FamiliesOf(const std::vector<std::string>& models) {
  std::set<std::string> families;
  for (const std::string& model : models) families.insert(NamedModel(model)->family->name);
  return families;
}

}  // namespace convene::worker::testing
