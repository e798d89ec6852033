// Families and shapes by their names.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tools/base/text.h"
#include "worker_runtime/model/families.h"

namespace convene::worker {
namespace {

const std::vector<FamilyShapes>& Families() {
  static const auto* const all = [] {
    auto* const both = new std::vector<FamilyShapes>;
    for (const absl::Span<const FamilyShapes> part : {DenseFamilies(), ExpertFamilies()}) {
      both->insert(both->end(), part.begin(), part.end());
    }
    return both;
  }();
  return *all;
}

}  // namespace

const Family* FamilyNamed(absl::string_view name) {
  for (const FamilyShapes& family : Families()) {
    if (name == family.family->name) return family.family;
  }
  return nullptr;
}

std::vector<std::string> ModelNames() {
  std::vector<std::string> names;
  for (const FamilyShapes& family : Families()) {
    for (const NamedShape& shape : family.shapes) names.emplace_back(shape.name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

absl::StatusOr<ModelConfig> NamedModel(absl::string_view name) {
  for (const FamilyShapes& family : Families()) {
    for (const NamedShape& shape : family.shapes) {
      if (name != shape.name) continue;
      ModelConfig config = shape.config;
      config.family = family.family;
      return config;
    }
  }
  const std::vector<std::string> names = ModelNames();
  const std::string closest = ClosestMatch(name, names);
  return absl::NotFoundError(
      absl::StrCat("unknown model \"", name, "\"",
                   closest.empty() ? "" : absl::StrCat("; did you mean \"", closest, "\"?"),
                   closest.empty() ? "; known: " : " Known: ", absl::StrJoin(names, ", ")));
}

}  // namespace convene::worker
