// Collectives between threads of one process: blocking, deadlines and failures behave as
// over a network.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "worker_runtime/comm/bootstrap.h"
#include "worker_runtime/comm/collective.h"
#include "worker_runtime/comm/flight_recorder.h"
#include "worker_runtime/comm/rank_wires.h"
#include "worker_runtime/comm/wire.h"
#include "worker_runtime/mesh/mesh.h"

namespace convene::worker {

// The time that a message takes on its way beside the copy: as over a network card for each rank
// and group.
struct LoopbackLink {
  absl::Duration latency = absl::ZeroDuration();
  double bytes_per_second = 0;  // 0: no limit
};

struct LoopbackOptions {
  absl::Duration timeout = absl::Seconds(30);               // of each call
  FlightRecorder* recorder = &FlightRecorder::OfProcess();  // outlives the communicators; not null
  size_t message_bytes_max = size_t{1} << 30;               // see GroupCollective
  LoopbackLink link;
};

class LoopbackWorld {
 public:
  // REQUIRES: size >= 1.
  explicit LoopbackWorld(int size, const LoopbackOptions& options = {});

  int size() const { return static_cast<int>(wires_.size()); }

  // The communicators of one group, one per entry of `ranks` and in its order. They do not need the
  // world to stay alive. Destroying one is what the others of its group see as a broken connection.
  // REQUIRES: `ranks` are distinct and within the world.
  std::vector<std::unique_ptr<Collective>> Group(const std::vector<int>& ranks,
                                                 const std::string& name) const;

 private:
  const LoopbackOptions options_;
  std::vector<std::shared_ptr<RankWires>> wires_;  // by rank
};

// BootstrapGloo for threads of one process: element r is rank r's set.
std::vector<CommunicatorSet> LoopbackCommunicators(const Layout& layout,
                                                   const LoopbackOptions& options = {});

}  // namespace convene::worker
