#include "worker_runtime/device/host_queue.h"

#include <omp.h>

#include "tools/base/clock.h"

namespace convene::worker {
namespace {

// Ends the threads that OpenMP keeps for the calling thread's next region. libgomp counts the
// threads of all teams, at work or asleep. Where they outnumber the CPUs, no team waits spinning
// for its next region, and each region of any thread begins with a wake-up: 13 us in place of 0.6
// (two cores of an AMD EPYC), and often 60.
void EndTeam() { omp_pause_resource(omp_pause_soft, omp_get_initial_device()); }

}  // namespace

HostQueue::HostQueue(std::string thread_name, Regions regions)
    : thread_name_(std::move(thread_name)), regions_(regions) {}

HostQueue::~HostQueue() {
  Thread thread;
  {
    MutexLock lock(&mutex_);
    ending_ = true;
    more_.SignalAll();
    thread = std::move(thread_);
  }
  if (thread.joinable()) thread.Join();
}

HostQueue::Piece& HostQueue::AwaitFreePiece() {
  while (pushed_ - done_ == kPiecesMax) less_.Wait(&mutex_);
  return pieces_[pushed_ % kPiecesMax];
}

void HostQueue::Commit() {
  ++pushed_;
  more_.Signal();
  if (!thread_.joinable()) thread_ = Thread(thread_name_, [this] { Run(); });
}

uint64_t HostQueue::pushed() {
  MutexLock lock(&mutex_);
  return pushed_;
}

bool HostQueue::Await(uint64_t count, absl::Duration timeout) {
  MutexLock lock(&mutex_);
  if (timeout == absl::InfiniteDuration()) {
    while (done_ < count) less_.Wait(&mutex_);
    return true;
  }
  const MonotonicTime deadline = Clock::Real().Now() + timeout;
  while (done_ < count) {
    const absl::Duration left = deadline - Clock::Real().Now();
    if (left <= absl::ZeroDuration()) return false;
    less_.WaitFor(&mutex_, left);
  }
  return true;
}

void HostQueue::Run() {
  if (regions_ == Regions::kOfOneThread) omp_set_num_threads(1);
  MutexLock lock(&mutex_);
  while (true) {
    while (done_ == pushed_ && !ending_) more_.Wait(&mutex_);
    if (done_ == pushed_) return;
    const Piece& piece = pieces_[done_ % kPiecesMax];
    mutex_.Unlock();
    piece.run(piece.work);
    mutex_.Lock();
    if (regions_ == Regions::kOfAllThreads && done_ + 1 == pushed_) {
      mutex_.Unlock();
      EndTeam();
      mutex_.Lock();
    }
    ++done_;
    less_.SignalAll();
  }
}

void SetThreads(const Stream& stream, int threads) {
  stream.host_queue()->Push([threads] { omp_set_num_threads(threads); });
}

}  // namespace convene::worker
