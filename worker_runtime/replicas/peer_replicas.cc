#include "worker_runtime/replicas/peer_replicas.h"

#include <xxhash.h>

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "spdlog/spdlog.h"
#include "tools/base/cgroup_limits.h"
#include "tools/base/check.h"
#include "tools/base/rounding.h"
#include "tools/base/status_macros.h"
#include "tools/base/text.h"
#include "worker_runtime/checkpointing/agree.h"

namespace convene::worker {
namespace {

// A message carries less than 4 GiB, and at most 1024 may be unwaited.
constexpr int64_t kMessageBytes = int64_t{1} << 30;
// An index grows by some digits from step to step.
constexpr int64_t kIndexGrowth = 16 << 10;

// A number for a label that the ranks can tell each other as a double; 0 for none.
int64_t LabelNumber(const std::string& label) {
  if (label.empty()) return 0;
  return static_cast<int64_t>(XXH3_64bits(label.data(), label.size()) >> 12) + 1;
}

std::string Bytes(int64_t bytes) { return HumanBytes(static_cast<double>(bytes)); }

}  // namespace

PeerReplicas::PeerReplicas(const Options& options, Collective& world, Device& device,
                           std::unique_ptr<NodeMemory> memory)
    : options_(options), world_(world), device_(device), memory_(std::move(memory)) {}

absl::StatusOr<std::unique_ptr<PeerReplicas>> PeerReplicas::Create(const Options& options,
                                                                   Collective& world,
                                                                   Device& device) {
  absl::StatusOr<std::unique_ptr<NodeMemory>> memory =
      options.memory_path.empty()
          ? absl::FailedPreconditionError(
                "--replicate-every: nobody holds this node's memory (CONVENE_MEMORY is not set); "
                "start the job with `convene run`, or leave the flag out")
          : NodeMemory::Open(options.memory_path);
  Stream stream = Stream::Cpu();
  CONVENE_RETURN_IF_ERROR(
      Agree(memory.status(), "open the memory that its node's agent holds", world, stream));
  std::unique_ptr<PeerReplicas> made(new PeerReplicas(options, world, device, *std::move(memory)));
  CONVENE_RETURN_IF_ERROR(made->PlaceCopies());
  return made;
}

PeerReplicas::~PeerReplicas() {
  if (queue_.Await(queue_.pushed(), /*timeout=*/absl::ZeroDuration())) return;
  world_.Abort("the training has ended before its copies in memory were whole");
}

absl::Status PeerReplicas::PlaceCopies() {
  std::vector<double> told(2 * world_.size());
  told[2 * world_.rank()] = options_.node;
  told[2 * world_.rank() + 1] = static_cast<double>(LabelNumber(options_.topology));
  Stream stream = Stream::Cpu();
  CONVENE_RETURN_IF_ERROR(world_.AllGather(absl::MakeSpan(told), stream));
  std::set<int> nodes;
  for (int rank = 0; rank < world_.size(); ++rank) {
    places_.push_back({static_cast<int>(told[2 * rank]), static_cast<int64_t>(told[2 * rank + 1])});
    nodes.insert(places_.back().node);
  }
  const int others = std::max(static_cast<int>(nodes.size()), options_.max_nodes) - 1;
  if (options_.replicas > others) {
    return absl::FailedPreconditionError(
        absl::StrCat("--replicas ", options_.replicas,
                     " needs as many other nodes for the copies of a node, "
                     "and the job never has more than ",
                     others, "; choose --replicas ", others, ", or more nodes (--nnodes)"));
  }
  holders_ = PlaceReplicas(places_, options_.replicas);
  return absl::OkStatus();
}

std::vector<int64_t> PeerReplicas::Windows() const {
  std::vector<int64_t> windows;
  const int64_t count = memory_->window_count();
  for (int64_t first = options_.local_rank * kWindowsOfRank; first < count;
       first += options_.local_world_size * kWindowsOfRank) {
    for (int64_t i = 0; i < std::min(kWindowsOfRank, count - first); ++i) {
      windows.push_back(first + i);
    }
  }
  return windows;
}

absl::StatusOr<std::unique_ptr<StateSource>> PeerReplicas::OpenNext() {
  CONVENE_ASSIGN_OR_RETURN(const std::vector<HeldCopy> copies,
                           GatherCopies(*memory_, Windows(), options_.node, world_));
  for (;;) {
    std::optional<WholeState> state = ChooseCopies(copies, opened_);
    if (!state.has_value()) return nullptr;
    opened_ = {state->generation, state->step};
    absl::StatusOr<std::unique_ptr<MemoryState>> opened =
        MemoryState::Open(*std::move(state), *memory_, options_.node, world_);
    if (opened.ok()) return *std::move(opened);
    if (!absl::IsDataLoss(opened.status())) return opened.status();
    if (world_.rank() == 0) spdlog::warn("{}", std::string(opened.status().message()));
  }
}

absl::Status PeerReplicas::BeginGeneration(bool is_from_memory) {
  old_windows_.clear();
  slots_.clear();
  for (const int64_t window : Windows()) {
    const std::optional<NodeMemory::Found> found = memory_->Find(window);
    if (is_from_memory && found.has_value() && found->name.generation == opened_->generation &&
        found->name.step == opened_->step) {
      old_windows_.push_back(window);
    } else {
      CONVENE_RETURN_IF_ERROR(memory_->Free(window));
    }
  }
  // Rollbacks make further ones within an epoch.
  generation_ = std::max(generation_ + 1, options_.epoch << 20);
  stages_ = 0;
  staged_step_ = -1;
  return absl::OkStatus();
}

void PeerReplicas::MakeIndex(const std::vector<PieceToWrite>& pieces, const CheckpointInfo& info) {
  index_ = {.info = info, .files = {{absl::StrCat("shard_", world_.rank()), 0}}};
  piece_offsets_.clear();
  int64_t end = 0;
  for (const PieceToWrite& item : pieces) {
    end = RoundUp(end, kChunkAlignmentBytes);
    piece_offsets_.push_back(end);
    for (int64_t done = 0; done < item.piece.flat_count; done += kMaxChunkElements) {
      TensorPiece chunk = item.piece;
      chunk.flat_begin += done;
      chunk.flat_count = std::min(kMaxChunkElements, item.piece.flat_count - done);
      index_.places.push_back({.offset_bytes = end, .dtype = item.data.dtype});
      end += chunk.flat_count * static_cast<int64_t>(SizeOf(item.data.dtype));
      index_.pieces.push_back(std::move(chunk));
    }
  }
  own_sizes_.data_bytes = index_.files[0].bytes = RoundUp(end, kChunkAlignmentBytes);
  const auto text_bytes =
      static_cast<int64_t>(EncodeManifest(ManifestKind::kManifest, index_).size());
  own_sizes_.data_offset = NodeMemory::DataOffset(text_bytes + kIndexGrowth);
}

absl::StatusOr<std::vector<PeerReplicas::Sizes>> PeerReplicas::GatherSizes() {
  std::vector<double> told(2 * world_.size());
  told[2 * world_.rank()] = static_cast<double>(own_sizes_.data_offset);
  told[2 * world_.rank() + 1] = static_cast<double>(own_sizes_.data_bytes);
  Stream stream = Stream::Cpu();
  CONVENE_RETURN_IF_ERROR(world_.AllGather(absl::MakeSpan(told), stream));
  std::vector<Sizes> sizes;
  for (int rank = 0; rank < world_.size(); ++rank) {
    sizes.push_back(
        {static_cast<int64_t>(told[2 * rank]), static_cast<int64_t>(told[2 * rank + 1])});
  }
  return sizes;
}

// All of a node's ranks count the node's whole need, against the memory that is there before any of
// them takes a part of it.
absl::Status PeerReplicas::CheckMemory(const std::vector<Sizes>& sizes) {
  int64_t needed = 0;
  for (int owner = 0; owner < world_.size(); ++owner) {
    const auto& holders = holders_[owner];
    const auto here = [&](int rank) { return places_[rank].node == options_.node; };
    const int64_t copies =
        (here(owner) ? 1 : 0) + std::count_if(holders.begin(), holders.end(), here);
    needed += 2 * copies * (sizes[owner].data_offset + sizes[owner].data_bytes);
  }
  const int64_t available = AvailableMemoryBytes();
  absl::Status enough;
  if (needed > available) {
    enough = absl::ResourceExhaustedError(absl::StrCat(
        "the copies of --replicas ", options_.replicas, " --replicate-every ", options_.every,
        " take ", Bytes(needed), " of host memory here, and ", Bytes(available),
        " are available; choose fewer replicas, more nodes, or a machine with more memory"));
  }
  Stream stream = Stream::Cpu();
  return Agree(enough, "take the memory of the copies", world_, stream);
}

absl::Status PeerReplicas::TakeMemory() {
  CONVENE_ASSIGN_OR_RETURN(const std::vector<Sizes> sizes, GatherSizes());
  CONVENE_RETURN_IF_ERROR(CheckMemory(sizes));
  slots_.clear();
  slots_.push_back({.owner = world_.rank()});
  for (int owner = 0; owner < world_.size(); ++owner) {
    const std::vector<int>& holders = holders_[owner];
    if (std::find(holders.begin(), holders.end(), world_.rank()) == holders.end()) continue;
    slots_.push_back({.owner = owner, .head = std::vector<std::byte>(sizes[owner].data_offset)});
  }
  const int64_t first = options_.local_rank * kWindowsOfRank;
  int64_t next = first;
  absl::Status taken;
  for (Slot& slot : slots_) {
    for (int half = 0; half < 2 && taken.ok(); ++half, ++next) {
      while (std::find(old_windows_.begin(), old_windows_.end(), next) != old_windows_.end()) {
        ++next;
      }
      if (next >= first + kWindowsOfRank) {
        taken = absl::FailedPreconditionError(absl::StrCat(
            "a rank can keep ", kWindowsOfRank / 4 - 1, " other ranks' copies, and has to keep ",
            slots_.size() - 1, "; choose a lower --replicas"));
        break;
      }
      const Sizes& size = sizes[slot.owner];
      const auto window = memory_->Reserve(next, size.data_offset, size.data_bytes);
      taken = window.status();
      if (!window.ok()) break;
      slot.numbers[half] = next;
      slot.windows[half] = *window;
    }
  }
  Stream stream = Stream::Cpu();
  return Agree(taken, "take the memory of the copies", world_, stream);
}

absl::Status PeerReplicas::Stage(const CheckpointInfo& info, CheckpointedState& state) {
  CONVENE_RETURN_IF_ERROR(Finish());
  if (info.step == staged_step_) return absl::OkStatus();
  CONVENE_ASSIGN_OR_RETURN(const std::vector<PieceToWrite> pieces, state.PiecesInPlace());
  if (stages_ == 0) {
    MakeIndex(pieces, info);
    CONVENE_RETURN_IF_ERROR(TakeMemory());
  }
  CONVENE_CHECK(pieces.size() == piece_offsets_.size());
  index_.info = info;
  const int half = static_cast<int>(stages_ % 2);
  const MappedWindow& own = slots_[0].windows[half];
  NodeMemory::Break(own);
  for (size_t i = 0; i < pieces.size(); ++i) {
    const ConstElements& data = pieces[i].data;
    device_.Copy(data.data, own.data + piece_offsets_[i], data.size_bytes(), device_.compute());
  }
  CONVENE_RETURN_IF_ERROR(device_.Synchronize(options_.timeout));
  ++stages_;
  staged_step_ = info.step;
  queue_.Push([this, half] { result_ = Replicate(half); });
  return absl::OkStatus();
}

absl::Status PeerReplicas::Finish() {
  queue_.Await(queue_.pushed());
  return result_;
}

absl::Status PeerReplicas::Replicate(int half) {
  const MappedWindow& own = slots_[0].windows[half];
  for (size_t i = 0; i < index_.places.size(); ++i) {
    ChunkPlace& place = index_.places[i];
    place.checksum = XXH3_64bits(own.data + place.offset_bytes,
                                 index_.pieces[i].flat_count * SizeOf(place.dtype));
  }
  NodeMemory::Seal(own, {generation_, index_.info.step, world_.rank(), world_.size()},
                   EncodeManifest(ManifestKind::kManifest, index_));
  CONVENE_RETURN_IF_ERROR(Exchange(half));
  // Only now may the other half be written again, here and everywhere.
  Stream stream = Stream::Cpu();
  CONVENE_RETURN_IF_ERROR(world_.Barrier(stream));
  for (const int64_t window : old_windows_) CONVENE_RETURN_IF_ERROR(memory_->Free(window));
  old_windows_.clear();
  return absl::OkStatus();
}

// All messages are under way before any is waited for, so no rank waits in a circle.
absl::Status PeerReplicas::Exchange(int half) {
  Stream stream = Stream::Cpu();
  std::vector<PendingMessage> pending;
  const auto for_each_part = [&](std::byte* head, const MappedWindow& window, auto&& start) {
    absl::Status started = start(head, window.data_offset);
    for (int64_t done = 0; done < window.data_bytes && started.ok(); done += kMessageBytes) {
      started = start(window.data + done, std::min(kMessageBytes, window.data_bytes - done));
    }
    return started;
  };
  for (size_t i = 1; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    NodeMemory::Break(slot.windows[half]);
    CONVENE_RETURN_IF_ERROR(for_each_part(
        slot.head.data(), slot.windows[half], [&](std::byte* at, int64_t bytes) -> absl::Status {
          const Elements part(at, bytes / sizeof(float), DType::kFloat32);
          CONVENE_ASSIGN_OR_RETURN(pending.emplace_back(),
                                   world_.StartRecv(part, slot.owner, stream));
          return absl::OkStatus();
        }));
  }
  const MappedWindow& own = slots_[0].windows[half];
  for (const int holder : holders_[world_.rank()]) {
    CONVENE_RETURN_IF_ERROR(
        for_each_part(own.head, own, [&](std::byte* at, int64_t bytes) -> absl::Status {
          const ConstElements part(at, bytes / sizeof(float), DType::kFloat32);
          CONVENE_ASSIGN_OR_RETURN(pending.emplace_back(), world_.Send(part, holder, stream));
          return absl::OkStatus();
        }));
  }
  for (const PendingMessage& message : pending) {
    CONVENE_RETURN_IF_ERROR(world_.Wait(message, stream));
  }
  for (size_t i = 1; i < slots_.size(); ++i) {
    NodeMemory::SealLike(slots_[i].windows[half], slots_[i].head);
  }
  return absl::OkStatus();
}

std::string PeerReplicas::Description() const {
  int64_t bytes = 0;
  for (const Slot& slot : slots_) {
    for (const MappedWindow& window : slot.windows) bytes += window.data_offset + window.data_bytes;
  }
  const int replicas = static_cast<int>(holders_[world_.rank()].size());
  return absl::StrCat("copies in memory after each ",
                      options_.every == 1 ? "step" : absl::StrCat(options_.every, " steps"),
                      ", of each shard on its own node and on ", replicas, " other",
                      replicas == 1 ? " node" : " nodes",
                      replicas < options_.replicas
                          ? absl::StrCat(" (not ", options_.replicas, ": there are no more nodes)")
                          : "",
                      "; this rank keeps ", Bytes(bytes));
}

}  // namespace convene::worker
