#include "worker_runtime/replicas/peer_replicas.h"

#include <xxhash.h>

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "spdlog/spdlog.h"
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

// A number of the tensors' parts that a shard has; 0: none.
double ContentOf(const Manifest& index) {
  if (index.pieces.empty()) return 0;
  std::string text;
  for (const TensorPiece& piece : index.pieces) {
    absl::StrAppend(&text, NameOfPiece(piece), "\n");
  }
  return static_cast<double>((XXH3_64bits(text.data(), text.size()) >> 12) + 1);
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
  CONVENE_RETURN_IF_ERROR(made->FindPlaces());
  return made;
}

PeerReplicas::~PeerReplicas() {
  if (queue_.Await(queue_.pushed(), /*timeout=*/absl::ZeroDuration())) return;
  world_.Abort("the training has ended before its copies in memory were whole");
}

absl::Status PeerReplicas::FindPlaces() {
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
  return absl::OkStatus();
}

void PeerReplicas::PlaceCopies(const std::vector<Sizes>& sizes) {
  std::vector<double> contents;
  for (const Sizes& size : sizes) contents.push_back(size.content);
  shard_of_rank_ = NumberShards(contents);
  shards_ = 1 + *std::max_element(shard_of_rank_.begin(), shard_of_rank_.end());
  holders_ = PlaceReplicas(places_, shard_of_rank_, options_.replicas);
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
    if (!state.has_value()) {
      const std::string missing = WhatIsMissing(copies);
      // After a refusal the damage was told.
      if (!opened_.has_value() && !missing.empty() && world_.rank() == 0) {
        spdlog::warn("{}. The job goes on from a checkpoint, if there is one", missing);
      }
      return nullptr;
    }
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
  own_.reset();
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
  own_sizes_.content = ContentOf(index_);
  own_sizes_.data_bytes = index_.files[0].bytes = RoundUp(end, kChunkAlignmentBytes);
  const auto text_bytes =
      static_cast<int64_t>(EncodeManifest(ManifestKind::kManifest, index_).size());
  own_sizes_.data_offset = NodeMemory::DataOffset(text_bytes + kIndexGrowth);
}

absl::StatusOr<std::vector<PeerReplicas::Sizes>> PeerReplicas::GatherSizes() {
  constexpr int kNumbers = 4;
  std::vector<double> told(kNumbers * world_.size());
  double* const own = &told[kNumbers * world_.rank()];
  own[0] = static_cast<double>(own_sizes_.data_offset);
  own[1] = static_cast<double>(own_sizes_.data_bytes);
  own[2] = own_sizes_.content;
  own[3] = static_cast<double>(options_.promised_bytes());
  Stream stream = Stream::Cpu();
  CONVENE_RETURN_IF_ERROR(world_.AllGather(absl::MakeSpan(told), stream));
  std::vector<Sizes> sizes;
  for (int rank = 0; rank < world_.size(); ++rank) {
    const double* const of_rank = &told[kNumbers * rank];
    sizes.push_back({static_cast<int64_t>(of_rank[0]), static_cast<int64_t>(of_rank[1]), of_rank[2],
                     static_cast<int64_t>(of_rank[3])});
  }
  return sizes;
}

// All of a node's ranks count the node's whole need, against the memory that is there before any of
// them takes a part of it.
absl::Status PeerReplicas::CheckMemory(const std::vector<Sizes>& sizes) {
  int64_t needed = 0;
  int64_t available = options_.available_bytes();
  for (int rank = 0; rank < world_.size(); ++rank) {
    const auto& holders = holders_[rank];
    const auto here = [&](int other) { return places_[other].node == options_.node; };
    if (here(rank)) available -= sizes[rank].promised_bytes;
    const int64_t copies = (here(rank) && KeepsOwnCopy(places_, shard_of_rank_, rank) ? 1 : 0) +
                           std::count_if(holders.begin(), holders.end(), here);
    needed += 2 * copies * (sizes[rank].data_offset + sizes[rank].data_bytes);
  }
  available = std::max<int64_t>(available, 0);
  absl::Status enough;
  if (needed > available) {
    enough = absl::ResourceExhaustedError(absl::StrCat(
        "the copies of --replicas ", options_.replicas, " --replicate-every ", options_.every,
        " take ", Bytes(needed), " of host memory here, and ", Bytes(available),
        " are left beside what its ranks use, or have planned and not used yet; choose fewer "
        "replicas, more nodes, or a machine with more memory"));
  }
  Stream stream = Stream::Cpu();
  return Agree(enough, "take the memory of the copies", world_, stream);
}

