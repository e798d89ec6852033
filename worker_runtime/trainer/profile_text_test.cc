#include "worker_runtime/trainer/profile_text.h"

#include <catch2/catch.hpp>

namespace convene::worker {
namespace {

TEST_CASE("a profile groups the ops, the longest first, and says what is in none") {
  const std::vector<OpTime> times = {{"RmsNormForward", 4, 0.01},
                                     {"MatMul", 8, 0.05},
                                     {"AttentionForward", 2, 0.02},
                                     {"SwigluForward", 2, 0.015},
                                     {"AdamW", 2, 0.001}};
  CHECK(ProfileText(times, 2, 0.1) ==
        "profile of 2 steps         ms a step   share\n"
        "products                       25.00   50.0%\n"
        "  MatMul                       25.00   50.0%\n"
        "memory-bound                   12.50   25.0%\n"
        "  SwigluForward                 7.50   15.0%\n"
        "  RmsNormForward                5.00   10.0%\n"
        "attention                      10.00   20.0%\n"
        "  AttentionForward             10.00   20.0%\n"
        "optimizer                       0.50    1.0%\n"
        "  AdamW                         0.50    1.0%\n"
        "gaps                            2.00    4.0%\n"
        "step                           50.00\n");
}

TEST_CASE("no steps, no profile") { CHECK(ProfileText({{"MatMul", 1, 1}}, 0, 1).empty()); }

}  // namespace
}  // namespace convene::worker
