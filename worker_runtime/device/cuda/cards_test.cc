#include "worker_runtime/device/cuda/cards.h"

#include <catch2/catch.hpp>

#include "tools/base/testing/status_testing.h"

namespace convene::worker::cuda {
namespace {

const std::vector<int> kEveryCard = {80, 89, 90, 100, 120};

// The major and minor version of a card that `archs` run on or do not.
struct Row {
  int major;
  int minor;
  std::vector<int> archs;
  bool runs;
};

TEST_CASE("a card takes machine code of its own major version, or PTX that is no newer") {
  const Row rows[] = {
      {8, 0, kEveryCard, true},                         // A100
      {8, 6, kEveryCard, true},                         // A10, RTX 3090: by 8.0's
      {8, 9, kEveryCard, true},                         // L40S, RTX 4090
      {9, 0, kEveryCard, true},                         // H100, H200
      {10, 0, kEveryCard, true},                        // B200
      {10, 3, kEveryCard, true},                        // B300: by 10.0's
      {12, 0, kEveryCard, true},                        // RTX 5090
      {12, 1, kEveryCard, true},                        // GB10: by 12.0's
      {13, 0, kEveryCard, true},                        // a later one: by PTX
      {11, 0, kEveryCard, false},                       // Thor: the PTX is newer
      {7, 5, kEveryCard, false},                        // T4
      {7, 0, kEveryCard, false},                        // V100
      {9, 0, {90}, true},         {10, 0, {90}, true},  // by PTX
      {8, 9, {90}, false},        {8, 0, {90}, false},
      {8, 6, {89}, false},                                  // machine code of a later minor version
      {9, 0, {89}, true},                                   // by PTX
      {8, 7, kEveryCard, false},  {8, 7, {87, 90}, true},   // Orin: by its own machine code
      {8, 9, {87, 90}, false},    {8, 7, {80}, true},       // Orin's is no other card's; by PTX
      {9, 0, {80, 120}, false},   {9, 0, {120, 80}, true},  // the last one's PTX
  };
  for (const Row& row : rows) {
    CAPTURE(row.major, row.minor, row.archs);
    CHECK(CheckCard("card", row.major, row.minor, row.archs).ok() == row.runs);
  }
}

TEST_CASE("a card that is refused is named in one sentence, with what to do") {
  CHECK_STATUS(CheckCard("Tesla V100", 7, 0, kEveryCard), absl::StatusCode::kFailedPrecondition,
               "Tesla V100 is too old (its compute capability is 7.0): take a card of 8.0 or "
               "later, or train on the CPU with --device cpu");
  CHECK_STATUS(CheckCard("NVIDIA L40S", 8, 9, {90, 120}), absl::StatusCode::kFailedPrecondition,
               "this program was not built for NVIDIA L40S (its compute capability is 8.9, the "
               "kernels are for 9.0, 12.0): build it with --config=cuda --define=cuda_archs=89");
}

TEST_CASE("the build names the cards that it compiled for, and its own cards run") {
  const std::vector<int> archs = BuiltArchs();
  REQUIRE_FALSE(archs.empty());
  for (const int arch : archs) CHECK_OK(CheckCard("card", arch / 10, arch % 10, archs));
}

}  // namespace
}  // namespace convene::worker::cuda
