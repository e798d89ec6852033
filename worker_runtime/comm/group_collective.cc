#include "worker_runtime/comm/group_collective.h"

#include <algorithm>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "tools/base/check.h"
#include "tools/base/clock.h"
#include "tools/base/rounding.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/comm/reduce.h"
#include "worker_runtime/device/host_queue.h"
#include "worker_runtime/device/op_profile.h"
#include "worker_runtime/device/waited.h"

namespace convene::worker {
namespace {

// Up to this many bytes arriving at a rank, one round of whole buffers beats two rounds of shards
// (comm_bench, README.md).
constexpr size_t kGatherLimitBytes = 64 << 10;
// A root sends up to this many bytes to every rank by itself.
constexpr size_t kDirectBroadcastLimitBytes = 64 << 10;
// Reductions run in pieces of this size, so that the scratch stays at (n - 1) pieces whatever the
// bucket.
constexpr size_t kPieceBytes = 4 << 20;

// Whether a group of one has something to do.
bool CopiesAlone(CollectiveKind kind) {
  return kind == CollectiveKind::kAllToAll || kind == CollectiveKind::kAllToAllV;
}

absl::Span<std::byte> AsBytes(Elements data) {
  return {static_cast<std::byte*>(data.data), data.size_bytes()};
}
absl::Span<const std::byte> AsBytes(ConstElements data) {
  return {static_cast<const std::byte*>(data.data), data.size_bytes()};
}

// The addresses of the summands, in rank order.
using Sources = absl::InlinedVector<const void*, 64>;

}  // namespace

GroupCollective::GroupCollective(std::string name, std::unique_ptr<Wire> wire,
                                 absl::Duration timeout, FlightRecorder& recorder,
                                 size_t message_bytes_max, std::shared_ptr<RankWires> rank_wires,
                                 bool is_beside_training)
    : name_(std::move(name)),
      profiled_as_(absl::StrCat(kCommunicationPrefix, name_)),
      rank_wires_(std::move(rank_wires)),
      wire_(std::move(wire)),
      rank_(wire_->rank()),
      size_(wire_->size()),
      timeout_(timeout),
      recorder_(recorder),
      message_bytes_max_(message_bytes_max),
      is_beside_training_(is_beside_training),
      peers_(size_) {
  rank_wires_->Add(wire_.get());
}

// The scratch must outlive every message that uses it.
GroupCollective::~GroupCollective() {
  {
    MutexLock lock(&mutex_);
    if (queued_ > 0) wire_->Abort(absl::AbortedError("the communicator is destroyed"));
    while (queued_ > 0) call_ended_.Wait(&mutex_);
  }
  rank_wires_->Remove(wire_.get());
  wire_->Withdraw(/*hang_up=*/absl::OkStatus());
}

absl::Status GroupCollective::Check() {
  MutexLock lock(&mutex_);
  if (!broken_.ok()) return broken_;
  const absl::Status open = wire_->CheckOpen();
  if (!open.ok()) broken_ = Annotate(open, name_);
  return broken_;
}

absl::Status GroupCollective::Break(const absl::Status& status, absl::string_view operation,
                                    uint64_t sequence, size_t size_bytes) {
  const absl::Status broken = Annotate(
      status, absl::StrCat(name_, " ", operation, " #", sequence, " (", size_bytes, " B)"));
  {
    MutexLock lock(&mutex_);
    broken_ = broken;
  }
  // A failure here must not leave other ranks waiting for this one. A deadline is different: each
  // rank that waits for the same silent peer has to notice that itself, and name the peer.
  const bool is_late = absl::IsDeadlineExceeded(status);
  wire_->Withdraw(/*hang_up=*/is_late ? absl::OkStatus() : broken);
  // Ranks that disagree about an operation wait for each other: the recorder's lines show the
  // difference. This rank's other calls would wait for the same peer, each for a time of its own.
  if (is_late &&
      rank_wires_->GiveUp(absl::DeadlineExceededError(absl::StrCat("after ", broken.message())))) {
    recorder_.Log();
  }
  return broken;
}

// At once, or as work of the stream's queue. A group of one has nothing to queue.
absl::Status GroupCollective::Call(const CollectiveCall& call, Stream& stream) {
  if (CopiesAlone(call.kind)) {
    // Of a group of one, which works on any device as long as there is nothing to do.
    if (stream.kind() != DeviceKind::kCpu) {
      return absl::UnimplementedError(
          absl::StrCat(name_, " ", CollectiveName(call.kind),
                       " of one rank in a GPU's memory: use Device::Copy"));
    }
    if (size_ == 1) AwaitAll(stream);  // it is not queued, and does copy
  }
  if (stream.host_queue() == nullptr || size_ == 1) {
    // A group of one does nothing, and passes the queue by: its profile is the queue's own.
    const OpScope scope(stream.host_queue() == nullptr ? stream.profile() : nullptr,
                        profiled_as_.c_str(), DetailOf(call, size_));
    return Run(call);
  }
  CONVENE_RETURN_IF_ERROR(Check());
  {
    MutexLock lock(&mutex_);
    ++queued_;
  }
  stream.host_queue()->Push([this, call, profile = stream.profile()] {
    {
      const OpScope scope(profile, profiled_as_.c_str(), DetailOf(call, size_));
      // Check() tells of its error.
      Run(call).IgnoreError();
    }
    MutexLock lock(&mutex_);
    --queued_;
    call_ended_.SignalAll();
  });
  return absl::OkStatus();
}

absl::Status GroupCollective::Run(const CollectiveCall& call) {
  CONVENE_RETURN_IF_ERROR(Check());
  const char* const operation = CollectiveName(call.kind);
  const uint64_t sequence = ++collectives_started_;
  record_ = recorder_.Start(name_, operation, sequence, call.input);
  limit_ = WaitLimit::From(Clock::Real().Now(), timeout_);
  const WaitScope waits(limit_.since);
  absl::Status status = Perform(call);
  if (!status.ok()) status = Break(status, operation, sequence, call.input.size_bytes());
  recorder_.Finish(record_, status);
  return status;
}

void GroupCollective::RecordWait(uint64_t record, int peer) {
  recorder_.Awaits(record, wire_->GlobalRank(peer), is_beside_training_);
}

absl::Status GroupCollective::Exchange(absl::FunctionRef<ConstBytes(int)> outgoing,
                                       absl::FunctionRef<Bytes(int)> incoming) {
  const uint32_t round = ++rounds_started_;
  const auto tag = [&](size_t size_bytes) {
    return MessageTag{.lane = Lane::kCollective, .sequence = round, .size_bytes = size_bytes};
  };
  // Receives come first, since a message whose receive is posted goes out at once. Each rank starts
  // with another peer.
  for (int distance = 1; distance < size_; ++distance) {
    const int peer = (rank_ + size_ - distance) % size_;
    for (Bytes bytes = incoming(peer); !bytes.empty();) {
      const Bytes message = bytes.subspan(0, message_bytes_max_);
      CONVENE_RETURN_IF_ERROR(wire_->PostReceive(peer, tag(message.size()), message.data()));
      bytes.remove_prefix(message.size());
    }
  }
  for (int distance = 1; distance < size_; ++distance) {
    const int peer = (rank_ + distance) % size_;
    for (ConstBytes bytes = outgoing(peer); !bytes.empty();) {
      const ConstBytes message = bytes.subspan(0, message_bytes_max_);
      CONVENE_RETURN_IF_ERROR(wire_->PostSend(peer, tag(message.size()), message.data()));
      bytes.remove_prefix(message.size());
    }
  }
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    for (int64_t left = CeilDivide(incoming(peer).size(), message_bytes_max_); left > 0; --left) {
      RecordWait(record_, peer);
      CONVENE_RETURN_IF_ERROR(wire_->AwaitReceive(peer, Lane::kCollective, limit_));
    }
  }
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    for (int64_t left = CeilDivide(outgoing(peer).size(), message_bytes_max_); left > 0; --left) {
      RecordWait(record_, peer);
      CONVENE_RETURN_IF_ERROR(wire_->AwaitSend(peer, Lane::kCollective, limit_));
    }
  }
  return absl::OkStatus();
}

