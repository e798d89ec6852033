// Step times that other systems have published, with the inputs that the planner needs.
#pragma once

#include <string>
#include <vector>

#include "worker_runtime/planner/search.h"

namespace convene::worker::testing {

// One row of a table in shared/reference/trainers.md.
struct PublishedRow {
  std::string system;  // the rows of a system share its constants
  std::string what;    // as the table has it, and what is not in the table but assumed
  PlanJob job;
  Cluster cluster;
  Wishes wishes;              // what the table gives; the rest is the planner's best
  double tokens_per_gpu = 0;  // a second
  double tp_overlap = 0.6;    // Efficiency's: the system's flags say whether it has one
};

// In the order of the tables. Rows 1, 3, 5, ... of each system are for the fit of constants, rows
// 2, 4, 6, ... are judged. The split was made before the fit.
std::vector<PublishedRow> PublishedRows();

// Llama 3's own three rows (2407.21783): they were compared only when all constants stood.
std::vector<PublishedRow> BlindRows();

// The system's abilities that the trainer here has not, and the other way round.
Efficiency EfficiencyOf(const PublishedRow& row);
// The planner's speed over the system's: the geometric mean of its odd rows.
double SpeedOf(const PublishedRow& row);

// The planner's tokens/s of a GPU, over the published one and SpeedOf.
double RatioOf(const PublishedRow& row);

}  // namespace convene::worker::testing
