#include "worker_runtime/device/arena.h"

#include <algorithm>
#include <cstdint>

#include "tools/base/testing/status_testing.h"

namespace convene::worker {
namespace {

bool IsAligned(const void* pointer, size_t alignment) {
  return reinterpret_cast<uintptr_t>(pointer) % alignment == 0;
}

TEST_CASE("blocks are zero, aligned, as long as declared, and do not touch each other") {
  Arena arena("test");
  const auto one = arena.Declare<float>("one", 1);
  const auto two = arena.Declare<float>("two", 17);
  const auto none = arena.Declare<float>("none", 0);
  const auto tokens = arena.Declare<int32_t>("tokens", 3);
  const auto sums = arena.Declare<double>("sums", 2);
  CHECK(arena.total_bytes() == 64 + 128 + 64 + 64);
  REQUIRE_OK(arena.Build());
  CHECK(arena.View(one).size() == 1);
  CHECK(arena.View(two).size() == 17);
  CHECK(arena.View(none).empty());
  CHECK(arena.View(tokens).size() == 3);
  CHECK(arena.View(sums).size() == 2);
  for (const float value : arena.View(two)) CHECK(value == 0.0f);

  const auto fill = [](auto span, auto value) { std::fill(span.begin(), span.end(), value); };
  fill(arena.View(one), 1.0f);
  fill(arena.View(two), 2.0f);
  fill(arena.View(tokens), 3);
  fill(arena.View(sums), 4.0);
  CHECK(arena.View(one)[0] == 1.0f);
  CHECK(arena.View(two)[0] == 2.0f);
  CHECK(arena.View(two)[16] == 2.0f);
  CHECK(arena.View(tokens)[2] == 3);
  CHECK(arena.View(sums)[0] == 4.0);
  CHECK(IsAligned(arena.View(one).data(), 64));
  CHECK(IsAligned(arena.View(two).data(), 64));
  CHECK(IsAligned(arena.View(tokens).data(), 64));
}

TEST_CASE("a large arena starts at a huge page") {
  Arena arena("large");
  const auto block = arena.Declare<float>("block", size_t{3} << 20);
  REQUIRE_OK(arena.Build());
  CHECK(IsAligned(arena.View(block).data(), size_t{2} << 20));
  arena.View(block).back() = 1.0f;
  CHECK(arena.View(block).back() == 1.0f);
}

TEST_CASE("the plan is a table, a line for each name, the largest first") {
  Arena arena("weights");
  arena.Declare<float>("norm", 16);
  arena.Declare<float>("embedding", 96);
  arena.Declare<float>("norm", 16);
  CHECK(arena.PlanToString() ==
        "weights             bytes  share\n"
        "embedding             384  75.0%\n"
        "norm x 2              128  25.0%\n"
        "total                 512\n");
}

TEST_CASE("an arena without blocks builds") {
  Arena arena("empty");
  CHECK_OK(arena.Build());
  CHECK(arena.total_bytes() == 0);
}

TEST_CASE("more than there is memory is an error that shows the plan") {
  Arena arena("huge");
  arena.Declare<float>("activations", size_t{1} << 58);
  CHECK_STATUS(arena.Build(), absl::StatusCode::kResourceExhausted, "activations");
}

TEST_CASE("a size that does not fit into size_t is an error, not a small arena") {
  Arena arena("wrapped");
  arena.Declare<float>("too_much", (size_t{1} << 62) + 1);
  CHECK_STATUS(arena.Build(), absl::StatusCode::kResourceExhausted, "too_much");
}

}  // namespace
}  // namespace convene::worker
