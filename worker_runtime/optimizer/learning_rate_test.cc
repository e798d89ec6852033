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

// All shapes side by side: linear, cosine, wsd in a line, wsd by 1 - sqrt, constant, inverse root.
TEST_CASE("each shape warms up alike, and goes down in its own way") {
  std::string table = "\n";
  for (int64_t step = 1; step <= 13; ++step) {
    absl::StrAppendFormat(&table, "%2d", step);
    for (const RateShape shape :
         {RateShape::kLinear, RateShape::kCosine, RateShape::kWsdLinear,
          RateShape::kWsdOneMinusSqrt, RateShape::kConstant, RateShape::kInverseSqrt}) {
      absl::StrAppendFormat(&table, " %.4f",
                            LearningRateAt({.shape = shape,
                                            .peak = 1.0,
                                            .minimum = 0.2,
                                            .warmup_steps = 2,
                                            .decay_steps = 4,
                                            .total_steps = 12},
                                           step));
    }
    table += "\n";
  }
  CHECK(table == R"(
 1 0.5000 0.5000 0.5000 0.5000 0.5000 0.5000
 2 1.0000 1.0000 1.0000 1.0000 1.0000 1.0000
 3 0.9200 0.9804 1.0000 1.0000 1.0000 0.8165
 4 0.8400 0.9236 1.0000 1.0000 1.0000 0.7071
 5 0.7600 0.8351 1.0000 1.0000 1.0000 0.6325
 6 0.6800 0.7236 1.0000 1.0000 1.0000 0.5774
 7 0.6000 0.6000 1.0000 1.0000 1.0000 0.5345
 8 0.5200 0.4764 1.0000 1.0000 1.0000 0.5000
 9 0.4400 0.3649 0.8000 0.6000 1.0000 0.4714
10 0.3600 0.2764 0.6000 0.4343 1.0000 0.4472
11 0.2800 0.2196 0.4000 0.3072 1.0000 0.4264
12 0.2000 0.2000 0.2000 0.2000 1.0000 0.4082
13 0.2000 0.2000 0.2000 0.2000 1.0000 0.3922
)");
}

TEST_CASE("wsd without steps of decay stays at its peak, and a root stays above the minimum") {
  const LearningRateSchedule wsd = {.shape = RateShape::kWsdLinear, .peak = 1.0, .total_steps = 3};
  CHECK(LearningRateAt(wsd, 1) == 1.0);
  CHECK(LearningRateAt(wsd, 3) == 1.0);
  const LearningRateSchedule root = {
      .shape = RateShape::kInverseSqrt, .peak = 1.0, .minimum = 0.5, .total_steps = 9};
  CHECK(LearningRateAt(root, 1) == 1.0);
  CHECK(LearningRateAt(root, 9) == 0.5);
}

}  // namespace
}  // namespace convene::worker
