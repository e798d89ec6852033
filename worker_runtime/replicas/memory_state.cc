#include "worker_runtime/replicas/memory_state.h"

#include <xxhash.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <unordered_set>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "spdlog/spdlog.h"
#include "tools/base/rounding.h"
#include "tools/base/status_macros.h"

namespace convene::worker {
namespace {

// A copy as numbers, for a collective: each below 2^53.
constexpr size_t kNumbersOfCopy = 8;

void Append(const HeldCopy& copy, std::vector<double>* numbers) {
  const CopyName& name = copy.name;
  for (const int64_t number :
       {name.generation, name.step, int64_t{name.shard}, int64_t{name.shards}, int64_t{copy.reader},
        int64_t{copy.node}, copy.window, copy.index_bytes}) {
    numbers->push_back(static_cast<double>(number));
  }
}

HeldCopy CopyOf(const double* numbers) {
  const auto at = [&](int i) { return static_cast<int64_t>(numbers[i]); };
  return {.name = {at(0), at(1), static_cast<int>(at(2)), static_cast<int>(at(3))},
          .reader = static_cast<int>(at(4)),
          .node = static_cast<int>(at(5)),
          .window = at(6),
          .index_bytes = at(7)};
}

// The copy whose index its reader tells the others: readers in turn.
const HeldCopy& TellsIndex(const WholeState& state, size_t shard) {
  const std::vector<HeldCopy>& copies = state.copies[shard];
  return copies[shard % copies.size()];
}

}  // namespace

std::string NameOfPiece(const TensorPiece& piece) {
  return absl::StrCat(piece.name, " ", absl::StrJoin(piece.local_box.offset, ","), " ",
                      absl::StrJoin(piece.local_box.extent, ","), " ", piece.flat_begin, " ",
                      piece.flat_count);
}

absl::StatusOr<std::vector<HeldCopy>> GatherCopies(const NodeMemory& memory,
                                                   absl::Span<const int64_t> windows, int node,
                                                   Collective& world) {
  std::vector<double> mine;
  for (const int64_t window : windows) {
    const std::optional<NodeMemory::Found> found = memory.Find(window);
    if (!found.has_value()) continue;
    Append({found->name, world.rank(), node, window, found->index_bytes}, &mine);
  }
  Stream stream = Stream::Cpu();
  double most = static_cast<double>(mine.size());
  CONVENE_RETURN_IF_ERROR(world.AllReduce(absl::MakeSpan(&most, 1), ReduceOp::kMax, stream));
  const auto of_rank = static_cast<size_t>(most);
  // A rank with fewer copies fills up with shards that no job has.
  std::vector<double> all(of_rank * world.size(), -1);
  std::copy(mine.begin(), mine.end(), all.begin() + world.rank() * of_rank);
  if (of_rank > 0) CONVENE_RETURN_IF_ERROR(world.AllGather(absl::MakeSpan(all), stream));
  std::vector<HeldCopy> copies;
  for (size_t i = 0; i < all.size(); i += kNumbersOfCopy) {
    if (all[i] >= 0) copies.push_back(CopyOf(&all[i]));
  }
  return copies;
}

MemoryState::MemoryState(WholeState state, NodeMemory& memory, int node, Collective& world)
    : state_(std::move(state)),
      memory_(memory),
      node_(node),
      world_(world),
      name_(absl::StrCat("the copy of step ", state_.step, " in the nodes' memory")) {}

absl::StatusOr<std::unique_ptr<MemoryState>> MemoryState::Open(WholeState state, NodeMemory& memory,
                                                               int node, Collective& world) {
  std::unique_ptr<MemoryState> opened(new MemoryState(std::move(state), memory, node, world));
  const WholeState& chosen = opened->state_;
  // Every rank tells the indexes that it is to tell, in order.
  const size_t shards = chosen.copies.size();
  std::vector<int64_t> place(shards);
  std::vector<int64_t> bytes_of_rank(world.size());
  for (size_t shard = 0; shard < shards; ++shard) {
    const HeldCopy& copy = TellsIndex(chosen, shard);
    place[shard] = bytes_of_rank[copy.reader];
    bytes_of_rank[copy.reader] += copy.index_bytes;
  }
  const int64_t stride =
      RoundUp(std::max<int64_t>(1, *std::max_element(bytes_of_rank.begin(), bytes_of_rank.end())),
              sizeof(float));
  std::vector<char> texts(stride * world.size());
  for (size_t shard = 0; shard < shards; ++shard) {
    const HeldCopy& copy = TellsIndex(chosen, shard);
    if (copy.reader != world.rank()) continue;
    const absl::StatusOr<NodeMemory::Copy> read = memory.Read(copy.window);
    // Zeros are no index: all ranks see the same damage.
    if (!read.ok() || static_cast<int64_t>(read->index.size()) != copy.index_bytes) continue;
    opened->open_.emplace(copy.window, *read);
    std::copy(read->index.begin(), read->index.end(),
              texts.begin() + copy.reader * stride + place[shard]);
  }
  Stream stream = Stream::Cpu();
  CONVENE_RETURN_IF_ERROR(
      world.AllGather({texts.data(), texts.size() / sizeof(float), DType::kFloat32}, stream));
  std::unordered_set<std::string> known;
  for (size_t shard = 0; shard < shards; ++shard) {
    const HeldCopy& copy = TellsIndex(chosen, shard);
    const absl::string_view text(texts.data() + copy.reader * stride + place[shard],
                                 copy.index_bytes);
    CONVENE_RETURN_IF_ERROR(opened->AddIndex(static_cast<int>(shard), text, &known));
  }
  return opened;
}

absl::Status MemoryState::AddIndex(int shard, absl::string_view text,
                                   std::unordered_set<std::string>* known) {
  absl::StatusOr<Manifest> index = DecodeManifest(ManifestKind::kManifest, text);
  if (!index.ok()) {
    return absl::DataLossError(
        absl::StrCat(name_, ", the index of shard ", shard, ": ", index.status().message()));
  }
  if (shard == 0) info_ = index->info;
  if (index->info != info_ || index->info.step != state_.step) {
    return absl::DataLossError(
        absl::StrCat(name_, ": shard ", shard, " is of another state than shard 0"));
  }
  for (size_t i = 0; i < index->pieces.size(); ++i) {
    TensorPiece& piece = index->pieces[i];
    // Ranks with other experts have the same dense weights: one of them will do.
    if (!known->insert(NameOfPiece(piece)).second) continue;
    shards_.push_back(shard);
    pieces_.push_back(std::move(piece));
    places_.push_back(index->places[i]);
  }
  return absl::OkStatus();
}

absl::StatusOr<ConstElements> MemoryState::Checked(int chunk, const void* data) const {
  const ChunkPlace& place = places_[chunk];
  const ConstElements elements(data, pieces_[chunk].flat_count, place.dtype);
  if (XXH3_64bits(data, elements.size_bytes()) == place.checksum) return elements;
  return absl::DataLossError(absl::StrCat(name_, ": chunk ", chunk, " (tensor '",
                                          pieces_[chunk].name, "', of shard ", shards_[chunk],
                                          ") does not have its checksum"));
}

absl::StatusOr<ConstElements> MemoryState::Load(int chunk, int64_t window) const {
  auto open = open_.find(window);
  if (open == open_.end()) {
    CONVENE_ASSIGN_OR_RETURN(const NodeMemory::Copy copy, memory_.Read(window));
    open = open_.emplace(window, copy).first;
  }
  const absl::Span<const std::byte> data = open->second.data;
  const ChunkPlace& place = places_[chunk];
  const int64_t bytes = pieces_[chunk].flat_count * static_cast<int64_t>(SizeOf(place.dtype));
  if (place.offset_bytes + bytes <= static_cast<int64_t>(data.size())) {
    return Checked(chunk, data.data() + place.offset_bytes);
  }
  return absl::DataLossError(absl::StrCat(name_, ": window ", window, " is too short"));
}

absl::StatusOr<std::vector<std::vector<int>>> MemoryState::ExchangeWants(
    const std::vector<std::vector<Want>>& wants) const {
  const int size = world_.size();
  Stream stream = Stream::Cpu();
  std::vector<double> asked(size), served(size);
  std::vector<int32_t> asked_cut(size + 1), served_cut(size + 1);
  std::vector<double> chunks;
  for (int rank = 0; rank < size; ++rank) {
    asked[rank] = static_cast<double>(wants[rank].size());
    for (const Want& want : wants[rank]) chunks.push_back(want.chunk);
    asked_cut[rank + 1] = static_cast<int32_t>(chunks.size());
  }
  CONVENE_RETURN_IF_ERROR(
      world_.AllToAll(absl::MakeConstSpan(asked), absl::MakeSpan(served), stream));
  for (int rank = 0; rank < size; ++rank) {
    served_cut[rank + 1] = served_cut[rank] + static_cast<int32_t>(served[rank]);
  }
  std::vector<double> wanted(served_cut[size]);
  CONVENE_RETURN_IF_ERROR(world_.AllToAllV(absl::MakeConstSpan(chunks), {asked_cut.data(), 1},
                                           absl::MakeSpan(wanted), {served_cut.data(), 1}, stream));
  std::vector<std::vector<int>> by_rank(size);
  for (int rank = 0; rank < size; ++rank) {
    by_rank[rank].assign(wanted.begin() + served_cut[rank], wanted.begin() + served_cut[rank + 1]);
  }
  return by_rank;
}

// The second half of Read: chunks travel, pair by pair of ranks.
class MemoryState::Reading {
 public:
  Reading(const MemoryState& state, const std::vector<PieceToRead>& pieces,
          const std::vector<BoxCopy>& plan)
      : state_(state), pieces_(pieces), plan_(plan) {
    for (size_t begin = 0, end = 0; begin < plan.size(); begin = end) {
      const int chunk = plan[begin].available_index;
      while (end < plan.size() && plan[end].available_index == chunk) ++end;
      missing_.push_back({chunk, begin, end});
    }
  }

