#include "worker_runtime/comm/nccl/buffers.h"

#include <algorithm>

#include "worker_runtime/comm/nccl/limits.h"
#include "worker_runtime/device/stream.h"

namespace convene::worker {
namespace {

constexpr int kLargeGpu = 128;  // multiprocessors, from which on NcclBlocksMax grows no more
constexpr int kPeersMax = 7;    // of a machine of eight GPUs

}  // namespace

std::vector<NcclGroup> NcclGroupsOf(const Layout& layout) {
  const NcclBlocks blocks = NcclBlocksMax(kLargeGpu);
  const int inside_layers = std::min(blocks.collective, kCollectiveMultiprocessors);
  std::vector<NcclGroup> groups;
  const auto add = [&](int communicators, int ranks, int channels) {
    if (ranks > 1) groups.push_back({communicators, ranks, channels});
  };
  const auto add_all_to_all = [&](int ranks, int channels) {
    if (ranks > 1) groups.push_back({1, ranks, channels, std::min(ranks - 1, kPeersMax), channels});
  };
  add(1, layout.world_size(), blocks.collective);
  add(1, layout.tp, inside_layers);
  add_all_to_all(layout.cp, inside_layers);
  add(2, layout.dp_shard() * layout.cp, blocks.collective);  // dp, dp gather
  add(1, layout.dp_replicate, blocks.collective);
  if (layout.ep > 1) {
    add_all_to_all(layout.ep, blocks.collective);
    add(2, layout.expert_shards(), blocks.collective);  // expert dp, expert dp gather
    add(1, layout.expert_gradient_ranks() / layout.expert_shards(), blocks.collective);
  }
  if (layout.pp == 1) return groups;
  add(1, layout.pp, blocks.collective);
  add(1, 2, blocks.collective);  // embedding
  // Two communicators with each neighbour, one for each direction: together one connection.
  groups.push_back({2 * std::min(layout.pp - 1, kNcclLinksMax), 2, 0, /*peers=*/1, blocks.message});
  return groups;
}

size_t NcclBufferBytes(const Layout& layout) {
  size_t bytes = 0;
  for (const NcclGroup& group : NcclGroupsOf(layout)) {
    // A communicator of one direction has half a connection.
    const size_t half = group.ring_channels > 0 ? 2 : 1;
    const int channels = group.ring_channels + group.peers * group.message_channels;
    bytes += half * static_cast<size_t>(group.communicators) * static_cast<size_t>(channels) *
             kNcclConnectionBytes / 2;
  }
  return bytes;
}

}  // namespace convene::worker
