#include "worker_runtime/comm/group_collective.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "tools/base/check.h"
#include "tools/base/clock.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/comm/reduce.h"

namespace convene::worker {
namespace {

// Up to this many bytes arriving at a rank, one round of everything beats two rounds of shards
// (comm_bench, README.md).
constexpr size_t kGatherLimitBytes = 64 << 10;
// A root sends up to this much to everyone by itself.
constexpr size_t kDirectBroadcastLimitBytes = 64 << 10;
// Reductions run in pieces of this size, so that the scratch stays at (n - 1) pieces whatever the
// bucket.
constexpr size_t kPieceBytes = 4 << 20;

template <typename T>
absl::Span<std::byte> AsBytes(absl::Span<T> span) {
  return {reinterpret_cast<std::byte*>(span.data()), span.size() * sizeof(T)};
}
template <typename T>
absl::Span<const std::byte> AsBytes(absl::Span<const T> span) {
  return {reinterpret_cast<const std::byte*>(span.data()), span.size() * sizeof(T)};
}

}  // namespace

void* Scratch::ReserveBytes(size_t size_bytes) {
  if (size_bytes > size_bytes_) {
    memory_.reset();
    memory_.reset(new (std::align_val_t{kAlignment}) std::byte[size_bytes]);
    size_bytes_ = size_bytes;
  }
  return memory_.get();
}

GroupCollective::GroupCollective(std::string name, std::unique_ptr<Wire> wire,
                                 absl::Duration timeout, FlightRecorder& recorder)
    : name_(std::move(name)),
      wire_(std::move(wire)),
      rank_(wire_->rank()),
      size_(wire_->size()),
      timeout_(timeout),
      recorder_(recorder),
      peers_(size_) {}

// The scratch must outlive every message that uses it.
GroupCollective::~GroupCollective() { wire_->Withdraw(/*hang_up=*/false); }

absl::Status GroupCollective::CheckUsable() {
  if (!broken_.ok()) return broken_;
  const absl::Status open = wire_->CheckOpen();
  if (!open.ok()) broken_ = Annotate(open, name_);
  return broken_;
}

absl::Status GroupCollective::Break(const absl::Status& status, absl::string_view operation,
                                    uint64_t sequence, size_t size_bytes) {
  // What broke here must not leave others waiting for this rank. A deadline is different: whoever
  // waits for the same silent peer shall see that for himself, and name it.
  wire_->Withdraw(/*hang_up=*/!absl::IsDeadlineExceeded(status));
  broken_ = Annotate(status,
                     absl::StrCat(name_, " ", operation, " #", sequence, " (", size_bytes, " B)"));
  return broken_;
}

absl::Status GroupCollective::RunCollective(absl::string_view operation, size_t size_bytes,
                                            absl::FunctionRef<absl::Status()> body) {
  CONVENE_RETURN_IF_ERROR(CheckUsable());
  const uint64_t sequence = ++collectives_started_;
  const uint64_t record = recorder_.Start(name_, operation, sequence, size_bytes);
  deadline_ = Clock::Real().Now() + timeout_;
  absl::Status status = body();
  if (!status.ok()) status = Break(status, operation, sequence, size_bytes);
  recorder_.Finish(record, status);
  return status;
}

absl::Status GroupCollective::Exchange(absl::FunctionRef<ConstBytes(int)> outgoing,
                                       absl::FunctionRef<Bytes(int)> incoming) {
  const uint32_t round = ++rounds_started_;
  const auto tag = [&](size_t size_bytes) {
    return MessageTag{.lane = Lane::kCollective, .sequence = round, .size_bytes = size_bytes};
  };
  // Receives first: a message that finds its receive posted goes out at once. Everybody starts with
  // another peer.
  for (int distance = 1; distance < size_; ++distance) {
    const int peer = (rank_ + size_ - distance) % size_;
    const Bytes bytes = incoming(peer);
    if (bytes.empty()) continue;
    CONVENE_RETURN_IF_ERROR(wire_->PostReceive(peer, tag(bytes.size()), bytes.data()));
  }
  for (int distance = 1; distance < size_; ++distance) {
    const int peer = (rank_ + distance) % size_;
    const ConstBytes bytes = outgoing(peer);
    if (bytes.empty()) continue;
    CONVENE_RETURN_IF_ERROR(wire_->PostSend(peer, tag(bytes.size()), bytes.data()));
  }
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_ || incoming(peer).empty()) continue;
    CONVENE_RETURN_IF_ERROR(wire_->AwaitReceive(peer, Lane::kCollective, deadline_));
  }
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_ || outgoing(peer).empty()) continue;
    CONVENE_RETURN_IF_ERROR(wire_->AwaitSend(peer, Lane::kCollective, deadline_));
  }
  return absl::OkStatus();
}

