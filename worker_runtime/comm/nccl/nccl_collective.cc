#include "worker_runtime/comm/nccl/nccl_collective.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "tools/base/check.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/device/cuda/queue.h"
#include "worker_runtime/device/op_profile.h"

namespace convene::worker {
namespace {

using cuda::CudaStatus;

ncclDataType_t TypeOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return ncclFloat32;
    case DType::kBFloat16:
      return ncclBfloat16;
    case DType::kFloat64:
      return ncclFloat64;
    case DType::kInt32:
      return ncclInt32;
    case DType::kUInt8:
      return ncclUint8;
    case DType::kE4M3:
    case DType::kE5M2:
      break;
  }
  CONVENE_CHECK(false);
}

ncclRedOp_t OperationOf(ReduceOp op) { return op == ReduceOp::kSum ? ncclSum : ncclMax; }

// Sends and receives as one operation. The group is always ended: an open group would swallow all
// later calls of this thread.
ncclResult_t InOneGroup(absl::FunctionRef<ncclResult_t()> messages) {
  const ncclResult_t started = ncclGroupStart();
  if (started != ncclSuccess) return started;
  const ncclResult_t result = messages();
  const ncclResult_t ended = ncclGroupEnd();
  return result != ncclSuccess ? result : ended;
}

}  // namespace

NcclCollective::NcclCollective(std::shared_ptr<NcclSession> session, std::string name,
                               std::vector<int> members, int rank, const Parts& communicators,
                               absl::Duration timeout)
    : session_(std::move(session)),
      name_(std::move(name)),
      profiled_as_(absl::StrCat(kCommunicationPrefix, name_)),
      members_(std::move(members)),
      rank_(rank),
      timeout_(timeout),
      communicators_(communicators),
      lanes_(members_.size()) {}

absl::StatusOr<std::unique_ptr<NcclCollective>> NcclCollective::Create(
    std::shared_ptr<NcclSession> session, std::string name, std::vector<int> members, int rank,
    const Parts& communicators, absl::Duration timeout) {
  std::unique_ptr<NcclCollective> collective(new NcclCollective(
      std::move(session), std::move(name), std::move(members), rank, communicators, timeout));
  CONVENE_RETURN_IF_ERROR(collective->MakeResources());
  return collective;
}

absl::Status NcclCollective::MakeResources() {
  order_ = session_->MakeOrder(name_, members_);
  const size_t bytes = members_.size() * sizeof(float);
  CONVENE_RETURN_IF_ERROR(
      CudaStatus(cudaMalloc(reinterpret_cast<void**>(&token_), 2 * bytes), "cudaMalloc"));
  CONVENE_RETURN_IF_ERROR(CudaStatus(cudaMemset(token_, 0, 2 * bytes), "cudaMemset"));
  // A memset of device memory is not done when it returns, and other streams do not wait for it.
  CONVENE_RETURN_IF_ERROR(CudaStatus(cudaStreamSynchronize(nullptr), "cudaMemset"));
  CONVENE_RETURN_IF_ERROR(
      CudaStatus(cudaEventCreateWithFlags(&ordering_, cudaEventDisableTiming), "an event"));
  int least = 0;
  int greatest = 0;
  CONVENE_RETURN_IF_ERROR(
      CudaStatus(cudaDeviceGetStreamPriorityRange(&least, &greatest), "stream priorities"));
  for (const auto& [peer, to, from] : communicators_.links) {
    CONVENE_RETURN_IF_ERROR(MakeLane(to, rank_, peer, greatest, lanes_[peer].to));
    CONVENE_RETURN_IF_ERROR(MakeLane(from, peer, rank_, greatest, lanes_[peer].from));
  }
  return absl::OkStatus();
}

absl::Status NcclCollective::MakeLane(int communicator, int from, int to, int priority,
                                      Lane& lane) {
  lane.communicator = communicator;
  lane.order =
      session_->MakeOrder(absl::StrCat(name_, " ", from, ">", to), {members_[from], members_[to]});
  return CudaStatus(cudaStreamCreateWithPriority(&lane.stream, cudaStreamNonBlocking, priority),
                    "a stream");
}

NcclCollective::~NcclCollective() {
  // CUDA keeps objects that are still in use until their work is done, except memory. Only barriers
  // and warm-ups use the token, and they wait for their end.
  for (const OpenMessage& message : open_messages_) {
    if (message.over != nullptr) cudaEventDestroy(message.over);
  }
  for (const LanesOfPeer& lanes : lanes_) {
    for (const Lane& lane : {lanes.to, lanes.from}) {
      if (lane.stream != nullptr) cudaStreamDestroy(lane.stream);
    }
  }
  if (ordering_ != nullptr) cudaEventDestroy(ordering_);
  if (token_ != nullptr) cudaFree(token_);
}