template <typename Void>
BasicElements<Void> GroupCollective::ShardOf(BasicElements<Void> data, int shard) const {
  const size_t first = data.count * shard / size_;
  const size_t end = data.count * (shard + 1) / size_;
  return data.Slice(first, end - first);
}

std::byte* GroupCollective::ReserveScratch(size_t size_bytes) {
  const size_t lines = CeilDivide(size_bytes, sizeof(CacheLine));
  if (lines > scratch_.size()) {
    scratch_ = {};  // the old one goes first: it may be large
    scratch_.resize(lines);
  }
  return reinterpret_cast<std::byte*>(scratch_.data());
}

absl::Status GroupCollective::AllReduceByGathering(Elements data, ReduceOp op) {
  std::byte* const gathered = ReserveScratch(data.size_bytes() * size_);
  const auto of_rank = [&](int rank) {
    return Bytes(gathered + data.size_bytes() * rank, data.size_bytes());
  };
  CONVENE_RETURN_IF_ERROR(Exchange([&](int) { return ConstBytes(AsBytes(data)); }, of_rank));
  Sources sources;
  for (int rank = 0; rank < size_; ++rank) {
    sources.push_back(rank == rank_ ? data.data : of_rank(rank).data());
  }
  ReduceInOrder(sources, data.count, data.dtype, op, data.data);
  return absl::OkStatus();
}