  // The first error of the data that are still missing.
  const absl::Status& status() const { return status_; }

  // All ranks call it. Takes what is missing, each chunk from the copy of its shard that `choose`
  // gives. The collective's errors.
  absl::Status TakeFrom(absl::FunctionRef<const HeldCopy&(int shard)> choose) {
    const Collective& world = state_.world_;
    const std::vector<Want> wanted = std::exchange(missing_, {});
    status_ = absl::OkStatus();
    std::vector<std::vector<Want>> wants(world.size());
    for (const Want& want : wanted) {
      const HeldCopy& copy = choose(state_.shards_[want.chunk]);
      if (copy.node == state_.node_) {
        Take(want, state_.Load(want.chunk, copy.window));
      } else {
        wants[copy.reader].push_back(want);
      }
    }
    CONVENE_ASSIGN_OR_RETURN(const auto served, state_.ExchangeWants(wants));
    for (int distance = 1; distance < world.size(); ++distance) {
      CONVENE_RETURN_IF_ERROR(ExchangeAt(distance, wants, served));
    }
    return absl::OkStatus();
  }

 private:
  void Take(const Want& want, const absl::StatusOr<ConstElements>& data) {
    if (!data.ok()) {
      status_.Update(data.status());
      missing_.push_back(want);
      return;
    }
    for (size_t i = want.begin; i < want.end; ++i) {
      CopyBox(plan_[i], *data, pieces_[plan_[i].wanted_index].data);
    }
  }

