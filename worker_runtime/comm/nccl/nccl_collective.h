// Collective over NCCL: data in the memory of one GPU, operations queued in its streams.
#pragma once

#include <cuda_runtime.h>
#include <nccl.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "tools/base/clock.h"
#include "worker_runtime/comm/collective.h"
#include "worker_runtime/comm/nccl/session.h"
#include "worker_runtime/device/elements.h"
#include "worker_runtime/device/stream.h"

namespace convene::worker {

// Collectives run in the caller's stream. Messages run beside it, so that a Send, which on a GPU
// lasts until its receiver takes it, never holds up the caller's arithmetic: one communicator and
// one stream of highest priority for messages to higher ranks ("up") and one for those to lower
// ranks ("down"). A Send and a StartRecv begin after all work that the caller's stream holds by
// then, and later work in the caller's stream begins after the Wait.
//
// Why messages never wait in a circle. Within a communicator operations run one after the other, in
// the order of the calls, so a receive may wait behind a send that its receiver has not taken yet.
// GPUs add only this wait to the waits that the schedule has on a CPU. Let stage s do its receive
// of activation m+1 behind its send of activation m. That send waits until stage s+1 has come to
// its receive of m. In one-forward-one-backward stage s, with w warm-up microbatches, has run the
// backward of m-w before it receives m+1 (m+1 > w), for which it needed the gradient m-w of stage
// s+1; and stage s+1, with w-1 warm-up microbatches, receives m right behind that same backward. So
// the new wait is for an event that stage s has already waited for. During warm-up (m+1 <= w) stage
// s+1 has only forwards before its receive of m, which wait for smaller microbatches alone.
// Gradients are the mirror image, with cool-down for warm-up. Sends up never wait behind sends
// down: they are on different communicators. lanes_test plays it, and GPipe, through. A schedule in
// which activations also go from the last stage to the first (interleaved) stands still there, and
// needs a communicator per pair of ranks.
//
// Beyond Collective: kMax may lose a NaN (NCCL's maximum is fmax). Communicators of a rank share
// their fate (NcclSession). An operation that a CUDA graph captures is not watched; capture with
// cudaStreamCaptureModeThreadLocal or Relaxed, because NCCL queues from a thread of its own.
class NcclCollective final : public Collective {
 public:
  // Communicators and orders, by their numbers in the session.
  struct Parts {
    int collectives = -1;
    // Communicators for messages, where messages are allowed; else -1.
    int up = -1;
    int down = -1;
  };

  // `members`: the group's global ranks; `rank`: this one's place among them. The session's device
  // is current.
  static absl::StatusOr<std::unique_ptr<NcclCollective>> Create(
      std::shared_ptr<NcclSession> session, std::string name, std::vector<int> members, int rank,
      const Parts& communicators, absl::Duration timeout);
  ~NcclCollective() override;

  // Runs one operation over each connection that the training will use, and waits for it: all ranks
  // of the group, before StartWatchdog. Errors: the session's.
  absl::Status WarmUp(Stream& stream, MonotonicTime deadline);

  const std::shared_ptr<NcclSession>& session() const { return session_; }

  const std::string& name() const override { return name_; }
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }

  absl::Status AllReduce(Elements data, ReduceOp op, Stream& stream) override;
  absl::Status ReduceScatter(Elements data, ReduceOp op, Stream& stream) override;
  absl::Status AllGather(Elements data, Stream& stream) override;
  absl::Status AllToAll(ConstElements input, Elements output, Stream& stream) override;
  absl::Status Shift(ConstElements input, Elements output, Stream& stream) override;
  absl::Status Broadcast(Elements data, int root, Stream& stream) override;
  // Send and StartRecv: FailedPrecondition in a group made without `up` and `down`.
  absl::StatusOr<PendingMessage> Send(ConstElements data, int peer, Stream& stream) override;
  absl::StatusOr<PendingMessage> StartRecv(Elements data, int peer, Stream& stream) override;
  absl::Status Wait(PendingMessage pending, Stream& stream) override;
  absl::Status Barrier(Stream& stream) override;
  absl::Status Check() override { return session_->status(); }
  void Abort(absl::string_view why) override;

 private:
  static constexpr size_t kOpenMessagesMax = 1024;

  // Messages in one direction.
  struct Lane {
    int communicator = -1;
    cudaStream_t stream = nullptr;
  };
  struct OpenMessage {
    uint64_t id = 0;  // 0 = free
    cudaEvent_t over = nullptr;
  };
  // Messages to and from one peer, counted like at the other end.
  struct Peer {
    int sends = -1;  // orders of the session
    int receives = -1;
  };

  NcclCollective(std::shared_ptr<NcclSession> session, std::string name, std::vector<int> members,
                 int rank, const Parts& communicators, absl::Duration timeout);
  absl::Status MakeResources();

  absl::Status RunCollective(absl::string_view operation, ConstElements data, Stream& stream,
                             absl::FunctionRef<ncclResult_t(ncclComm_t)> queue);
  absl::Status AllReduceOne(Stream& stream, absl::string_view operation);
  absl::Status CheckPeer(int peer) const;
  // Queues one end of a message in its lane, behind all that `stream` holds.
  absl::StatusOr<PendingMessage> StartMessage(absl::string_view operation, const Lane& lane,
                                              int order, ConstElements data, Stream& stream,
                                              absl::FunctionRef<ncclResult_t(ncclComm_t)> queue);
  // The lane's next operation begins after all that `stream` holds.
  absl::Status OrderBehind(cudaStream_t stream, const Lane& lane);
  // Ends the session on an error of CUDA.
  absl::Status Cuda(cudaError_t error, const char* what);
  // The lane of messages from rank `from` to rank `to`.
  Lane& LaneOf(int from, int to) { return to > from ? up_ : down_; }

  const std::shared_ptr<NcclSession> session_;
  const std::string name_;
  const std::string profiled_as_;
  const std::vector<int> members_;
  const int rank_;
  const absl::Duration timeout_;
  const int communicator_;
  int order_ = -1;
  Lane up_;
  Lane down_;
  std::vector<Peer> peers_;
  float* token_ = nullptr;          // one element, for barriers
  cudaEvent_t ordering_ = nullptr;  // recorded and waited for within one call
  std::array<OpenMessage, kOpenMessagesMax> open_messages_;
  size_t open_message_count_ = 0;
  uint64_t messages_started_ = 0;
};

}  // namespace convene::worker
