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
// lasts until its receiver takes it, never holds up the caller's arithmetic: each ordered pair of
// ranks that exchange messages has a lane, a communicator of these two ranks with a stream of
// highest priority on each. A Send and a StartRecv begin after all work that the caller's stream
// holds by then, and later work in the caller's stream begins after the Wait.
//
// Why messages never wait in a circle. In a lane the messages of one ordered pair of ranks run one
// after the other, in the order in which both ends call for them. So one end of a message waits for
// the messages before it in its lane, for what the caller's stream held at the call, and for the
// other end; it waits for no message of another lane. By these rules schedule/lower.h plans, and
// shows that everything waits only for what is earlier in the order of Simulate. In each lane at
// most one kernel waits, and all lanes of a rank find room at once (limits.h), so the GPU adds no
// wait. lanes_test plays every schedule through. It shows too that fewer lanes do not do: with one
// lane for all messages to higher ranks and one for those to lower ranks, a receive can stand
// behind a send that its receiver has not come to, and schedules with several chunks a rank stand
// still.
//
// Beyond Collective: kMax may lose a NaN (NCCL's maximum is fmax). Communicators of a rank share
// their fate (NcclSession). An operation that a CUDA graph captures is not watched; capture with
// cudaStreamCaptureModeThreadLocal or Relaxed, because NCCL queues from a thread of its own.
class NcclCollective final : public Collective {
 public:
  // The lanes to and from one other rank of the group: their communicators. In each the sender is
  // rank 0, the receiver rank 1.
  struct Link {
    int peer = -1;
    int to = -1;
    int from = -1;
  };
  // Communicators, by their numbers in the session.
  struct Parts {
    int collectives = -1;
    // In an order in which both ends of each link can warm it up, one link after the other.
    std::vector<Link> links;
  };

  // `members`: the group's global ranks; `rank`: this one's place among them. The session's device
  // is current.
  static absl::StatusOr<std::unique_ptr<NcclCollective>> Create(
      std::shared_ptr<NcclSession> session, std::string name, std::vector<int> members, int rank,
      const Parts& communicators, absl::Duration timeout);
  ~NcclCollective() override;

  // Runs a small all-reduce, a message in each lane and, where the ranks exchange data pair by pair
  // (`exchanges`: all-to-alls, shifts), an all-to-all, and waits for them: all ranks of the group,
  // before StartWatchdog. NCCL connects what the training uses besides at the first operation that
  // takes it (README, "First connections"). Errors: the session's.
  absl::Status WarmUp(bool exchanges, Stream& stream, MonotonicTime deadline);

  const std::shared_ptr<NcclSession>& session() const { return session_; }

  const std::string& name() const override { return name_; }
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }

  absl::Status Call(const CollectiveCall& call, Stream& stream) override;
  // Send and StartRecv: FailedPrecondition for a peer to which there is no link.
  absl::StatusOr<PendingMessage> Send(ConstElements data, int peer, Stream& stream) override;
  absl::StatusOr<PendingMessage> StartRecv(Elements data, int peer, Stream& stream) override;
  absl::Status Wait(PendingMessage pending, Stream& stream) override;
  absl::Status Check() override { return session_->status(); }
  void Abort(absl::string_view why) override;

 private:
  static constexpr size_t kOpenMessagesMax = 1024;

  // One end of it. The other end counts alike in its order.
  struct Lane {
    int communicator = -1;
    int order = -1;  // of the session
    cudaStream_t stream = nullptr;
  };
  struct OpenMessage {
    uint64_t id = 0;  // 0 = free
    cudaEvent_t over = nullptr;
    OpDetail detail;
  };
  struct LanesOfPeer {
    Lane to;
    Lane from;
  };

  NcclCollective(std::shared_ptr<NcclSession> session, std::string name, std::vector<int> members,
                 int rank, const Parts& communicators, absl::Duration timeout);
  absl::Status MakeResources();
  // `from`, `to`: ranks of the group.
  absl::Status MakeLane(int communicator, int from, int to, int priority, Lane& lane);

  absl::Status Start(absl::string_view operation, const CollectiveCall& call, Stream& stream);
  ncclResult_t Queue(const CollectiveCall& call, ncclComm_t communicator,
                     cudaStream_t stream) const;
  // An all-reduce of the token.
  absl::Status Meet(absl::string_view operation, Stream& stream, MonotonicTime deadline);
  absl::Status CheckPeer(int peer) const;
  // Queues one end of a message in its lane, behind all that `stream` holds.
  absl::StatusOr<PendingMessage> StartMessage(bool is_out, int peer, ConstElements data,
                                              Stream& stream,
                                              absl::FunctionRef<ncclResult_t(ncclComm_t)> queue);
  // The lane's next operation begins after all that `stream` holds.
  absl::Status OrderBehind(cudaStream_t stream, const Lane& lane);
  // Ends the session on an error of CUDA.
  absl::Status Cuda(cudaError_t error, const char* what);
  const std::shared_ptr<NcclSession> session_;
  const std::string name_;
  const std::string profiled_as_;
  const std::vector<int> members_;
  const int rank_;
  const absl::Duration timeout_;
  const Parts communicators_;
  int order_ = -1;
  std::vector<LanesOfPeer> lanes_;  // by rank of the group
  float* token_ = nullptr;          // one element for barriers; two for each rank, to warm up
  cudaEvent_t ordering_ = nullptr;  // recorded and waited for within one call
  std::array<OpenMessage, kOpenMessagesMax> open_messages_;
  size_t open_message_count_ = 0;
  uint64_t messages_started_ = 0;
};

}  // namespace convene::worker
