#include "worker_runtime/comm/nccl/nccl_bootstrap.h"

#include <cuda_runtime.h>
#include <nccl.h>
#include <stdlib.h>
#include <xxhash.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "spdlog/spdlog.h"
#include "tools/base/clock.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/comm/members.h"
#include "worker_runtime/comm/nccl/debug_log.h"
#include "worker_runtime/comm/nccl/environment.h"
#include "worker_runtime/comm/nccl/limits.h"
#include "worker_runtime/comm/nccl/nccl_collective.h"
#include "worker_runtime/comm/nccl/nccl_memory.h"
#include "worker_runtime/comm/nccl/session.h"
#include "worker_runtime/comm/nccl/transport_summary.h"
#include "worker_runtime/device/cuda/queue.h"

namespace convene::worker {
namespace {

// Makes the groups of one rank.
class Maker {
 public:
  // `machines`: a number by rank, the same for ranks of one machine. Empty: memory is registered
  // for networks too.
  Maker(rendezvous::StoreClient& store, const std::string& key_prefix, int rank,
        std::shared_ptr<NcclSession> session, const BootstrapOptions& options,
        const NcclBlocks& blocks_max, std::vector<float> machines)
      : store_(store),
        key_prefix_(key_prefix),
        rank_(rank),
        session_(std::move(session)),
        options_(options),
        blocks_max_(blocks_max),
        machines_(std::move(machines)) {
    std::vector<int> world(machines_.size());
    std::iota(world.begin(), world.end(), 0);
    if (rank != 0 || TakesMemory(world)) return;
    spdlog::info(
        "NCCL registers no memory for groups of several machines: before {} it may hang there "
        "(NVIDIA/nccl#2389)",
        NcclVersionText(kOldestNcclThatRegistersForNetworks));
  }

  absl::StatusOr<std::unique_ptr<Collective>> Make(const CommunicatorMember& member,
                                                   const std::vector<int>& group, Stream& stream) {
    const std::string name = member.name();
    NcclCollective::Parts parts;
    // These run beside products.
    const bool is_inside_layers = member.axes == Axes::kTp || member.axes == Axes::kCp;
    const int blocks_max = is_inside_layers
                               ? std::min(blocks_max_.collective, kCollectiveMultiprocessors)
                               : blocks_max_.collective;
    CONVENE_ASSIGN_OR_RETURN(
        parts.collectives,
        Connect(name, group,
                {.blocks_max = blocks_max, .has_equal_memory = HasEqualMemory(member.axes)}));
    if (member.axes == Axes::kPp) {
      CONVENE_ASSIGN_OR_RETURN(parts.links, ConnectLinks(name, group));
    }
    CONVENE_ASSIGN_OR_RETURN(std::unique_ptr<NcclCollective> collective,
                             NcclCollective::Create(session_, name, group, PlaceIn(group), parts,
                                                    options_.*member.timeout));
    const bool exchanges = member.axes == Axes::kCp || member.axes == Axes::kEp;
    CONVENE_RETURN_IF_ERROR(collective->WarmUp(exchanges, stream, deadline_));
    return collective;
  }

 private:
  // Ranks of one stage of the pipeline declare equal arenas (device/arena.h).
  static bool HasEqualMemory(Axes axes) {
    return axes != Axes::kPp && axes != Axes::kPipelineEnds && axes != Axes::kWorld;
  }

  bool TakesMemory(const std::vector<int>& group) const {
    return machines_.empty() || std::all_of(group.begin(), group.end(), [&](int rank) {
             return machines_[rank] == machines_[group.front()];
           });
  }

  int PlaceIn(const std::vector<int>& group) const {
    return static_cast<int>(std::find(group.begin(), group.end(), rank_) - group.begin());
  }

  // The group's unique id, made by its first rank.
  absl::StatusOr<ncclUniqueId> AgreeOnId(const std::string& name, const std::vector<int>& group) {
    const std::string key = absl::StrCat(key_prefix_, "/nccl/id/", name, "/", group.front());
    ncclUniqueId id;
    if (group.front() == rank_) {
      CONVENE_RETURN_IF_ERROR(NcclStatus(ncclGetUniqueId(&id)));
      CONVENE_RETURN_IF_ERROR(store_.Set(key, std::string(id.internal, sizeof(id.internal))));
      return id;
    }
    const absl::Duration left = std::max(deadline_ - Clock::Real().Now(), absl::ZeroDuration());
    const auto bytes = store_.Get(key, left);
    if (!bytes.ok()) {
      return Annotate(bytes.status(),
                      absl::StrCat("waiting for rank ", group.front(), " to open the group"));
    }
    if (bytes->size() != sizeof(id.internal)) {
      return absl::UnavailableError(absl::StrCat(
          "rank ", group.front(), " published ", bytes->size(), " bytes in place of NCCL's ",
          sizeof(id.internal), ": does it run another version?"));
    }
    std::memcpy(id.internal, bytes->data(), sizeof(id.internal));
    return id;
  }

