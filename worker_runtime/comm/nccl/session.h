// Shared by all NCCL communicators of a rank: one lock around the library, one record of queued
// operations, one watchdog, and one end.
#pragma once

#include <cuda_runtime.h>
#include <nccl.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "tools/base/clock.h"
#include "tools/base/mutex.h"
#include "tools/base/thread.h"
#include "worker_runtime/comm/flight_recorder.h"
#include "worker_runtime/comm/nccl/peers.h"
#include "worker_runtime/comm/nccl/stall.h"
#include "worker_runtime/device/elements.h"

namespace convene::worker {

// OK for success and for "in progress"; else Unavailable (a peer or the network), Internal, or
// InvalidArgument for our own misuse, with the library's words.
absl::Status NcclStatus(ncclResult_t result);

struct NcclSessionOptions {
  int global_rank = 0;
  int cuda_device = 0;  // of all communicators
  absl::Duration operation_timeout;
  bool has_windows = false;            // whether NCCL is kOldestNcclWithWindows, or newer
  FlightRecorder* recorder = nullptr;  // outlives the session; not null
  // Opens a client of the store for the moment of failure, when the watchdog's thread asks for the
  // other ranks' last operations; null: it does not ask. Called once at most.
  OpenStore open_store;
  std::string key_prefix;
};

// A communicator differs from others by these traits.
struct NcclCommunicatorTraits {
  int blocks_max = 0;  // of its kernels; 0: as many as NCCL likes
  // Memory that is registered lies alike on all of its ranks: equal sizes, and data that one
  // operation works on at one offset. Such a communicator gets a window into it.
  bool has_equal_memory = false;
  // Whether memory is registered with it at all. All of its ranks say the same.
  bool takes_memory = true;
};

// Thread-safe. The communicators of one rank share a session and end together: the first error of
// one (a deadline, a broken peer, Abort) is from then on the error of all.
//
// The lock. NCCL's communicators are non-blocking: a call returns "in progress" while a thread of
// NCCL's queues the work, and the next call, also ncclCommGetAsyncError, may take over that
// thread's work. So all of NCCL is under `nccl_mutex_`: a caller keeps it until its operation
// stands in its CUDA stream (some 30 us), which also makes the order of queueing, over all
// communicators, that of the calls. A thread that polls looks at `failing_`, and leaves: when the
// aborting thread has the lock, no other thread is inside NCCL.
//
// Why kernels never wait in a circle. Kernels of different streams may start in another order on
// each GPU. A kernel of rank A that waits for rank B's would wait for ever if B's could not start
// because others hold its GPU and wait, in turn, for A. So every kernel must be able to start
// beside all that wait:
// - At most kNcclKernelsAtOnce wait (trainer/overlap_test checks the streams' part of it), each
//   with at most the `blocks_max` blocks that its communicator was made with, and NcclBlocksMax
//   gives all of these a multiprocessor each (limits_test). All other kernels end by themselves,
//   and NCCL's kernels get their place first: its streams beside compute() have the higher
//   priority, and in compute() itself no other kernel runs.
// - The remaining waits are those of streams, events and peers. If every call waited for its end,
//   in the order of the calls, all these waits would be kept, and more. The same program runs so on
//   CPUs, and there it comes to its end (trainer/testing/layout_test), so these waits hold no
//   circle. A Send is the exception, as it does not wait on a CPU: nccl_collective.h shows for
//   messages that a lane for each ordered pair of ranks makes no circle, and lanes_test plays it
//   through.
// - A stream holds up no other one: the trainer (trainer/main.cc) has CUDA give each of them a work
//   queue of its own. Streams in one queue would be one lane.
//
// The end. Freeing one communicator while a kernel of another still waits for its peers would wait
// for that kernel (NVIDIA/nccl #564). All are aborted inside one ncclGroupStart/End: each call sets
// its communicator's abort flag at once, and the freeing happens in ncclGroupEnd. To revoke them
// before (ncclCommRevoke) would win nothing: it sets the same flags and waits for the same kernels,
// and the memory that it keeps is freed right after. A CUDA graph that holds operations goes before
// all this: even an abort waits for its end, without a deadline.
//
// The watchdog. The thread "nccl watchdog" looks every 100 ms whether events have passed, the
// library has an error, or the oldest operation of an order is over its time. An operation's time
// begins when it was queued, or, if that is later, when the operation before it in its order was
// known to be done. The error names the operation that was queued first of all that are open: it
// waits for none of the others, and they may wait for it.
//
// A GPU that is some thousand launches behind makes a thread that queues more wait for it, perhaps
// for a kernel that only an abort ends. So the lock is not held while an event is recorded; and the
// communicator whose operation a thread of NCCL's is just queueing is aborted last, because that
// thread is joined, with the flags of all others set.
class NcclSession {
 public:
  explicit NcclSession(NcclSessionOptions options);
  // Ends all communicators: in order by ncclCommFinalize and ncclCommDestroy when all is well,
  // nothing queued is still running and the peers do the same within 10 s, else by abort.
  ~NcclSession();
  NcclSession(const NcclSession&) = delete;
  NcclSession& operator=(const NcclSession&) = delete;