  // Each rank gives to the rank that is `distance` ahead, and takes from the one as far behind,
  // chunk by chunk. Nobody waits in a circle: a rank waits for ranks that are at an earlier chunk
  // or distance alone. The collective's errors.
  absl::Status ExchangeAt(int distance, const std::vector<std::vector<Want>>& wants,
                          const std::vector<std::vector<int>>& served) {
    Collective& world = state_.world_;
    const int to = (world.rank() + distance) % world.size();
    const int from = (world.rank() + world.size() - distance) % world.size();
    Stream stream = Stream::Cpu();
    for (size_t i = 0; i < std::max(served[to].size(), wants[from].size()); ++i) {
      std::optional<PendingMessage> sent, received;
      if (i < served[to].size()) {
        CONVENE_ASSIGN_OR_RETURN(sent, world.Send(ToServe(served[to][i]), to, stream));
      }
      if (i < wants[from].size()) {
        const Elements target = BufferFor(wants[from][i].chunk, &received_);
        CONVENE_ASSIGN_OR_RETURN(received, world.StartRecv(target, from, stream));
        CONVENE_RETURN_IF_ERROR(world.Wait(*received, stream));
        Take(wants[from][i], state_.Checked(wants[from][i].chunk, target.data));
      }
      if (sent.has_value()) CONVENE_RETURN_IF_ERROR(world.Wait(*sent, stream));
    }
    return absl::OkStatus();
  }

