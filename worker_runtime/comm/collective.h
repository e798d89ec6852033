// The only interface for communication between workers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tools/base/check.h"
#include "worker_runtime/device/elements.h"
#include "worker_runtime/device/op_profile.h"
#include "worker_runtime/device/stream.h"

namespace convene::worker {

enum class ReduceOp { kSum, kMax };

enum class CollectiveKind {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kAllToAll,
  kAllToAllV,
  kShift,
  kBroadcast,
  kBarrier
};

// "all_reduce".
constexpr const char* CollectiveName(CollectiveKind kind) {
  constexpr const char* kNames[] = {"all_reduce",   "reduce_scatter", "all_gather", "all_to_all",
                                    "all_to_all_v", "shift",          "broadcast",  "barrier"};
  return kNames[static_cast<size_t>(kind)];
}

// The same of messages.
inline constexpr char kSend[] = "send";
inline constexpr char kReceive[] = "recv";

// The least that a rank of `ranks` has to move, of a collective's bytes: nccl-tests' factor of the
// bus bandwidth (doc/PERFORMANCE.md there). `operation`: CollectiveName's.
constexpr double BusFactor(absl::string_view operation, int ranks) {
  const double others = static_cast<double>(ranks - 1) / ranks;
  if (operation == "all_reduce") return 2 * others;
  const bool is_cut = operation == "reduce_scatter" || operation == "all_gather" ||
                      operation == "all_to_all" || operation == "all_to_all_v";
  return is_cut ? others : 1;
}

// The cut of rows into a piece for each rank: piece i is rows [begin[i], begin[i + 1]).
struct RowCut {
  const int32_t* begin = nullptr;  // (ranks + 1), in host memory
  int64_t columns = 0;             // elements of a row

  int64_t offset(int rank) const { return begin[rank] * columns; }
  int64_t count(int rank) const { return (begin[rank + 1] - begin[rank]) * columns; }
};

// One collective, as a value.
struct CollectiveCall {
  CollectiveKind kind;
  ConstElements input;  // in place: the same as `output`, of which a barrier has neither
  Elements output;
  ReduceOp op = ReduceOp::kSum;  // of the reductions
  int root = 0;                  // of a broadcast
  RowCut input_cut, output_cut;  // of kAllToAllV
};

// The detail of a call over `ranks` ranks, for profiles.
inline OpDetail DetailOf(const CollectiveCall& call, int ranks) {
  return {.operation = CollectiveName(call.kind),
          .bytes = static_cast<int64_t>(call.input.size_bytes()),
          .ranks = ranks};
}

// The same of a message, whose op is the stream's wait for it.
inline OpDetail MessageDetail(bool is_out, size_t size_bytes) {
  return {.operation = is_out ? kSend : kReceive,
          .bytes = static_cast<int64_t>(size_bytes),
          .ranks = 2};
}

// A message that has been started; see Collective::Wait.
struct PendingMessage {
  uint64_t id = 0;
};

// One communicator: a fixed, ordered group of ranks, 0 .. size()-1 within the group.
//
// Every rank of a group calls the same collectives in the same order with the same counts (but for
// AllToAllV's). One
// thread at a time per communicator; different communicators may be used by different threads. A
// group of one is legal: every call succeeds at once.
//
// Data lies in the memory of the stream's device. A call whose stream is the calling thread returns
// when it is done. Where the stream is a queue (on a GPU, and on the CPU with a thread of its own)
// the call is queued: it begins after earlier work in `stream`, and later work there begins after
// it; the data stays in place until then. The host does not wait, and an error of a peer shows at a
// later call and at Check(): after a wait for the queue (Device::Order, Wait, Synchronize), ask
// Check() before using the result. Calls of one communicator in several streams are ordered by
// events. A timeout counts from the moment at which the call runs. On the CPU a message's call
// waits for the queue, and is then made on the calling thread.
//
// Reductions are deterministic: the result depends on the values, the group size and the count
// alone and is the same bits on every rank of the group. Over Gloo and loopback sums are made in
// rank order, fp32, fp64 and whole numbers in their own type, bf16 in fp32 and rounded once; NCCL
// has its own order.
//
// Errors of every call: DeadlineExceeded when peers did not answer within the timeout given at
// creation, here or in another communicator of the rank, of the same transport; Unavailable when a
// peer's connection broke; Aborted after Abort(). The text names the group ("dp"), the operation,
// its sequence number and the peer where known. After an error the communicator is broken: every
// later call returns the same error.
class Collective {
 public:
  // On the CPU: aborts what is still queued and waits for its end.
  virtual ~Collective() = default;