absl::Status NcclCollective::Cuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return absl::OkStatus();
  session_->Fail(Annotate(CudaStatus(error, what), name_));
  return session_->status();
}

ncclResult_t NcclCollective::Queue(const CollectiveCall& call, ncclComm_t communicator,
                                   cudaStream_t stream) const {
  const ConstElements input = call.input;
  const Elements output = call.output;
  const ncclDataType_t type = TypeOf(input.dtype);
  // Of a shard, where shards are of one length.
  const size_t count = call.kind == CollectiveKind::kAllToAllV ? 0 : input.count / size();
  void* const own = output.Slice(rank_ * count, count).data;
  switch (call.kind) {
    case CollectiveKind::kAllReduce:
      return ncclAllReduce(input.data, output.data, input.count, type, OperationOf(call.op),
                           communicator, stream);
    case CollectiveKind::kReduceScatter:
      // In place is what NCCL takes it for when the target is this rank's own shard.
      return ncclReduceScatter(input.data, own, count, type, OperationOf(call.op), communicator,
                               stream);
    case CollectiveKind::kAllGather:
      return ncclAllGather(own, output.data, count, type, communicator, stream);
    case CollectiveKind::kAllToAll:
      return InOneGroup([&] {
        ncclResult_t result = ncclSuccess;
        for (int peer = 0; peer < size() && result == ncclSuccess; ++peer) {
          result = ncclSend(input.Slice(peer * count, count).data, count, type, peer, communicator,
                            stream);
          if (result != ncclSuccess) break;
          result = ncclRecv(output.Slice(peer * count, count).data, count, type, peer, communicator,
                            stream);
        }
        return result;
      });
    case CollectiveKind::kAllToAllV:
      return InOneGroup([&] {
        ncclResult_t result = ncclSuccess;
        for (int peer = 0; peer < size() && result == ncclSuccess; ++peer) {
          const RowCut& to = call.input_cut;
          const RowCut& from = call.output_cut;
          if (to.count(peer) > 0) {
            result = ncclSend(input.Slice(to.offset(peer), to.count(peer)).data, to.count(peer),
                              type, peer, communicator, stream);
          }
          if (result != ncclSuccess) break;
          if (from.count(peer) > 0) {
            result = ncclRecv(output.Slice(from.offset(peer), from.count(peer)).data,
                              from.count(peer), type, peer, communicator, stream);
          }
        }
        return result;
      });
    case CollectiveKind::kShift:
      return InOneGroup([&] {
        const ncclResult_t sent =
            ncclSend(input.data, input.count, type, (rank_ + 1) % size(), communicator, stream);
        if (sent != ncclSuccess) return sent;
        return ncclRecv(output.data, output.count, type, (rank_ + size() - 1) % size(),
                        communicator, stream);
      });
    case CollectiveKind::kBroadcast:
      return ncclBroadcast(input.data, output.data, input.count, type, call.root, communicator,
                           stream);
    case CollectiveKind::kBarrier:
      break;  // Meet's all-reduce
  }
  CONVENE_CHECK(false);
}

absl::Status NcclCollective::Start(absl::string_view operation, const CollectiveCall& call,
                                   Stream& stream) {
  const OpScope scope(stream, profiled_as_.c_str(), DetailOf(call, size()));
  const cudaStream_t queue = stream.queue().stream();
  return session_->Start({.communicator = communicators_.collectives,
                          .order = order_,
                          .group = name_,
                          .operation = operation,
                          .counted_as = operation,
                          .data = call.input,
                          .stream = queue},
                         [&](ncclComm_t communicator) { return Queue(call, communicator, queue); });
}

absl::Status NcclCollective::Call(const CollectiveCall& call, Stream& stream) {
  const char* const operation = CollectiveName(call.kind);
  if (call.kind != CollectiveKind::kBarrier) return Start(operation, call, stream);
  return Meet(operation, stream, Clock::Real().Now() + timeout_);
}

absl::Status NcclCollective::Meet(absl::string_view operation, Stream& stream,
                                  MonotonicTime deadline) {
  const Elements token(token_, 1, DType::kFloat32);
  CONVENE_RETURN_IF_ERROR(Start(operation, {CollectiveKind::kAllReduce, token, token}, stream));
  return session_->Await(order_, deadline);
}