template <typename T>
absl::Span<T> GroupCollective::ShardOf(absl::Span<T> data, int shard) const {
  const size_t first = data.size() * shard / size_;
  const size_t end = data.size() * (shard + 1) / size_;
  return data.subspan(first, end - first);
}

template <typename T>
absl::Status GroupCollective::AllReduceByGathering(absl::Span<T> data, ReduceOp op) {
  T* const gathered = scratch_.Reserve<T>(data.size() * size_);
  const auto of_rank = [&](int rank) {
    return absl::Span<T>(gathered + data.size() * rank, data.size());
  };
  CONVENE_RETURN_IF_ERROR(Exchange([&](int) { return ConstBytes(AsBytes(data)); },
                                   [&](int peer) { return AsBytes(of_rank(peer)); }));
  absl::InlinedVector<const T*, 64> sources;
  for (int rank = 0; rank < size_; ++rank) {
    sources.push_back(rank == rank_ ? data.data() : of_rank(rank).data());
  }
  ReduceInOrder(sources, data.size(), op, data.data());
  return absl::OkStatus();
}

template <typename T>
absl::Status GroupCollective::ReduceScatterShards(absl::Span<T> data, ReduceOp op) {
  constexpr size_t kPiece = kPieceBytes / sizeof(T);
  const size_t longest_shard = (data.size() + size_ - 1) / size_;
  for (size_t start = 0; start < longest_shard; start += kPiece) {
    const auto piece_of = [&](int shard) {
      const absl::Span<T> whole = ShardOf(data, shard);
      return whole.subspan(std::min(start, whole.size()), kPiece);
    };
    const absl::Span<T> own = piece_of(rank_);
    T* const arrived = scratch_.Reserve<T>(own.size() * size_);
    const auto from = [&](int peer) {
      return absl::Span<T>(arrived + own.size() * peer, own.size());
    };
    CONVENE_RETURN_IF_ERROR(Exchange([&](int peer) { return ConstBytes(AsBytes(piece_of(peer))); },
                                     [&](int peer) { return AsBytes(from(peer)); }));
    absl::InlinedVector<const T*, 64> sources;
    for (int rank = 0; rank < size_; ++rank) {
      sources.push_back(rank == rank_ ? own.data() : from(rank).data());
    }
    ReduceInOrder(sources, own.size(), op, own.data());
  }
  return absl::OkStatus();
}

template <typename T>
absl::Status GroupCollective::AllGatherShards(absl::Span<T> data) {
  return Exchange([&](int) { return ConstBytes(AsBytes(ShardOf(data, rank_))); },
                  [&](int peer) { return AsBytes(ShardOf(data, peer)); });
}

template <typename T>
absl::Status GroupCollective::AllReduceAny(absl::Span<T> data, ReduceOp op) {
  const size_t size_bytes = data.size() * sizeof(T);
  return RunCollective("all_reduce", size_bytes, [&]() -> absl::Status {
    if (size_ == 1) return absl::OkStatus();
    // Two ranks send as many bytes either way, and gathering takes one round instead of two.
    const bool gather = size_ == 2 || size_bytes * (size_ - 1) <= kGatherLimitBytes;
    if (gather) return AllReduceByGathering(data, op);
    CONVENE_RETURN_IF_ERROR(ReduceScatterShards(data, op));
    return AllGatherShards(data);
  });
}

absl::Status GroupCollective::AllReduce(absl::Span<float> data, ReduceOp op, Stream&) {
  return AllReduceAny(data, op);
}

absl::Status GroupCollective::AllReduce(absl::Span<double> data, ReduceOp op, Stream&) {
  return AllReduceAny(data, op);
}

absl::Status GroupCollective::ReduceScatter(absl::Span<float> data, ReduceOp op, Stream&) {
  CONVENE_CHECK(data.size() % size_ == 0);
  return RunCollective("reduce_scatter", data.size() * sizeof(float), [&]() -> absl::Status {
    if (size_ == 1) return absl::OkStatus();
    return ReduceScatterShards(data, op);
  });
}

absl::Status GroupCollective::AllGather(absl::Span<float> data, Stream&) {
  CONVENE_CHECK(data.size() % size_ == 0);
  return RunCollective("all_gather", data.size() * sizeof(float),
                       [&] { return AllGatherShards(data); });
}

absl::Status GroupCollective::AllToAll(absl::Span<const float> input, absl::Span<float> output,
                                       Stream&) {
  CONVENE_CHECK(input.size() == output.size() && input.size() % size_ == 0);
  return RunCollective("all_to_all", input.size() * sizeof(float), [&] {
    const absl::Span<const float> kept = ShardOf(input, rank_);
    std::copy(kept.begin(), kept.end(), ShardOf(output, rank_).begin());
    return Exchange([&](int peer) { return AsBytes(ShardOf(input, peer)); },
                    [&](int peer) { return AsBytes(ShardOf(output, peer)); });
  });
}

