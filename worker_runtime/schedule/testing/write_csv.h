// PURE. A schedule as the file that ReadCsv reads.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "worker_runtime/schedule/plan.h"

namespace convene::worker {

// One row a rank, without empty cells; a pair that overlaps is two cells.
inline std::string WriteCsv(const Schedule& schedule) {
  std::string text;
  for (const std::vector<Compute>& list : schedule.ranks) {
    absl::StrAppend(&text, absl::StrJoin(list, ",", [](std::string* out, const Compute& compute) {
      out->append(ToString(compute));
    }));
    text += '\n';
  }
  return text;
}

}  // namespace convene::worker
