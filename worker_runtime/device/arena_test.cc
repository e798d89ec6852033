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
  CHECK(one.span().size() == 1);
  CHECK(two.span().size() == 17);
  CHECK(none.span().empty());
  CHECK(tokens.span().size() == 3);
  CHECK(sums.span().size() == 2);
  for (const float value : two.span()) CHECK(value == 0.0f);

  const auto fill = [](auto span, auto value) { std::fill(span.begin(), span.end(), value); };
  fill(one.span(), 1.0f);
  fill(two.span(), 2.0f);
  fill(tokens.span(), 3);
  fill(sums.span(), 4.0);
  CHECK(one.span()[0] == 1.0f);
  CHECK(two.span()[0] == 2.0f);
  CHECK(two.span()[16] == 2.0f);
  CHECK(tokens.span()[2] == 3);
  CHECK(sums.span()[0] == 4.0);
  CHECK(IsAligned(one.span().data(), 64));
  CHECK(IsAligned(two.span().data(), 64));
  CHECK(IsAligned(tokens.span().data(), 64));
}

TEST_CASE("a large arena starts at a huge page") {
  Arena arena("large");
  const auto block = arena.Declare<float>("block", size_t{3} << 20);
  REQUIRE_OK(arena.Build());
  CHECK(IsAligned(block.span().data(), size_t{2} << 20));
  block.span().back() = 1.0f;
  CHECK(block.span().back() == 1.0f);
}

TEST_CASE("the plan is a table, a line for each name, the largest first") {
  Arena arena("weights");
  arena.Declare<float>("norm", 16);
  arena.Declare<float>("embedding", 96);
  arena.Declare<float>("norm", 16);
  CHECK(arena.PlanToString() ==
        "weights        bytes   share\n"
        "embedding        384   75.0%\n"
        "norm x 2         128   25.0%\n"
        "total            512  100.0%\n");
}

TEST_CASE("the plan is in units that people read, without a line for each small block") {
  Arena arena("step");
  arena.Declare<char>("scalars", 8);
  arena.Declare<float>("weights", 3 << 20);
  arena.Declare<float>("moments", 6 << 20);
  arena.Declare<char>("table", 4096);
  arena.Declare<float>("hidden", 400000);
  CHECK(arena.PlanToString() ==
        "step             MiB   share\n"
        "moments         24.0   63.9%\n"
        "weights         12.0   32.0%\n"
        "hidden           1.5    4.1%\n"
        "2 smaller        0.0    0.0%\n"
        "total           37.5  100.0%\n");
}

// Keeps count of what it gave.
class CountingMemory final : public Memory {
 public:
  absl::StatusOr<void*> Allocate(size_t bytes) override {
    if (refuses) return absl::ResourceExhaustedError("all is taken");
    held_bytes += bytes;
    return HostMemory().Allocate(bytes);
  }
  void Free(void* data, size_t bytes) override {
    held_bytes -= bytes;
    HostMemory().Free(data, bytes);
  }
  size_t held_bytes = 0;
  bool refuses = false;
};

TEST_CASE("what collectives work on lies apart, in its own memory") {
  CountingMemory local;
  CountingMemory collective;
  {
    Arena arena("step", local, collective);
    const auto moments = arena.Declare<float>("moments", 32);
    const auto gradients = arena.Declare<float>("gradients", 16, ArenaPart::kCollective);
    const auto flags = arena.Declare<uint8_t>("flags", 1);
    const auto weights = arena.Declare<float>("weights", 16, ArenaPart::kCollective);
    CHECK(arena.total_bytes() == 128 + 64 + 64 + 64);
    REQUIRE_OK(arena.Build());
    CHECK(local.held_bytes == 128 + 64);
    CHECK(collective.held_bytes == 64 + 64);
    CHECK(reinterpret_cast<char*>(flags.span().data()) ==
          reinterpret_cast<char*>(moments.span().data()) + 128);
    CHECK(weights.span().data() == gradients.span().data() + 16);
  }
  CHECK(local.held_bytes == 0);
  CHECK(collective.held_bytes == 0);
}

TEST_CASE("when one part is not to be had the other is given back") {
  CountingMemory local;
  CountingMemory collective;
  collective.refuses = true;
  {
    Arena arena("step", local, collective);
    arena.Declare<float>("moments", 32);
    arena.Declare<float>("gradients", 16, ArenaPart::kCollective);
    CHECK_STATUS(arena.Build(), absl::StatusCode::kResourceExhausted, "all is taken");
  }
  CHECK(local.held_bytes == 0);
}

TEST_CASE("the plan marks what collectives work on") {
  Arena arena("step");
  arena.Declare<float>("moments", 32);
  arena.Declare<float>("gradients", 96, ArenaPart::kCollective);
  CHECK(arena.PlanToString() ==
        "step                   bytes   share\n"
        "gradients *              384   75.0%\n"
        "moments                  128   25.0%\n"
        "total                    512  100.0%\n"
        "* for collectives        384   75.0%\n");
}

TEST_CASE("blocks lie in a lent one from its end on, as long as they fit") {
  Arena arena("step");
  arena.Declare<float>("norms", 16);
  const auto gradients = arena.Declare<float>("gradients", 96, ArenaPart::kCollective);
  // 192 bytes: two blocks of 64 bytes and one of 16 have room, with the gap that aligns the last.
  arena.Lend(gradients.Slice(16, 48));
  CHECK(arena.lent_bytes() == 192);
  const auto none = arena.Declare<float>("none", 0);
  const auto too_large = arena.Declare<double>("too large", 25);
  const auto first = arena.Declare<float>("first", 16);
  const auto second = arena.Declare<uint8_t>("second", 16);
  CHECK(arena.lent_bytes() == 64);
  arena.Lend(ArenaBlock<float>());
  const auto own = arena.Declare<float>("own", 16);
  CHECK(arena.total_bytes() == 64 + 384 + 256 + 64);
  CHECK(arena.PlanToString() ==
        "step                         bytes   share\n"
        "gradients *                    384   50.0%\n"
        "too large                      256   33.3%\n"
        "norms                           64    8.3%\n"
        "own                             64    8.3%\n"
        "none                             0    0.0%\n"
        "total                          768  100.0%\n"
        "* for collectives              384   50.0%\n"
        "besides, in lent blocks        128   16.7%\n");
  REQUIRE_OK(arena.Build());
  CHECK(none.span().empty());
  CHECK(first.span().data() == gradients.span().data() + 48);
  CHECK(reinterpret_cast<float*>(second.span().data()) == gradients.span().data() + 32);
  CHECK(own.span().data() != first.span().data());
  too_large.span()[24] = 1;
  CHECK(gradients.span()[0] == 0.0f);
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