absl::Status PeerReplicas::TakeMemory() {
  CONVENE_ASSIGN_OR_RETURN(const std::vector<Sizes> sizes, GatherSizes());
  PlaceCopies(sizes);
  CONVENE_RETURN_IF_ERROR(CheckMemory(sizes));
  own_.reset();
  slots_.clear();
  if (KeepsOwnCopy(places_, shard_of_rank_, world_.rank())) own_ = Slot{.sender = world_.rank()};
  for (int sender = 0; sender < world_.size(); ++sender) {
    const std::vector<int>& holders = holders_[sender];
    if (std::find(holders.begin(), holders.end(), world_.rank()) == holders.end()) continue;
    slots_.push_back({.sender = sender, .head = std::vector<std::byte>(sizes[sender].data_offset)});
  }
  Stream stream = Stream::Cpu();
  return Agree(ReserveWindows(sizes), "take the memory of the copies", world_, stream);
}

absl::Status PeerReplicas::ReserveWindows(const std::vector<Sizes>& sizes) {
  std::vector<Slot*> slots;
  if (own_.has_value()) slots.push_back(&*own_);
  for (Slot& slot : slots_) slots.push_back(&slot);
  const int64_t first = options_.local_rank * kWindowsOfRank;
  int64_t next = first;
  for (Slot* const slot : slots) {
    for (int half = 0; half < 2; ++half, ++next) {
      while (std::find(old_windows_.begin(), old_windows_.end(), next) != old_windows_.end()) {
        ++next;
      }
      if (next >= first + kWindowsOfRank) {
        return absl::FailedPreconditionError(absl::StrCat(
            "a rank can keep ", kWindowsOfRank / 4 - 1, " other ranks' copies, and has to keep ",
            slots_.size(), "; choose a lower --replicas"));
      }
      const Sizes& size = sizes[slot->sender];
      CONVENE_ASSIGN_OR_RETURN(slot->windows[half],
                               memory_->Reserve(next, size.data_offset, size.data_bytes));
    }
  }
  return absl::OkStatus();
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
  if (own_.has_value()) {
    const MappedWindow& own = own_->windows[half];
    NodeMemory::Break(own);
    for (size_t i = 0; i < pieces.size(); ++i) {
      const ConstElements& data = pieces[i].data;
      device_.Copy(data.data, own.data + piece_offsets_[i], data.size_bytes(), device_.compute());
    }
    CONVENE_RETURN_IF_ERROR(device_.Synchronize(options_.timeout));
  }
  ++stages_;
  staged_step_ = info.step;
  queue_.Push([this, half] { result_ = Replicate(half); });
  return absl::OkStatus();
}

absl::Status PeerReplicas::Finish() {
  queue_.Await(queue_.pushed());
  return result_;
}

void PeerReplicas::SealOwn(const MappedWindow& own) {
  for (size_t i = 0; i < index_.places.size(); ++i) {
    ChunkPlace& place = index_.places[i];
    place.checksum = XXH3_64bits(own.data + place.offset_bytes,
                                 index_.pieces[i].flat_count * SizeOf(place.dtype));
  }
  NodeMemory::Seal(own, {generation_, index_.info.step, shard_of_rank_[world_.rank()], shards_},
                   EncodeManifest(ManifestKind::kManifest, index_));
}

absl::Status PeerReplicas::Replicate(int half) {
  if (own_.has_value()) SealOwn(own_->windows[half]);
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
  for (Slot& slot : slots_) {
    NodeMemory::Break(slot.windows[half]);
    CONVENE_RETURN_IF_ERROR(for_each_part(
        slot.head.data(), slot.windows[half], [&](std::byte* at, int64_t bytes) -> absl::Status {
          const Elements part(at, bytes / sizeof(float), DType::kFloat32);
          CONVENE_ASSIGN_OR_RETURN(pending.emplace_back(),
                                   world_.StartRecv(part, slot.sender, stream));
          return absl::OkStatus();
        }));
  }
  for (const int holder : holders_[world_.rank()]) {
    const MappedWindow& own = own_->windows[half];  // A sender keeps one.
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
  for (const Slot& slot : slots_) NodeMemory::SealLike(slot.windows[half], slot.head);
  return absl::OkStatus();
}

int PeerReplicas::CopiesElsewhere() const {
  const int shard = shard_of_rank_[world_.rank()];
  std::set<int> nodes;
  for (int rank = 0; rank < world_.size(); ++rank) {
    if (shard < 0 || shard_of_rank_[rank] != shard) continue;
    nodes.insert(places_[rank].node);
    for (const int holder : holders_[rank]) nodes.insert(places_[holder].node);
  }
  nodes.erase(options_.node);
  return static_cast<int>(nodes.size());
}

std::string PeerReplicas::Description() const {
  int64_t bytes = 0;
  const auto add = [&bytes](const Slot& slot) {
    for (const MappedWindow& window : slot.windows) bytes += window.data_offset + window.data_bytes;
  };
  if (own_.has_value()) add(*own_);
  for (const Slot& slot : slots_) add(slot);
  const int replicas = CopiesElsewhere();
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
