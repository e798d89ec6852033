#include "worker_runtime/optimizer/learning_rate.h"

#include <catch2/catch.hpp>
#include <string>

#include "absl/strings/str_format.h"

namespace convene::worker {
namespace {

std::string Table(const LearningRateSchedule& schedule, int64_t last_step) {
  std::string table = "\n";
  for (int64_t step = 1; step <= last_step; ++step) {
    absl::StrAppendFormat(&table, "%2d %.4f\n", step, LearningRateAt(schedule, step));
  }
  return table;
}

TEST_CASE("the rate warms up in a line, falls as a cosine and stays at the minimum") {
  CHECK(Table({.peak = 1.0, .minimum = 0.1, .warmup_steps = 4, .total_steps = 10}, 12) == R"(
 1 0.2500
 2 0.5000
 3 0.7500
 4 1.0000
 5 0.9397
 6 0.7750
 7 0.5500
 8 0.3250
 9 0.1603
10 0.1000
11 0.1000
12 0.1000
)");
}

TEST_CASE("without warm-up the first step is already on the cosine") {
  CHECK(Table({.peak = 1.0, .minimum = 0.0, .warmup_steps = 0, .total_steps = 4}, 5) == R"(
 1 0.8536
 2 0.5000
 3 0.1464
 4 0.0000
 5 0.0000
)");
}

TEST_CASE("a warm-up that fills the whole run ends at its peak") {
  CHECK(Table({.peak = 1.0, .minimum = 0.5, .warmup_steps = 2, .total_steps = 2}, 3) == R"(
 1 0.5000
 2 1.0000
 3 0.5000
)");
}

}  // namespace
}  // namespace convene::worker
