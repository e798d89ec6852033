// Collective over any Wire: every algorithm of this folder, once.
//
// All of them are direct: each rank talks to each other rank of the group, so that every rank that
// needs a dead or silent rank notices that itself, and names it. Reductions add in rank order, in
// whatever order messages arrive.
//
//   all_reduce, small   everyone sends all of it to everyone; each adds up         1 round
//   all_reduce, large   reduce_scatter, then all_gather                           2 rounds
//   reduce_scatter      shard j goes to rank j, which adds up what came            1 round
//   all_gather, all_to_all, shift, barrier                                         1 round
//   broadcast           small: root to everyone; large: scatter, then all_gather   1 or 2 rounds
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "tools/base/mutex.h"
#include "worker_runtime/comm/collective.h"
#include "worker_runtime/comm/flight_recorder.h"
#include "worker_runtime/comm/rank_wires.h"
#include "worker_runtime/comm/wire.h"
#include "worker_runtime/device/elements.h"
#include "worker_runtime/device/stream.h"

namespace convene::worker {

class GroupCollective final : public Collective {
 public:
  // `timeout` bounds each call as a whole. `recorder` outlives this object. Data between two ranks
  // travels in messages of up to `message_bytes_max`, the same on all ranks (a wire
  // carries less than 4 GiB at once, and a shard of a large model is more). `rank_wires`: those of
  // the rank's other groups; once a call of one of them has passed its time, the others wait no
  // more. `is_beside_training`: see FlightRecorder::Awaits.
  GroupCollective(std::string name, std::unique_ptr<Wire> wire, absl::Duration timeout,
                  FlightRecorder& recorder, size_t message_bytes_max = size_t{1} << 30,
                  std::shared_ptr<RankWires> rank_wires = std::make_shared<RankWires>(),
                  bool is_beside_training = false);
  ~GroupCollective() override;

  const std::string& name() const override { return name_; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }

  absl::Status Call(const CollectiveCall& call, Stream& stream) override;
  absl::StatusOr<PendingMessage> Send(ConstElements data, int peer, Stream& stream) override;
  absl::StatusOr<PendingMessage> StartRecv(Elements data, int peer, Stream& stream) override;
  absl::Status Wait(PendingMessage pending, Stream& stream) override;
  absl::Status Check() override;
  void Abort(absl::string_view why) override;

 private:
  static constexpr size_t kOpenMessagesMax = 1024;

  enum class Direction { kOut, kIn };
  // A message that nobody has waited for yet.
  struct OpenMessage {
    uint64_t id = 0;  // 0 = free
    int peer = 0;
    Direction direction = Direction::kOut;
    uint32_t sequence = 0;
    uint64_t record = 0;
    size_t size_bytes = 0;
  };
  // Messages of one peer in one direction.
  struct Messages {
    uint32_t started = 0;
    uint32_t complete = 0;
  };
  struct PeerState {
    Messages out, in;

    Messages& of(Direction direction) { return direction == Direction::kOut ? out : in; }
  };
  struct alignas(64) CacheLine {
    std::byte bytes[64];
  };
  using Bytes = absl::Span<std::byte>;
  using ConstBytes = absl::Span<const std::byte>;

  // Refuses when broken, records, and makes an error sticky.
  absl::Status Run(const CollectiveCall& call);
  absl::Status Perform(const CollectiveCall& call);
  // Records that the operation waits for this peer.
  void RecordWait(uint64_t record, int peer);
  // Annotates `status` with its place, remembers it and gives up all open messages.
  absl::Status Break(const absl::Status& status, absl::string_view operation, uint64_t sequence,
                     size_t size_bytes);

  // "send to 1".
  static std::string TextOf(const OpenMessage& message);
  absl::StatusOr<PendingMessage> Start(Direction direction, ConstElements data, int peer,
                                       absl::FunctionRef<absl::Status(const MessageTag&)> post);

  // One round in the collective lane: sends the span that `outgoing` names to each peer, and fills
  // the span that `incoming` names from each peer. An empty span is no message; then the other
  // end's must be empty too.
  absl::Status Exchange(absl::FunctionRef<ConstBytes(int)> outgoing,
                        absl::FunctionRef<Bytes(int)> incoming);

  // Memory that grows to the largest request and stays: no allocation in a steady state. Content is
  // lost when it grows.
  std::byte* ReserveScratch(size_t size_bytes);

  absl::Status AllReduceByGathering(Elements data, ReduceOp op);
  // Shard i of `data` is [i n / size, (i + 1) n / size).
  template <typename Void>
  BasicElements<Void> ShardOf(BasicElements<Void> data, int shard) const;
  absl::Status ReduceScatterShards(Elements data, ReduceOp op);
  absl::Status AllGatherShards(Elements data);

  const std::string name_;
  const std::string profiled_as_;
  const std::shared_ptr<RankWires> rank_wires_;
  const std::unique_ptr<Wire> wire_;
  const int rank_;
  const int size_;
  const absl::Duration timeout_;
  FlightRecorder& recorder_;
  const size_t message_bytes_max_;
  const bool is_beside_training_;

  Mutex mutex_;
  absl::Status broken_ ABSL_GUARDED_BY(mutex_);  // the first error; OK while usable
  int queued_ ABSL_GUARDED_BY(mutex_) = 0;       // calls in queues that have not ended
  CondVar call_ended_;

  // Used by the thread that runs a call: the caller's, or one of a queue.
  uint64_t collectives_started_ = 0;
  uint32_t rounds_started_ = 0;
  WaitLimit limit_;      // of the running call
  uint64_t record_ = 0;  // the recorder's, of the running collective
  std::vector<CacheLine> scratch_;
  std::vector<PeerState> peers_;
  std::array<OpenMessage, kOpenMessagesMax> open_messages_;
  size_t open_message_count_ = 0;
  uint64_t messages_started_ = 0;
};

}  // namespace convene::worker
