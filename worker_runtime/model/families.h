// The table of the families, for named_models.cc.
#pragma once

#include "absl/types/span.h"
#include "worker_runtime/model/config.h"

namespace convene::worker {

struct NamedShape {
  const char* name;
  ModelConfig config;  // without its family
};

struct FamilyShapes {
  const Family* family;
  absl::Span<const NamedShape> shapes;
};

absl::Span<const FamilyShapes> Families();

}  // namespace convene::worker