  absl::StatusOr<int> Connect(const std::string& name, const std::vector<int>& group,
                              NcclCommunicatorTraits traits) {
    traits.takes_memory = TakesMemory(group);
    deadline_ = start_ + NcclConnectTimeout(communicators_++, options_.connect_timeout,
                                            options_.operation_timeout);
    const auto id = AgreeOnId(name, group);
    if (!id.ok()) return Annotate(id.status(), absl::StrCat(name, " communicator"));
    return session_->MakeCommunicator(name, static_cast<int>(group.size()), PlaceIn(group), *id,
                                      deadline_, traits);
  }

  // Making a communicator waits for its other rank. So all ranks go through the links in one order,
  // first those whose lower rank is even: these do not wait for each other.
  absl::StatusOr<std::vector<NcclCollective::Link>> ConnectLinks(const std::string& name,
                                                                 const std::vector<int>& group) {
    std::vector<NcclCollective::Link> links;
    const int own = PlaceIn(group);
    const auto connect = [&](int from, int to) {
      return Connect(absl::StrCat(name, " ", from, ">", to), {group[from], group[to]},
                     {.blocks_max = blocks_max_.message});
    };
    for (const int parity : {0, 1}) {
      for (const auto& [low, high] : options_.pp_links) {
        if (low % 2 != parity || (own != low && own != high)) continue;
        NcclCollective::Link& link = links.emplace_back();
        link.peer = own == low ? high : low;
        CONVENE_ASSIGN_OR_RETURN((own == low ? link.to : link.from), connect(low, high));
        CONVENE_ASSIGN_OR_RETURN((own == low ? link.from : link.to), connect(high, low));
      }
    }
    return links;
  }