  // Creates a communicator of `size` ranks, and returns its number. All ranks of the group call it
  // at about the same time, with the id that one of them got from ncclGetUniqueId; each in one
  // order. Errors: DeadlineExceeded; NcclStatus's. After an error the session is to be ended by
  // Fail: a half-made communicator cannot end otherwise.
  absl::StatusOr<int> MakeCommunicator(const std::string& name, int size, int rank,
                                       const ncclUniqueId& id, MonotonicTime deadline,
                                       const NcclCommunicatorTraits& traits = {});

  // Makes an order: a sequence of operations that its `members` (global ranks) count alike; see
  // NcclProgress.
  int MakeOrder(std::string name, std::vector<int> members);

  // One operation, in words.
  struct Operation {
    int communicator = 0;
    int order = 0;
    absl::string_view group;       // "dp"
    absl::string_view operation;   // "send to 1"
    absl::string_view counted_as;  // NcclProgress::operation
    ConstElements data;
    cudaStream_t stream = nullptr;
  };
  // Queues it: `queue` calls NCCL once, or a whole ncclGroup. Errors: the session's.
  absl::Status Start(const Operation& operation, absl::FunctionRef<ncclResult_t(ncclComm_t)> queue);

  // The host waits until all operations started in this order so far are complete. Errors: the
  // session's; past `deadline` the session ends with DeadlineExceeded.
  absl::Status Await(int order, MonotonicTime deadline);

  // From now on operations have deadlines and errors of peers are noticed. REQUIRES: every
  // communicator is warm, since the first operation of each connects; called once at most.
  void StartWatchdog();

  // The error that ended the session; OK while it lives. Waits, 10 s at most, while an error is
  // just being explained.
  absl::Status status();
  // Ends the session, unless it has ended. Aborts all communicators; returns when that is done.
  void Fail(const absl::Status& status);

  // Registers device memory with all present communicators that take memory, so that NCCL uses it
  // without copies in between. Results are right without it. All ranks of a communicator call it at
  // about the same time, because a window is made by all of them together. After an error no
  // communicator has it: NcclStatus's; FailedPrecondition when NCCL's settings turn it off;
  // DeadlineExceeded when another rank did not come within one timeout of operations for all
  // communicators, after which the session is to be ended; the session's. REQUIRES: it has not been
  // registered.
  absl::Status RegisterMemory(void* data, size_t bytes);
  // Memory that is not registered is fine. REQUIRES: no queued work still uses the memory. When the
  // session has ended, it waits as status() does until the communicators are aborted, which gives
  // up their registrations.
  void DeregisterMemory(void* data);

