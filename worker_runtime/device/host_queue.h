// A queue of work with a thread of its own: what makes a CPU's stream run beside the thread that
// gives it work.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <new>
#include <string>
#include <type_traits>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "tools/base/mutex.h"
#include "tools/base/thread.h"
#include "worker_runtime/device/stream.h"

namespace convene::worker {

// Work runs in the order in which it was pushed, one piece after the other, on one thread, which
// starts with the first piece and sleeps while there is none.
//
// Any thread may call it. All waits end because all work ends: a collective by its own deadline.
class HostQueue {
 public:
  // The most pieces that are queued or running; Push then waits. Nothing is allocated after the
  // construction and the thread's start.
  static constexpr size_t kPiecesMax = 256;
  // The most bytes that one piece captures.
  static constexpr size_t kPieceBytes = 320;

  // The threads of an OpenMP region in the queue: one, where the cores belong to the arithmetic
  // beside; or as many as in any other thread, until SetThreads. The queue keeps no team of theirs
  // once all pieces are done.
  enum class Regions { kOfOneThread, kOfAllThreads };

  // `thread_name`: see Thread.
  explicit HostQueue(std::string thread_name, Regions regions = Regions::kOfOneThread);
  // Runs all that is queued first.
  ~HostQueue();
  HostQueue(const HostQueue&) = delete;
  HostQueue& operator=(const HostQueue&) = delete;

  // Calls a copy of `work` on the queue's thread. The memory that it points to lives until then.
  // Work pushes nothing into its own queue.
  template <typename Work>
  void Push(const Work& work) {
    static_assert(std::is_trivially_copyable_v<Work> && std::is_trivially_destructible_v<Work>,
                  "pieces are kept as bytes");
    static_assert(sizeof(Work) <= kPieceBytes);
    static_assert(alignof(Work) <= alignof(std::max_align_t));
    MutexLock lock(&mutex_);
    Piece& piece = AwaitFreePiece();
    new (piece.work) Work(work);
    piece.run = [](const void* copy) { (*static_cast<const Work*>(copy))(); };
    Commit();
  }

  // How many pieces were ever pushed.
  uint64_t pushed();
  // Waits until the first `count` pieces ever pushed are done. False after `timeout`.
  bool Await(uint64_t count, absl::Duration timeout = absl::InfiniteDuration());

 private:
  struct Piece {
    void (*run)(const void* work) = nullptr;
    alignas(std::max_align_t) std::byte work[kPieceBytes];
  };

  Piece& AwaitFreePiece() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Commit() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Run();

  const std::string thread_name_;
  const Regions regions_;
  Mutex mutex_;
  CondVar more_;                                                  // pushed_ or ending_ has changed
  CondVar less_;                                                  // done_ has changed
  std::array<Piece, kPiecesMax> pieces_ ABSL_GUARDED_BY(mutex_);  // number n stands at n % size
  uint64_t pushed_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t done_ ABSL_GUARDED_BY(mutex_) = 0;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  Thread thread_ ABSL_GUARDED_BY(mutex_);  // started by the first Push
};

// OpenMP regions that are queued in `stream` from now on have so many threads. REQUIRES: it has a
// queue, of Regions::kOfAllThreads.
void SetThreads(const Stream& stream, int threads);

// Work of a CPU's stream: in its queue, or at once. See HostQueue::Push. REQUIRES: stream.kind() is
// kCpu.
template <typename Work>
void RunIn(const Stream& stream, const Work& work) {
  if (stream.host_queue() != nullptr) {
    stream.host_queue()->Push(work);
  } else {
    work();
  }
}

// Returns once all that the stream was given is done. REQUIRES: stream.kind() is kCpu.
inline void AwaitAll(const Stream& stream) {
  HostQueue* const queue = stream.host_queue();
  if (queue != nullptr) queue->Await(queue->pushed());
}

}  // namespace convene::worker
