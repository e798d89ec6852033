#include "worker_runtime/device/emulated/nccl_meeting.h"

#include <cmath>
#include <cstring>

#include "worker_runtime/device/emulated/include/cuda_bf16.h"

namespace convene::emulated {
namespace {

template <typename T>
T Combine(T a, T b, ncclRedOp_t op) {
  return static_cast<T>(op == ncclSum ? a + b : std::fmax(a, b));
}
template <>
__nv_bfloat16 Combine(__nv_bfloat16 a, __nv_bfloat16 b, ncclRedOp_t op) {
  return __float2bfloat16_rn(Combine(__bfloat162float(a), __bfloat162float(b), op));
}

// As NCCL's rings add: in a circle, which begins at another rank for each rank's shard. Where a
// group's ring begins depends on its GPUs: groups of other ranks may add up the same values in
// another order.
template <typename T>
void Reduce(const Meeting& meeting) {
  const size_t ranks = meeting.ends.size();
  const bool scatters = meeting.task.deed == Deed::kReduceScatter;
  const size_t count = meeting.task.count * (scatters ? ranks : 1);
  const size_t shard = scatters ? meeting.task.count : (count + ranks - 1) / ranks;
  std::vector<T> sums(count);
  for (size_t i = 0; i < count; ++i) {
    const auto value = [&](size_t hop) {
      return static_cast<const T*>(
          meeting.ends[(meeting.first_gpu + i / shard + hop) % ranks].from)[i];
    };
    sums[i] = value(1);
    for (size_t hop = 2; hop <= ranks; ++hop) {
      sums[i] = Combine(sums[i], value(hop), meeting.task.op);
    }
  }
  for (size_t rank = 0; rank < ranks; ++rank) {
    std::memcpy(meeting.ends[rank].to, sums.data() + (scatters ? rank * shard : 0),
                BytesOf(meeting.task));
  }
}

void ReduceByType(const Meeting& meeting) {
  switch (meeting.task.type) {
    case ncclFloat32:
      return Reduce<float>(meeting);
    case ncclFloat64:
      return Reduce<double>(meeting);
    case ncclInt32:
      return Reduce<int32_t>(meeting);
    case ncclUint8:
      return Reduce<uint8_t>(meeting);
    case ncclBfloat16:
      return Reduce<__nv_bfloat16>(meeting);
  }
}

void Gather(const Meeting& meeting) {
  const size_t bytes = BytesOf(meeting.task);
  std::vector<char> all(bytes * meeting.ends.size());
  for (size_t rank = 0; rank < meeting.ends.size(); ++rank) {
    std::memcpy(all.data() + rank * bytes, meeting.ends[rank].from, bytes);
  }
  for (const Meeting::End& end : meeting.ends) std::memcpy(end.to, all.data(), all.size());
}

void DoWork(const Meeting& meeting) {
  const size_t bytes = BytesOf(meeting.task);
  if (bytes == 0) return;
  switch (meeting.task.deed) {
    case Deed::kAllReduce:
    case Deed::kReduceScatter:
      return ReduceByType(meeting);
    case Deed::kAllGather:
      return Gather(meeting);
    case Deed::kBroadcast:
      for (const Meeting::End& end : meeting.ends) {
        std::memmove(end.to, meeting.ends[meeting.task.root].from, bytes);
      }
      return;
    case Deed::kMessage:
      std::memcpy(meeting.ends[1].to, meeting.ends[0].from, bytes);
      return;
  }
}

bool HasLeft(const MeetingKernel& kernel) { return *kernel.is_aborted && kernel.hears_aborts; }

// Does the work once all ends are there.
void Try(Meeting& meeting) {
  for (size_t i = 0; i < meeting.ends.size(); ++i) {
    const std::shared_ptr<MeetingKernel> kernel = meeting.ends[i].kernel;
    if (kernel == nullptr || HasLeft(*kernel)) return;
    if (!RunUntil(kernel->stream, kernel->is_there)) return;
    if (meeting.is_done) return;  // by that stream
  }
  Observe(&meeting.clock);
  DoWork(meeting);
  meeting.is_done = true;
  meeting.ends.clear();
  Publish(&meeting.clock);
  TheState().changed.SignalAll();
}

}  // namespace

size_t BytesOf(const Task& task) {
  switch (task.type) {
    case ncclFloat32:
      return task.count * sizeof(float);
    case ncclFloat64:
      return task.count * sizeof(double);
    case ncclInt32:
      return task.count * sizeof(int32_t);
    case ncclUint8:
      return task.count;
    case ncclBfloat16:
      return task.count * sizeof(__nv_bfloat16);
  }
  return 0;
}

bool Meet(MeetingKernel& kernel) {
  if (HasLeft(kernel)) {
    kernel.meetings.clear();
    return true;
  }
  if (!kernel.is_there) {
    for (const auto& meeting : kernel.meetings) Publish(&meeting->clock);
    kernel.is_there = true;
    TheState().changed.SignalAll();
  }
  bool are_all_done = true;
  for (const auto& meeting : kernel.meetings) {
    if (!meeting->is_done) Try(*meeting);
    if (meeting->is_done) Observe(&meeting->clock);
    are_all_done = are_all_done && meeting->is_done;
  }
  return are_all_done;
}

}  // namespace convene::emulated
