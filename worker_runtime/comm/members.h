// The communicators of a rank, in the one order in which all ranks make them.
#pragma once

#include <memory>

#include "absl/time/time.h"
#include "worker_runtime/comm/bootstrap.h"
#include "worker_runtime/mesh/mesh.h"

namespace convene::worker {

struct CommunicatorMember {
  Axes axes;
  std::unique_ptr<Collective> CommunicatorSet::*place;
  const char* own_name = nullptr;  // null: AxesName's
  bool in_host_memory = false;     // on every device
  absl::Duration BootstrapOptions::*timeout = &BootstrapOptions::operation_timeout;
  bool is_beside_training = false;  // threads beside the training use it

  const char* name() const { return own_name != nullptr ? own_name : AxesName(axes); }
};

// Groups of one set of axes share no rank, so the place in this table tells any two groups of a
// rank apart.
inline constexpr CommunicatorMember kCommunicatorMembers[] = {
    {Axes::kWorld, &CommunicatorSet::host, "host", /*in_host_memory=*/true},
    {Axes::kWorld, &CommunicatorSet::world},
    {Axes::kTp, &CommunicatorSet::tp},
    {Axes::kCp, &CommunicatorSet::cp},
    {Axes::kShard, &CommunicatorSet::dp},
    {Axes::kShard, &CommunicatorSet::dp_gather, "dp gather"},
    {Axes::kDpReplicate, &CommunicatorSet::dp_replicate},
    {Axes::kEp, &CommunicatorSet::ep},
    {Axes::kExpertShard, &CommunicatorSet::expert_dp},
    {Axes::kExpertShard, &CommunicatorSet::expert_dp_gather, "expert dp gather"},
    {Axes::kExpertReplicate, &CommunicatorSet::expert_dp_replicate},
    {Axes::kPp, &CommunicatorSet::pp},
    {Axes::kPipelineEnds, &CommunicatorSet::embedding},
    {Axes::kWorld, &CommunicatorSet::checkpoint, "checkpoint", /*in_host_memory=*/true,
     &BootstrapOptions::checkpoint_timeout, /*is_beside_training=*/true},
    {Axes::kWorld, &CommunicatorSet::replicas, "replicas", /*in_host_memory=*/true,
     &BootstrapOptions::operation_timeout, /*is_beside_training=*/true},
};

}  // namespace convene::worker