absl::Status GroupCollective::ReduceScatterShards(Elements data, ReduceOp op) {
  const size_t piece_count = kPieceBytes / SizeOf(data.dtype);
  const size_t longest_shard = CeilDivide(data.count, size_);
  for (size_t start = 0; start < longest_shard; start += piece_count) {
    const auto piece_of = [&](int shard) {
      const Elements whole = ShardOf(data, shard);
      const size_t first = std::min(start, whole.count);
      return whole.Slice(first, std::min(piece_count, whole.count - first));
    };
    const Elements own = piece_of(rank_);
    std::byte* const arrived = ReserveScratch(own.size_bytes() * size_);
    const auto from = [&](int peer) {
      return Bytes(arrived + own.size_bytes() * peer, own.size_bytes());
    };
    CONVENE_RETURN_IF_ERROR(
        Exchange([&](int peer) { return ConstBytes(AsBytes(piece_of(peer))); }, from));
    Sources sources;
    for (int rank = 0; rank < size_; ++rank) {
      sources.push_back(rank == rank_ ? own.data : from(rank).data());
    }
    ReduceInOrder(sources, own.count, own.dtype, op, own.data);
  }
  return absl::OkStatus();
}

absl::Status GroupCollective::AllGatherShards(Elements data) {
  return Exchange([&](int) { return ConstBytes(AsBytes(ShardOf(data, rank_))); },
                  [&](int peer) { return AsBytes(ShardOf(data, peer)); });
}

absl::Status GroupCollective::Perform(const CollectiveCall& call) {
  const ConstElements input = call.input;
  const Elements output = call.output;
  if (size_ == 1 && !CopiesAlone(call.kind)) return absl::OkStatus();
  switch (call.kind) {
    case CollectiveKind::kAllReduce: {
      // With two ranks both ways send as many bytes, and gathering takes one round instead of two;
      // its scratch is as large as the data.
      const size_t bytes = output.size_bytes();
      const bool gather =
          (size_ == 2 && bytes <= kPieceBytes) || bytes * (size_ - 1) <= kGatherLimitBytes;
      if (gather) return AllReduceByGathering(output, call.op);
      CONVENE_RETURN_IF_ERROR(ReduceScatterShards(output, call.op));
      return AllGatherShards(output);
    }
    case CollectiveKind::kReduceScatter:
      return ReduceScatterShards(output, call.op);
    case CollectiveKind::kAllGather:
      return AllGatherShards(output);
    case CollectiveKind::kAllToAll: {
      const ConstBytes kept = AsBytes(ShardOf(input, rank_));
      std::copy(kept.begin(), kept.end(), AsBytes(ShardOf(output, rank_)).begin());
      return Exchange([&](int peer) { return AsBytes(ShardOf(input, peer)); },
                      [&](int peer) { return AsBytes(ShardOf(output, peer)); });
    }
    case CollectiveKind::kAllToAllV: {
      const auto sent = [&](int peer) {
        return AsBytes(input.Slice(call.input_cut.offset(peer), call.input_cut.count(peer)));
      };
      const auto received = [&](int peer) {
        return AsBytes(output.Slice(call.output_cut.offset(peer), call.output_cut.count(peer)));
      };
      const ConstBytes kept = sent(rank_);
      std::copy(kept.begin(), kept.end(), received(rank_).begin());
      return Exchange(sent, received);
    }
    case CollectiveKind::kShift: {
      const int next = (rank_ + 1) % size_;
      const int before = (rank_ + size_ - 1) % size_;
      return Exchange([&](int peer) { return peer == next ? AsBytes(input) : ConstBytes(); },
                      [&](int peer) { return peer == before ? AsBytes(output) : Bytes(); });
    }
    case CollectiveKind::kBroadcast: {
      const bool sends = rank_ == call.root;
      const bool whole = size_ <= 2 || output.size_bytes() <= kDirectBroadcastLimitBytes;
      const auto part_for = [&](int rank) {
        return AsBytes(whole ? output : ShardOf(output, rank));
      };
      CONVENE_RETURN_IF_ERROR(
          Exchange([&](int peer) { return sends ? ConstBytes(part_for(peer)) : ConstBytes(); },
                   [&](int peer) { return peer == call.root ? part_for(rank_) : Bytes(); }));
      // The root gets its own shards again, which changes nothing.
      return whole ? absl::OkStatus() : AllGatherShards(output);
    }
    case CollectiveKind::kBarrier: {
      // The tokens are not on the stack, because a failed message is withdrawn only after this
      // function has returned.
      std::byte* const tokens = ReserveScratch(size_);
      tokens[rank_] = {};
      return Exchange([&](int) { return ConstBytes(tokens + rank_, 1); },
                      [&](int peer) { return Bytes(tokens + peer, 1); });
    }
  }
  CONVENE_CHECK(false);
}

