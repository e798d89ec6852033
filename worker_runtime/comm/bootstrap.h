// From a rank and a store to a full set of communicators.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rendezvous/store/store_client.h"
#include "worker_runtime/comm/collective.h"
#include "worker_runtime/comm/flight_recorder.h"
#include "worker_runtime/mesh/mesh.h"

namespace convene::worker {

// The communicators of one rank, each over a set of axes of the mesh, named by AxesName; and
// `checkpoint`. Communicators of size 1 need no network.
struct CommunicatorSet {
  // Data in host memory, with Stream::Cpu(), on every device: the ranks' messages between steps.
  std::unique_ptr<Collective> host;  // all ranks
  // All ranks again, for agreement about files: it waits as long as disks may take.
  std::unique_ptr<Collective> checkpoint;
  // All ranks again, for the copies of shards that they keep for each other.
  std::unique_ptr<Collective> replicas;

  // Data in the device's memory.
  std::unique_ptr<Collective> world;
  std::unique_ptr<Collective> tp;
  std::unique_ptr<Collective> cp;
  std::unique_ptr<Collective> dp;            // over dp_shard and cp, for reductions
  std::unique_ptr<Collective> dp_gather;     // the same, for gathers: a queue of their own
  std::unique_ptr<Collective> dp_replicate;  // between the ranks with a copy of one shard
  // Of experts' tokens, and of their parameters as dp to dp_replicate of all others.
  std::unique_ptr<Collective> ep;
  std::unique_ptr<Collective> expert_dp;
  std::unique_ptr<Collective> expert_dp_gather;
  std::unique_ptr<Collective> expert_dp_replicate;
  std::unique_ptr<Collective> pp;
  std::unique_ptr<Collective> embedding;  // null on ranks of middle stages

  // The communicators whose data lies in the device's memory.
  std::vector<Collective*> OnDevice() const;

  // Aborts all of them. Any thread, while the set lives.
  void AbortAll(absl::string_view why);
};

struct BootstrapOptions {
  absl::Duration connect_timeout = absl::Seconds(60);    // of the whole bootstrap
  absl::Duration operation_timeout = absl::Minutes(10);  // of each later call
  // The same for the communicator `checkpoint`.
  absl::Duration checkpoint_timeout = absl::Minutes(30);
  // The name or address at which other ranks can reach this one. Empty: the address from which this
  // machine reaches `store_host`.
  std::string listen_host = "";
  std::string store_host = "127.0.0.1";
  // The pairs of places in a pp group, the lower one first, between which messages will go: between
  // GPUs only these are connected for messages.
  std::vector<std::pair<int, int>> pp_links;
  FlightRecorder* recorder = &FlightRecorder::OfProcess();  // outlives the set; not null
  size_t message_bytes_max = size_t{1} << 30;               // see GroupCollective
};

// The part of a set that BootstrapGloo makes; the other communicators are null.
enum class GlooPart {
  kAll,
  // The part that every other transport needs: the communicators of data in host memory, and those
  // of one rank.
  kHostMemory,
};

// Connects this rank with all others over gloo (TCP). All ranks call it at about the same time,
// with the same layout and with a key prefix that no earlier attempt has used ("epoch/3").
//
// The set shares one connection per pair of ranks. Consequence: once a communicator of a rank has
// failed with Unavailable or was aborted, its others, and its peers, get Unavailable too, so that
// no rank waits for one that has given up. After DeadlineExceeded the connections stay, so that
// every rank that waited for the same silent peer reports it; destroy the set to close them.
//
// Errors: GlooMesh::Connect's; ResolveHost's for `store_host`, and Unavailable when there is no
// route to it; InvalidArgument when `rank` is not in the layout.
absl::StatusOr<CommunicatorSet> BootstrapGloo(const Layout& layout, int rank,
                                              rendezvous::StoreClient& store,
                                              const std::string& key_prefix,
                                              const BootstrapOptions& options,
                                              GlooPart part = GlooPart::kAll);

// For the one rank of a world of size 1. It uses neither a store nor the network.
CommunicatorSet SoloCommunicators();

// For a rank of a world that is only planned, however large: each communicator knows its rank and
// size, and refuses every call with FailedPrecondition.
CommunicatorSet PlannedCommunicators(const Layout& layout, int rank);

}  // namespace convene::worker