absl::Status NcclCollective::WarmUp(bool exchanges, Stream& stream, MonotonicTime deadline) {
  CONVENE_RETURN_IF_ERROR(Meet("warm up", stream, deadline));
  if (exchanges) {
    const Elements sent(token_, members_.size(), DType::kFloat32);
    const Elements arrived(token_ + members_.size(), members_.size(), DType::kFloat32);
    CONVENE_RETURN_IF_ERROR(Start("warm up", {CollectiveKind::kAllToAll, sent, arrived}, stream));
    CONVENE_RETURN_IF_ERROR(session_->Await(order_, deadline));
  }
  const Elements token(token_, 1, DType::kFloat32);
  for (const Link& link : communicators_.links) {
    // The lower rank sends first, so that each message finds its other end.
    for (const bool is_up : {true, false}) {
      const bool sends = is_up == (rank_ < link.peer);
      CONVENE_ASSIGN_OR_RETURN(
          const PendingMessage message,
          sends ? Send(token, link.peer, stream) : StartRecv(token, link.peer, stream));
      CONVENE_RETURN_IF_ERROR(Wait(message, stream));
      const LanesOfPeer& lanes = lanes_[link.peer];
      CONVENE_RETURN_IF_ERROR(session_->Await(sends ? lanes.to.order : lanes.from.order, deadline));
    }
  }
  return absl::OkStatus();
}

absl::Status NcclCollective::CheckPeer(int peer) const {
  CONVENE_CHECK(peer >= 0 && peer < size() && peer != rank_);
  if (lanes_[peer].to.communicator >= 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(name_, ": rank ", rank_, " has no lanes for messages with rank ", peer));
}

absl::Status NcclCollective::OrderBehind(cudaStream_t stream, const Lane& lane) {
  CONVENE_RETURN_IF_ERROR(Cuda(cudaEventRecord(ordering_, stream), "message"));
  return Cuda(cudaStreamWaitEvent(lane.stream, ordering_, 0), "message");
}

absl::StatusOr<PendingMessage> NcclCollective::StartMessage(
    bool is_out, int peer, ConstElements data, Stream& stream,
    absl::FunctionRef<ncclResult_t(ncclComm_t)> queue) {
  const Lane& lane = is_out ? lanes_[peer].to : lanes_[peer].from;
  CONVENE_CHECK(open_message_count_ < kOpenMessagesMax);
  CONVENE_RETURN_IF_ERROR(OrderBehind(stream.queue().stream(), lane));
  CONVENE_RETURN_IF_ERROR(
      session_->Start({.communicator = lane.communicator,
                       .order = lane.order,
                       .group = name_,
                       .operation = absl::StrCat(is_out ? "send to " : "recv from ", peer),
                       .counted_as = "message",
                       .data = data,
                       .stream = lane.stream},
                      queue));
  // The first place is nearly always free: callers wait for messages in about the order in which
  // they start.
  size_t place = messages_started_ % kOpenMessagesMax;
  while (open_messages_[place].id != 0) place = (place + 1) % kOpenMessagesMax;
  OpenMessage& open = open_messages_[place];
  if (open.over == nullptr) {
    CONVENE_RETURN_IF_ERROR(
        Cuda(cudaEventCreateWithFlags(&open.over, cudaEventDisableTiming), "message"));
  }
  CONVENE_RETURN_IF_ERROR(Cuda(cudaEventRecord(open.over, lane.stream), "message"));
  open.id = ++messages_started_ * kOpenMessagesMax + place;
  open.detail = MessageDetail(is_out, data.size_bytes());
  ++open_message_count_;
  return PendingMessage{.id = open.id};
}

absl::StatusOr<PendingMessage> NcclCollective::Send(ConstElements data, int peer, Stream& stream) {
  CONVENE_RETURN_IF_ERROR(CheckPeer(peer));
  return StartMessage(/*is_out=*/true, peer, data, stream, [&](ncclComm_t communicator) {
    return ncclSend(data.data, data.count, TypeOf(data.dtype), /*peer=*/1, communicator,
                    lanes_[peer].to.stream);
  });
}

absl::StatusOr<PendingMessage> NcclCollective::StartRecv(Elements data, int peer, Stream& stream) {
  CONVENE_RETURN_IF_ERROR(CheckPeer(peer));
  return StartMessage(/*is_out=*/false, peer, data, stream, [&](ncclComm_t communicator) {
    return ncclRecv(data.data, data.count, TypeOf(data.dtype), /*peer=*/0, communicator,
                    lanes_[peer].from.stream);
  });
}

absl::Status NcclCollective::Wait(PendingMessage pending, Stream& stream) {
  OpenMessage& open = open_messages_[pending.id % kOpenMessagesMax];
  CONVENE_CHECK(pending.id != 0 && open.id == pending.id);
  const OpScope scope(stream, profiled_as_.c_str(), open.detail);
  open.id = 0;
  --open_message_count_;
  CONVENE_RETURN_IF_ERROR(session_->status());
  return Cuda(cudaStreamWaitEvent(stream.queue().stream(), open.over, 0), "message");
}

void NcclCollective::Abort(absl::string_view why) { session_->Fail(absl::AbortedError(why)); }

}  // namespace convene::worker
