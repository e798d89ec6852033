// Where the operations of several ranks meet: what each end brings, and what all of them leave.
#pragma once

#include <nccl.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "worker_runtime/device/emulated/state.h"

namespace convene::emulated {

enum class Deed { kAllReduce, kReduceScatter, kAllGather, kBroadcast, kMessage };

// The ends of a meeting have the same.
struct Task {
  Deed deed = {};
  size_t count = 0;  // of kReduceScatter and kAllGather: of one rank's shard
  ncclDataType_t type = ncclFloat32;
  ncclRedOp_t op = ncclSum;
  int root = 0;

  friend bool operator==(const Task&, const Task&) = default;
};
size_t BytesOf(const Task& task);

struct MeetingKernel;

// A collective, whose ends are the ranks, or a message: its sender, then its receiver.
struct Meeting {
  struct End {
    std::shared_ptr<MeetingKernel> kernel;  // null: not queued yet
    const void* from = nullptr;
    void* to = nullptr;
  };
  Task task;
  std::vector<End> ends;
  int first_gpu = 0;  // of the communicator's rank 0
  bool is_done = false;
  char clock = 0;  // Published by each end, then by the end that did the work
};

// One operation in a stream: one collective, or the messages of a group. As on a GPU it lasts until
// every other end is there too: nothing is buffered.
struct MeetingKernel {
  cudaStream_t stream = nullptr;
  std::shared_ptr<const bool> is_aborted;
  std::vector<std::shared_ptr<Meeting>> meetings;
  bool is_there = false;     // The stream has come to it.
  bool hears_aborts = true;  // An abort waits for one that does not.
};

// An operation's `meet`. The thread that waits for a meeting runs the other ranks' streams up to
// it, so that a rank goes on while the other ranks' hosts do something else, as on GPUs.
bool Meet(MeetingKernel& kernel);

}  // namespace convene::emulated