  rendezvous::StoreClient& store_;
  const std::string key_prefix_;
  const int rank_;
  const std::shared_ptr<NcclSession> session_;
  const BootstrapOptions& options_;
  const NcclBlocks blocks_max_;
  const std::vector<float> machines_;
  const MonotonicTime start_ = Clock::Real().Now();
  int communicators_ = 0;   // begun
  MonotonicTime deadline_;  // of the last one
};

// A number of each rank's machine, by rank: a hash that a float holds exactly.
absl::StatusOr<std::vector<float>> TellMachines(const std::string& host_name, Collective& host) {
  const uint64_t hash = XXH3_64bits(host_name.data(), host_name.size());
  std::vector<float> machines(host.size());
  machines[host.rank()] = static_cast<float>(hash >> 40);  // 24 bits
  Stream stream = Stream::Cpu();
  CONVENE_RETURN_IF_ERROR(host.AllGather(absl::MakeSpan(machines), stream));
  return machines;
}

// Logs rank 0's line, and one rank's warning: a GPU that ranks share goes before sockets, which may
// be all that this cluster has.
absl::Status ReportTransports(const std::string& log, int version, const NcclPlace& place,
                              Collective& host) {
  TransportSummary summary = SummarizeTransports(log, NcclVersionText(version));
  // Ranks that share a GPU have no other way than sockets.
  const std::string sharing = SharingWarning(place);
  constexpr float kSockets = 1;
  constexpr float kShared = 2;
  float kind = summary.warning.empty() ? 0 : kSockets;
  if (!sharing.empty()) {
    summary.warning = sharing;
    kind = kShared;
  }
  if (host.rank() == 0 && !log.empty()) spdlog::info("{}", summary.line);
  std::vector<float> warned(host.size());
  warned[host.rank()] = kind;
  Stream stream = Stream::Cpu();
  CONVENE_RETURN_IF_ERROR(host.AllGather(absl::MakeSpan(warned), stream));
  const auto first = std::max_element(warned.begin(), warned.end());
  if (*first > 0 && first - warned.begin() == host.rank()) {
    spdlog::warn("{} ({} of {} ranks)", summary.warning,
                 std::count(warned.begin(), warned.end(), *first), host.size());
  }
  return absl::OkStatus();
}

absl::Status MakeAll(const Layout& layout, int rank, Maker& maker, Stream& stream,
                     CommunicatorSet& set) {
  for (const CommunicatorMember& member : kCommunicatorMembers) {
    const std::vector<int> group = GroupOf(layout, member.axes, rank);
    if (group.size() < 2 || member.in_host_memory) continue;
    CONVENE_ASSIGN_OR_RETURN(set.*member.place, maker.Make(member, group, stream));
  }
  return absl::OkStatus();
}

// The error, with what NCCL's log says to it.
absl::Status WithWordsOf(const NcclDebugLog& log, absl::Status status) {
  if (status.ok()) return status;
  const std::string words = ExplainFailure(log.Read());
  if (words.empty()) return status;
  return absl::Status(status.code(), absl::StrCat(status.message(), "; ", words));
}

}  // namespace

absl::StatusOr<int> CountGpusInUse(rendezvous::StoreClient& store, const std::string& key_prefix,
                                   const std::string& host_name, int world_size,
                                   absl::Duration timeout) {
  // GPUs are told apart by their bus address, as NCCL looks for duplicates.
  int device = 0;
  char bus_id[32] = "";
  CONVENE_RETURN_IF_ERROR(cuda::CudaStatus(cudaGetDevice(&device), "the current device"));
  CONVENE_RETURN_IF_ERROR(
      cuda::CudaStatus(cudaDeviceGetPCIBusId(bus_id, sizeof(bus_id), device), "its bus"));
  const std::string count_key = absl::StrCat(key_prefix, "/nccl/gpus/", host_name);
  CONVENE_ASSIGN_OR_RETURN(const int64_t users, store.Add(absl::StrCat(count_key, "/", bus_id), 1));
  if (users == 1) CONVENE_RETURN_IF_ERROR(store.Add(count_key, 1).status());
  CONVENE_RETURN_IF_ERROR(
      rendezvous::WaitForAll(store, absl::StrCat(key_prefix, "/nccl/gpus-counted"), world_size,
                             timeout, "waiting for the GPUs of all ranks"));
  CONVENE_ASSIGN_OR_RETURN(const int64_t gpus, store.Add(count_key, 0));
  return static_cast<int>(gpus);
}

absl::StatusOr<CommunicatorSet> BootstrapNccl(const Layout& layout, int rank,
                                              rendezvous::StoreClient& store,
                                              const std::string& key_prefix,
                                              const NcclBootstrapOptions& options, Device& device) {
  if (device.kind() != DeviceKind::kCuda) {
    return absl::FailedPreconditionError(
        absl::StrCat("NCCL works between GPUs; this rank has ", device.description()));
  }
  CONVENE_ASSIGN_OR_RETURN(CommunicatorSet set, BootstrapGloo(layout, rank, store, key_prefix,
                                                              options.base, GlooPart::kHostMemory));
  if (layout.world_size() == 1) return set;
  for (const auto& [name, value] : NcclEnvironment(options.place)) {
    setenv(name.c_str(), value.c_str(), /*overwrite=*/0);
  }
  const NcclDebugLog debug_log;
  int version = 0;
  CONVENE_RETURN_IF_ERROR(NcclStatus(ncclGetVersion(&version)));
  if (version < kOldestNcclVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        "NCCL ", NcclVersionText(version), " is too old: ", NcclVersionText(kOldestNcclVersion),
        " is the oldest that will do"));
  }
  int cuda_device = 0;
  CONVENE_RETURN_IF_ERROR(cuda::CudaStatus(cudaGetDevice(&cuda_device), "the current device"));
  const auto session = std::make_shared<NcclSession>(
      NcclSessionOptions{.global_rank = rank,
                         .cuda_device = cuda_device,
                         .operation_timeout = options.base.operation_timeout,
                         .has_windows = version >= kOldestNcclWithWindows,
                         .recorder = options.base.recorder,
                         .open_store = options.open_store,
                         .key_prefix = key_prefix});
  CONVENE_ASSIGN_OR_RETURN(std::vector<float> machines,
                           TellMachines(options.place.host_name, *set.host));
  if (version >= kOldestNcclThatRegistersForNetworks) machines.clear();
  Maker maker(store, key_prefix, rank, session, options.base,
              NcclBlocksMax(device.compute().queue().multiprocessors()), std::move(machines));
  absl::Status status =
      WithWordsOf(debug_log, MakeAll(layout, rank, maker, device.communication(), set));
  if (status.ok()) status = ReportTransports(debug_log.Read(), version, options.place, *set.host);
  if (!status.ok()) {
    // A communicator that is half made cannot be finalized: the other ranks may not even know of
    // it.
    session->Fail(status);
    return status;
  }
  session->StartWatchdog();
  return set;
}

std::unique_ptr<Memory> MakeNcclMemory(const CommunicatorSet& set) {
  for (Collective* const collective : set.OnDevice()) {
    const auto* const over_nccl = dynamic_cast<NcclCollective*>(collective);
    if (over_nccl != nullptr) return std::make_unique<NcclMemory>(over_nccl->session(), *set.host);
  }
  return nullptr;
}

}  // namespace convene::worker