std::string GroupCollective::TextOf(const OpenMessage& message) {
  return absl::StrCat(message.direction == Direction::kOut ? "send to " : "recv from ",
                      message.peer);
}

absl::StatusOr<PendingMessage> GroupCollective::Start(
    Direction direction, ConstElements data, int peer,
    absl::FunctionRef<absl::Status(const MessageTag&)> post) {
  CONVENE_CHECK(peer >= 0 && peer < size_ && peer != rank_);
  CONVENE_CHECK(open_message_count_ < kOpenMessagesMax);
  CONVENE_RETURN_IF_ERROR(Check());
  // The first place is nearly always free: callers wait for messages in about the order in which
  // they start.
  size_t place = messages_started_ % kOpenMessagesMax;
  while (open_messages_[place].id != 0) place = (place + 1) % kOpenMessagesMax;
  OpenMessage& open = open_messages_[place];
  open = {.id = ++messages_started_ * kOpenMessagesMax + place,
          .peer = peer,
          .direction = direction,
          .sequence = ++peers_[peer].of(direction).started,
          .size_bytes = data.size_bytes()};
  ++open_message_count_;
  open.record = recorder_.Start(name_, TextOf(open), open.sequence, data);
  absl::Status status =
      post({.lane = Lane::kPointToPoint, .sequence = open.sequence, .size_bytes = open.size_bytes});
  if (!status.ok()) {
    status = Break(status, TextOf(open), open.sequence, open.size_bytes);
    recorder_.Finish(open.record, status);
    return status;
  }
  return PendingMessage{.id = open.id};
}

absl::StatusOr<PendingMessage> GroupCollective::Send(ConstElements data, int peer, Stream& stream) {
  AwaitAll(stream);
  return Start(Direction::kOut, data, peer,
               [&](const MessageTag& tag) { return wire_->PostSend(peer, tag, data.data); });
}

absl::StatusOr<PendingMessage> GroupCollective::StartRecv(Elements data, int peer, Stream& stream) {
  AwaitAll(stream);
  return Start(Direction::kIn, data, peer,
               [&](const MessageTag& tag) { return wire_->PostReceive(peer, tag, data.data); });
}

absl::Status GroupCollective::Wait(PendingMessage pending, Stream& stream) {
  AwaitAll(stream);
  OpenMessage& open = open_messages_[pending.id % kOpenMessagesMax];
  CONVENE_CHECK(pending.id != 0 && open.id == pending.id);
  const OpScope scope(stream, profiled_as_.c_str(),
                      MessageDetail(open.direction == Direction::kOut, open.size_bytes));
  const OpenMessage message = std::exchange(open, OpenMessage{});
  --open_message_count_;
  CONVENE_RETURN_IF_ERROR(Check());
  limit_ = WaitLimit::From(Clock::Real().Now(), timeout_);
  const WaitScope waits(limit_.since);
  absl::Status status;
  Messages& messages = peers_[message.peer].of(message.direction);
  RecordWait(message.record, message.peer);
  // They complete in order: the ones before this one are then known to be complete too.
  while (status.ok() && messages.complete < message.sequence) {
    status = message.direction == Direction::kOut
                 ? wire_->AwaitSend(message.peer, Lane::kPointToPoint, limit_)
                 : wire_->AwaitReceive(message.peer, Lane::kPointToPoint, limit_);
    if (status.ok()) ++messages.complete;
  }
  if (!status.ok()) status = Break(status, TextOf(message), message.sequence, message.size_bytes);
  recorder_.Finish(message.record, status);
  return status;
}

void GroupCollective::Abort(absl::string_view why) { wire_->Abort(absl::AbortedError(why)); }

}  // namespace convene::worker