  // "dp", "tp", "pp", ...: for messages and the flight recorder.
  virtual const std::string& name() const = 0;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Adds up in place.
  absl::Status AllReduce(Elements data, ReduceOp op, Stream& stream) {
    return Call({CollectiveKind::kAllReduce, data, data, op}, stream);
  }

  // `data` holds size() shards of equal length; afterwards the shard number rank() holds the sum
  // over ranks, the rest is unspecified. REQUIRES: data.count is divisible by size().
  absl::Status ReduceScatter(Elements data, ReduceOp op, Stream& stream) {
    CONVENE_CHECK(data.count % size() == 0);
    return Call({CollectiveKind::kReduceScatter, data, data, op}, stream);
  }

  // `data` holds size() shards of equal length; this rank's is in place (number rank()); afterwards
  // all are. REQUIRES: data.count is divisible by size().
  absl::Status AllGather(Elements data, Stream& stream) {
    CONVENE_CHECK(data.count % size() == 0);
    return Call({CollectiveKind::kAllGather, data, data}, stream);
  }

  // Shard i of `input` goes to rank i; shard i of `output` comes from rank i. The spans do not
  // overlap and are of one type and length.
  absl::Status AllToAll(ConstElements input, Elements output, Stream& stream) {
    CONVENE_CHECK(input.count == output.count && input.count % size() == 0);
    CONVENE_CHECK(input.dtype == output.dtype);
    return Call({CollectiveKind::kAllToAll, input, output}, stream);
  }

  // The same of pieces that differ in length: each rank's piece of another's `input` is as long as
  // the other's of its `output`. The cuts' borders stay in place until the stream has run the call.
  // REQUIRES: input.count and output.count are the ends of the cuts.
  absl::Status AllToAllV(ConstElements input, const RowCut& input_cut, Elements output,
                         const RowCut& output_cut, Stream& stream) {
    CONVENE_CHECK(input.dtype == output.dtype);
    return Call({.kind = CollectiveKind::kAllToAllV,
                 .input = input,
                 .output = output,
                 .input_cut = input_cut,
                 .output_cut = output_cut},
                stream);
  }

  // `input` goes to the next rank, `output` comes from the one before; the last rank's goes to the
  // first. The spans do not overlap and are of one type and length. In a group of one nothing
  // moves.
  absl::Status Shift(ConstElements input, Elements output, Stream& stream) {
    CONVENE_CHECK(input.count == output.count && input.dtype == output.dtype);
    return Call({CollectiveKind::kShift, input, output}, stream);
  }

  absl::Status Broadcast(Elements data, int root, Stream& stream) {
    CONVENE_CHECK(root >= 0 && root < size());
    return Call({CollectiveKind::kBroadcast, data, data, ReduceOp::kSum, root}, stream);
  }

  // Returns when every rank has called it.
  absl::Status Barrier(Stream& stream) { return Call({CollectiveKind::kBarrier}, stream); }

  // Each collective above, which has checked its arguments.
  virtual absl::Status Call(const CollectiveCall& call, Stream& stream) = 0;

  // Starts to send `data`, after all work that `stream` holds by now; `data` must stay alive and
  // unchanged until Wait() of the returned handle has returned. That Wait needs the peer to have
  // started the receive, and not to have waited for it. Messages between two ranks of a group
  // arrive in the order in which they were sent. At most 1024 messages may be unwaited.
  virtual absl::StatusOr<PendingMessage> Send(ConstElements data, int peer, Stream& stream) = 0;
  // Starts to fill all of `data` from the peer's next message for which no receive has been started
  // yet, after all work that `stream` holds by now; `data` must stay alive until Wait() of the
  // returned handle has returned. REQUIRES: the message is exactly that long.
  virtual absl::StatusOr<PendingMessage> StartRecv(Elements data, int peer, Stream& stream) = 0;
  // Work queued in `stream` from now on may overwrite the data that was sent, or read the data that
  // was received. (On the CPU: once Wait returns.)
  virtual absl::Status Wait(PendingMessage pending, Stream& stream) = 0;

  // The first error known by now of any call made or queued here. Any thread.
  virtual absl::Status Check() = 0;

  // Wakes every call that waits in this communicator with Aborted(why). Any thread.
  virtual void Abort(absl::string_view why) = 0;
};

}  // namespace convene::worker