absl::Status GroupCollective::Broadcast(absl::Span<float> data, int root, Stream&) {
  CONVENE_CHECK(root >= 0 && root < size_);
  const size_t size_bytes = data.size() * sizeof(float);
  return RunCollective("broadcast", size_bytes, [&]() -> absl::Status {
    const bool whole = size_ <= 2 || size_bytes <= kDirectBroadcastLimitBytes;
    const auto part_for = [&](int rank) { return whole ? data : ShardOf(data, rank); };
    CONVENE_RETURN_IF_ERROR(Exchange(
        [&](int peer) {
          return rank_ == root ? ConstBytes(AsBytes(part_for(peer))) : ConstBytes();
        },
        [&](int peer) { return peer == root ? AsBytes(part_for(rank_)) : Bytes(); }));
    // The root hears its own shards again, which writes what is there.
    return whole ? absl::OkStatus() : AllGatherShards(data);
  });
}

absl::Status GroupCollective::Barrier(Stream&) {
  return RunCollective("barrier", 0, [&] {
    // Not on the stack: a message that fails is withdrawn only after this function has returned.
    std::byte* const tokens = scratch_.Reserve<std::byte>(size_);
    tokens[rank_] = {};
    return Exchange([&](int) { return ConstBytes(tokens + rank_, 1); },
                    [&](int peer) { return Bytes(tokens + peer, 1); });
  });
}

absl::StatusOr<PendingSend> GroupCollective::Send(absl::Span<const float> data, int peer, Stream&) {
  CONVENE_CHECK(peer >= 0 && peer < size_ && peer != rank_);
  CONVENE_CHECK(open_send_count_ < kOpenSendsMax);
  CONVENE_RETURN_IF_ERROR(CheckUsable());
  // Finding a free place is nearly always the first look: sends are waited for in about the order
  // in which they start.
  size_t place = sends_started_ % kOpenSendsMax;
  while (open_sends_[place].id != 0) place = (place + 1) % kOpenSendsMax;
  OpenSend& open = open_sends_[place];
  open = {.id = ++sends_started_ * kOpenSendsMax + place,
          .peer = peer,
          .sequence = ++peers_[peer].sends_started,
          .size_bytes = data.size() * sizeof(float)};
  ++open_send_count_;
  const std::string operation = absl::StrCat("send to ", peer);
  open.record = recorder_.Start(name_, operation, open.sequence, open.size_bytes);
  const MessageTag tag = {
      .lane = Lane::kPointToPoint, .sequence = open.sequence, .size_bytes = open.size_bytes};
  absl::Status status = wire_->PostSend(peer, tag, data.data());
  if (!status.ok()) {
    status = Break(status, operation, open.sequence, open.size_bytes);
    recorder_.Finish(open.record, status);
    return status;
  }
  return PendingSend{.id = open.id};
}

absl::Status GroupCollective::Wait(PendingSend pending) {
  OpenSend& open = open_sends_[pending.id % kOpenSendsMax];
  CONVENE_CHECK(pending.id != 0 && open.id == pending.id);
  const OpenSend send = std::exchange(open, OpenSend{});
  --open_send_count_;
  CONVENE_RETURN_IF_ERROR(CheckUsable());
  deadline_ = Clock::Real().Now() + timeout_;
  absl::Status status;
  // They complete in order: those before this one are then known to be complete too.
  for (PeerState& peer = peers_[send.peer]; status.ok() && peer.sends_complete < send.sequence;) {
    status = wire_->AwaitSend(send.peer, Lane::kPointToPoint, deadline_);
    if (status.ok()) ++peer.sends_complete;
  }
  if (!status.ok()) {
    status = Break(status, absl::StrCat("send to ", send.peer), send.sequence, send.size_bytes);
  }
  recorder_.Finish(send.record, status);
  return status;
}

absl::Status GroupCollective::Recv(absl::Span<float> data, int peer, Stream&) {
  CONVENE_CHECK(peer >= 0 && peer < size_ && peer != rank_);
  CONVENE_RETURN_IF_ERROR(CheckUsable());
  const size_t size_bytes = data.size() * sizeof(float);
  const uint32_t sequence = ++peers_[peer].receives_started;
  const std::string operation = absl::StrCat("recv from ", peer);
  const uint64_t record = recorder_.Start(name_, operation, sequence, size_bytes);
  deadline_ = Clock::Real().Now() + timeout_;
  absl::Status status = wire_->PostReceive(
      peer, {.lane = Lane::kPointToPoint, .sequence = sequence, .size_bytes = size_bytes},
      data.data());
  if (status.ok()) status = wire_->AwaitReceive(peer, Lane::kPointToPoint, deadline_);
  if (!status.ok()) status = Break(status, operation, sequence, size_bytes);
  recorder_.Finish(record, status);
  return status;
}

void GroupCollective::Abort(absl::string_view why) { wire_->Abort(why); }

}  // namespace convene::worker