  Elements BufferFor(int chunk, std::vector<std::byte>* buffer) const {
    const auto count = static_cast<size_t>(state_.pieces_[chunk].flat_count);
    const DType dtype = state_.places_[chunk].dtype;
    if (buffer->size() < count * SizeOf(dtype)) buffer->resize(count * SizeOf(dtype));
    return {buffer->data(), count, dtype};
  }

  // A chunk that cannot be read goes out as zeros, which fail the check of the rank that wants it.
  ConstElements ToServe(int chunk) {
    const std::vector<HeldCopy>& copies = state_.state_.copies[state_.shards_[chunk]];
    const auto own = std::find_if(copies.begin(), copies.end(), [&](const HeldCopy& copy) {
      return copy.reader == state_.world_.rank();
    });
    if (own != copies.end()) {
      const absl::StatusOr<ConstElements> data = state_.Load(chunk, own->window);
      if (data.ok()) return *data;
    }
    const Elements zeros = BufferFor(chunk, &sent_);
    std::fill(sent_.begin(), sent_.end(), std::byte{0});
    return zeros;
  }

  const MemoryState& state_;
  const std::vector<PieceToRead>& pieces_;
  const std::vector<BoxCopy>& plan_;
  std::vector<Want> missing_;
  absl::Status status_;
  std::vector<std::byte> received_, sent_;
};

absl::Status MemoryState::Read(const std::vector<PieceToRead>& pieces) const {
  absl::Status valid;
  std::vector<TensorPiece> wanted;
  for (const PieceToRead& item : pieces) {
    if (item.piece.flat_count > 0) valid.Update(ValidatePiece(item.piece, item.data));
    wanted.push_back(item.piece);
  }
  std::vector<BoxCopy> plan;
  if (valid.ok()) {
    absl::StatusOr<std::vector<BoxCopy>> planned = PlanReshard(wanted, pieces_);
    valid = Annotate(planned.status(), name_);
    if (planned.ok()) plan = *std::move(planned);
  }
  Reading reading(*this, pieces, plan);
  CONVENE_RETURN_IF_ERROR(reading.TakeFrom([&](int shard) -> const HeldCopy& {
    return NearestCopy(state_.copies[shard], world_.rank(), node_);
  }));
  if (!reading.status().ok()) {
    spdlog::warn("{}; it is read once more, from the copy whose index the ranks have",
                 std::string(reading.status().message()));
  }
  // All ranks come here, also those that miss nothing: the others may ask them.
  CONVENE_RETURN_IF_ERROR(
      reading.TakeFrom([&](int shard) -> const HeldCopy& { return TellsIndex(state_, shard); }));
  return valid.ok() ? reading.status() : valid;
}

}  // namespace convene::worker
