// Groups of every transport, for the suites that run over all of them.
#pragma once

#include <string>
#include <vector>

#include "tools/base/check.h"
#include "tools/base/thread.h"
#include "worker_runtime/comm/bootstrap.h"
#include "worker_runtime/comm/testing/collective_testing.h"
#include "worker_runtime/comm/testing/loopback.h"
#include "worker_runtime/comm/testing/memory_store.h"
#include "worker_runtime/mesh/mesh.h"

namespace convene::worker::testing {

enum class Transport { kLoopback, kGloo, kNccl };
// Between CPUs.
inline constexpr Transport kTransports[] = {Transport::kLoopback, Transport::kGloo};

inline const char* ToString(Transport transport) {
  constexpr const char* kNames[] = {"loopback", "gloo", "nccl"};
  return kNames[static_cast<size_t>(transport)];
}

// The ranks of `layout` as threads of this process, each with its own connections. REQUIRES:
// `transport` is one of kTransports.
inline std::vector<CommunicatorSet> MakeSets(Transport transport, const Layout& layout,
                                             const LoopbackOptions& options = {}) {
  if (transport == Transport::kLoopback) return LoopbackCommunicators(layout, options);
  CONVENE_CHECK(transport == Transport::kGloo);
  MemoryStore store;
  std::vector<CommunicatorSet> sets(layout.world_size());
  std::vector<Thread> threads;
  for (int rank = 0; rank < layout.world_size(); ++rank) {
    threads.emplace_back("bootstrap", [&, rank] {
      const BootstrapOptions bootstrap = {.operation_timeout = options.timeout,
                                          .recorder = options.recorder,
                                          .message_bytes_max = options.message_bytes_max};
      auto set = BootstrapGloo(layout, rank, store, "epoch/1", bootstrap);
      CONVENE_CHECK(set.ok());
      sets[rank] = *std::move(set);
    });
  }
  for (Thread& thread : threads) thread.Join();
  return sets;
}

// One data-parallel group of `size` ranks; only it holds their connections.
inline Group MakeGroup(Transport transport, int size, const LoopbackOptions& options = {}) {
  std::vector<CommunicatorSet> sets = MakeSets(transport, {.pp = 1, .dp = size, .tp = 1}, options);
  Group group;
  for (CommunicatorSet& set : sets) group.push_back(std::move(set.dp));
  return group;
}

}  // namespace convene::worker::testing