 private:
  struct Communicator {
    std::string name;
    // On the heap, because a thread of NCCL's may write it for as long as the communicator is being
    // made.
    std::unique_ptr<ncclComm_t> handle;
    NcclCommunicatorTraits traits;
  };
  // An operation that is queued, and not known to be complete.
  struct Open {
    uint64_t sequence = 0;
    uint64_t record = 0;
    cudaEvent_t event = nullptr;  // null until it is recorded
    MonotonicTime queued;
    MonotonicTime since;  // when its time began
    int communicator = 0;
    std::string group;
    NcclProgress as_started;
    std::string text;  // of the operation
  };
  struct Order {
    std::vector<int> members;
    NcclProgress progress;
    std::deque<Open> open;  // oldest first
  };
  // NCCL's handles for a block of memory in one communicator: none, or one of both.
  struct Handles {
    void* local = nullptr;
    // On the heap, because a thread of NCCL's writes it.
    std::unique_ptr<ncclWindow_t> window;
  };
  using Registration = std::vector<Handles>;  // by communicator
  // The error that ended the session, and the operation that the session waited for, if any.
  struct Failure {
    absl::Status status;
    std::string where;  // "dp all_reduce #17 (4096 B)"; empty: nowhere in particular
    NcclProgress stuck;
    std::vector<int> members;
  };

  // Waits until NCCL has done its last call. Errors: NcclStatus's; DeadlineExceeded; Aborted when
  // another thread wants the lock to end the session.
  absl::Status AwaitQueued(ncclComm_t communicator, MonotonicTime deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(nccl_mutex_);
  absl::StatusOr<bool> IsComplete(const Open& open) ABSL_EXCLUSIVE_LOCKS_REQUIRED(nccl_mutex_);
  // Takes complete operations out.
  absl::Status Collect(Order& order, MonotonicTime now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(nccl_mutex_);
  absl::StatusOr<cudaEvent_t> TakeEvent() ABSL_EXCLUSIVE_LOCKS_REQUIRED(nccl_mutex_);
  static Failure FailureOf(const Order& order, const Open& open, absl::Status status);
  // The failure of the order's oldest open operation, if any.
  static Failure FailureAt(const Order& order, absl::Status status);
  // Puts the operation into its stream and takes an event to record behind it. `captured`: it
  // became part of a graph instead, without an event.
  absl::Status Queue(const Operation& operation, absl::FunctionRef<ncclResult_t(ncclComm_t)> queue,
                     MonotonicTime deadline, cudaEvent_t& event, bool& captured)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(nccl_mutex_);

  // The failure that the watchdog finds; OK without one.
  Failure Look(MonotonicTime now);
  void Watch();
  void End(const Failure& failure);
  std::vector<NcclProgress> AllProgress() ABSL_EXCLUSIVE_LOCKS_REQUIRED(nccl_mutex_);
  // Whether queued work may still be running.
  bool IsBusy() ABSL_EXCLUSIVE_LOCKS_REQUIRED(nccl_mutex_);
  void AbortAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(nccl_mutex_);
  void FinalizeAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(nccl_mutex_);
  absl::Status Register(const Communicator& communicator, void* data, size_t bytes,
                        MonotonicTime deadline, Handles& handles)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(nccl_mutex_);
  void Deregister(const Registration& registration) ABSL_EXCLUSIVE_LOCKS_REQUIRED(nccl_mutex_);

  const NcclSessionOptions options_;

  std::atomic<bool> failing_ = false;

  Mutex nccl_mutex_;  // never held together with status_mutex_
  std::vector<Communicator> communicators_ ABSL_GUARDED_BY(nccl_mutex_);
  std::vector<Order> orders_ ABSL_GUARDED_BY(nccl_mutex_);
  std::vector<cudaEvent_t> free_events_ ABSL_GUARDED_BY(nccl_mutex_);
  std::map<void*, Registration> registrations_ ABSL_GUARDED_BY(nccl_mutex_);  // by memory
  // A thread of NCCL's may write these until their communicators are gone.
  std::vector<std::unique_ptr<ncclWindow_t>> unmade_windows_ ABSL_GUARDED_BY(nccl_mutex_);
  // The communicator that NCCL is making, or queueing an operation of, also when that failed; -1:
  // none.
  int queueing_ ABSL_GUARDED_BY(nccl_mutex_) = -1;

  Mutex status_mutex_;
  CondVar status_changed_;
  absl::Status status_ ABSL_GUARDED_BY(status_mutex_);
  bool explained_ ABSL_GUARDED_BY(status_mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(status_mutex_) = false;

  Thread watchdog_;
};

}  // namespace convene::worker
