// Runs the ranks of a group as threads, whatever connects them.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/base/thread.h"
#include "worker_runtime/comm/collective.h"
#include "worker_runtime/device/stream.h"

namespace convene::worker::testing {

using Group = std::vector<std::unique_ptr<Collective>>;

// Calls `body` with every rank's communicator, each in its own thread, and returns when all are
// back. Catch2's macros are not thread-safe: bodies store what they saw, the test checks it
// afterwards.
inline void OnEveryRank(Group& group, const std::function<void(Collective&, Stream&)>& body) {
  std::vector<Thread> threads;
  for (auto& member : group) {
    threads.emplace_back("rank", [&body, &member] {
      Stream stream = Stream::Cpu();
      if (member != nullptr) body(*member, stream);
    });
  }
  for (Thread& thread : threads) thread.Join();
}

// StartRecv and Wait.
inline absl::Status Recv(Collective& group, Elements data, int peer, Stream& stream) {
  const absl::StatusOr<PendingMessage> pending = group.StartRecv(data, peer, stream);
  return pending.ok() ? group.Wait(*pending, stream) : pending.status();
}

}  // namespace convene::worker::testing
