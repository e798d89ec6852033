#include "worker_runtime/comm/nccl/buffers.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <vector>

#include "worker_runtime/comm/members.h"

namespace convene::worker {
namespace {

// Of the communicators that BootstrapNccl makes for a rank.
std::vector<int> SizesMade(const Layout& layout, int rank) {
  std::vector<int> sizes;
  for (const CommunicatorMember& member : kCommunicatorMembers) {
    const auto ranks = static_cast<int>(GroupOf(layout, member.axes, rank).size());
    if (ranks > 1 && !member.in_host_memory) sizes.push_back(ranks);
  }
  std::sort(sizes.begin(), sizes.end());
  return sizes;
}

std::vector<int> SizesPlanned(const Layout& layout) {
  std::vector<int> sizes;
  for (const NcclGroup& group : NcclGroupsOf(layout)) {
    if (group.ring_channels > 0) sizes.insert(sizes.end(), group.communicators, group.ranks);
  }
  std::sort(sizes.begin(), sizes.end());
  return sizes;
}

TEST_CASE("NCCL's buffers: the groups are those that a rank makes") {
  for (const Layout& layout :
       {Layout{}, Layout{.dp = 8}, Layout{.dp = 8, .dp_replicate = 8},
        Layout{.dp = 4, .tp = 2, .dp_replicate = 2, .cp = 2}, Layout{.pp = 4, .dp = 2, .tp = 2},
        Layout{.dp = 8, .ep = 8}, Layout{.dp = 8, .dp_replicate = 2, .ep = 2},
        Layout{.pp = 2, .dp = 8, .tp = 2, .dp_replicate = 4, .ep = 4}}) {
    INFO(layout.ToString());
    CHECK(SizesPlanned(layout) == SizesMade(layout, 0));
  }
}

TEST_CASE("NCCL's buffers: a ring a communicator, and a connection to each peer") {
  constexpr size_t kMiB = size_t{1} << 20;
  CHECK(NcclBufferBytes({}) == 0);
  // world, dp, dp gather.
  CHECK(NcclBufferBytes({.dp = 2}) == 3 * 32 * 12 * kMiB);
  CHECK(NcclBufferBytes({.dp = 512}) == NcclBufferBytes({.dp = 2}));
  // world; tp, which runs beside products.
  CHECK(NcclBufferBytes({.tp = 8}) == (32 + 16) * 12 * kMiB);
  // world, pp, embedding; one neighbour, then two.
  CHECK(NcclBufferBytes({.pp = 2}) == (3 * 32 + 16) * 12 * kMiB);
  CHECK(NcclBufferBytes({.pp = 4}) == (3 * 32 + 2 * 16) * 12 * kMiB);
  // NVIDIA/nccl #1685: an all-to-all of 8 H100, 32 channels a pair, took 3.28 GB more.
  const size_t all_to_all =
      NcclBufferBytes({.dp = 8, .ep = 8}) - NcclBufferBytes({.dp = 8}) - 32 * 12 * kMiB;
  CHECK(static_cast<double>(all_to_all) == Approx(3.28e9).epsilon(0.15));
  CHECK(NcclBufferBytes({.dp = 64, .ep = 64}) - NcclBufferBytes({.dp = 64}) ==
        all_to_all + 32 * 12 * kMiB);
}

}  // namespace
}  // namespace convene::worker
