// The communicators of a rank, in the one order in which all ranks make them.
#pragma once

#include <memory>

#include "absl/time/time.h"
#include "worker_runtime/comm/bootstrap.h"
#include "worker_runtime/mesh/mesh.h"

namespace convene::worker {

struct CommunicatorMember {
  Axis axis;
  std::unique_ptr<Collective> CommunicatorSet::*place;
  const char* own_name = nullptr;  // null: the axis's
  bool in_host_memory = false;     // on every device
  absl::Duration BootstrapOptions::*timeout = &BootstrapOptions::operation_timeout;

  const char* name() const { return own_name != nullptr ? own_name : AxisName(axis); }
};

// Groups of one axis share no rank, so the place in this table tells any two groups of a rank
// apart.
inline constexpr CommunicatorMember kCommunicatorMembers[] = {
    {Axis::kWorld, &CommunicatorSet::host, "host", /*in_host_memory=*/true},
    {Axis::kWorld, &CommunicatorSet::world},
    {Axis::kTp, &CommunicatorSet::tp},
    {Axis::kDp, &CommunicatorSet::dp},
    {Axis::kDp, &CommunicatorSet::dp_gather, "dp gather"},
    {Axis::kPp, &CommunicatorSet::pp},
    {Axis::kEmbedding, &CommunicatorSet::embedding},
    {Axis::kWorld, &CommunicatorSet::checkpoint, "checkpoint", /*in_host_memory=*/true,
     &BootstrapOptions::checkpoint_timeout},
};

}  // namespace convene::worker
