#include "worker_runtime/comm/bootstrap.h"

#include <iterator>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/comm/gloo_mesh.h"
#include "worker_runtime/comm/group_collective.h"
#include "worker_runtime/comm/local_address.h"

namespace convene::worker {
namespace {

struct Member {
  Axis axis;
  std::unique_ptr<Collective> CommunicatorSet::*place;
  const char* own_name = nullptr;  // null: the axis's
  absl::Duration BootstrapOptions::*timeout = &BootstrapOptions::operation_timeout;

  const char* name() const { return own_name != nullptr ? own_name : AxisName(axis); }
};

// In the one order in which all ranks make their communicators. Groups of one axis share no rank,
// so the place in this table tells any two groups of a rank apart.
constexpr Member kMembers[] = {
    {Axis::kWorld, &CommunicatorSet::host, "host"},
    {Axis::kWorld, &CommunicatorSet::world},
    {Axis::kTp, &CommunicatorSet::tp},
    {Axis::kDp, &CommunicatorSet::dp},
    {Axis::kDp, &CommunicatorSet::dp_gather, "dp gather"},
    {Axis::kPp, &CommunicatorSet::pp},
    {Axis::kEmbedding, &CommunicatorSet::embedding},
    {Axis::kWorld, &CommunicatorSet::checkpoint, "checkpoint",
     &BootstrapOptions::checkpoint_timeout},
};

absl::StatusOr<std::string> ListenHost(const BootstrapOptions& options) {
  if (!options.listen_host.empty()) return options.listen_host;
  return LocalAddressToward(options.store_host);
}

}  // namespace

std::vector<Collective*> CommunicatorSet::OnDevice() const {
  std::vector<Collective*> present;
  for (const auto& place : {&world, &tp, &dp, &dp_gather, &pp, &embedding}) {
    if (*place != nullptr) present.push_back(place->get());
  }
  return present;
}

void CommunicatorSet::AbortAll(absl::string_view why) {
  for (const Member& member : kMembers) {
    if (this->*member.place != nullptr) (this->*member.place)->Abort(why);
  }
}

absl::StatusOr<CommunicatorSet> BootstrapGloo(const Layout& layout, int rank,
                                              rendezvous::StoreClient& store,
                                              const std::string& key_prefix,
                                              const BootstrapOptions& options) {
  if (rank < 0 || rank >= layout.world_size()) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", rank, " is not in ", layout.ToString(),
                                                   ", which has ", layout.world_size(), " ranks"));
  }
  std::shared_ptr<GlooMesh> mesh;
  if (layout.world_size() > 1) {
    CONVENE_ASSIGN_OR_RETURN(const std::string host, ListenHost(options));
    CONVENE_ASSIGN_OR_RETURN(mesh, GlooMesh::Connect(rank, layout.world_size(), host, store,
                                                     key_prefix, options.connect_timeout));
  }
  CommunicatorSet set;
  for (int id = 0; id < static_cast<int>(std::size(kMembers)); ++id) {
    const Member& member = kMembers[id];
    const std::vector<int> group = GroupOf(layout, member.axis, rank);
    if (group.empty()) continue;
    if (group.size() == 1) {
      set.*member.place = SoloCommunicator(rank, member.name(), *options.recorder);
    } else {
      set.*member.place = std::make_unique<GroupCollective>(
          member.name(), mesh->MakeWire(group, id), options.*member.timeout, *options.recorder,
          options.message_bytes_max);
    }
  }
  return set;
}

std::vector<CommunicatorSet> LoopbackCommunicators(const Layout& layout,
                                                   const LoopbackOptions& options) {
  const LoopbackWorld world(layout.world_size(), options);
  std::vector<CommunicatorSet> sets(layout.world_size());
  for (const Member& member : kMembers) {
    for (const std::vector<int>& ranks : AllGroups(layout, member.axis)) {
      auto group = world.Group(ranks, member.name());
      for (size_t i = 0; i < ranks.size(); ++i) sets[ranks[i]].*member.place = std::move(group[i]);
    }
  }
  return sets;
}

}  // namespace convene::worker
