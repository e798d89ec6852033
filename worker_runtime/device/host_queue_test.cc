#include "worker_runtime/device/host_queue.h"

#include <omp.h>

#include <catch2/catch.hpp>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <numeric>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "tools/base/mutex.h"

namespace convene::worker {
namespace {

// Work waits at it until it is opened.
class Gate {
 public:
  void Open() {
    MutexLock lock(&mutex_);
    open_ = true;
    opened_.SignalAll();
  }
  void Pass() {
    MutexLock lock(&mutex_);
    while (!open_) opened_.Wait(&mutex_);
  }

 private:
  Mutex mutex_;
  CondVar opened_;
  bool open_ ABSL_GUARDED_BY(mutex_) = false;
};

TEST_CASE("work runs in order, on one thread that is not the caller's, without an OpenMP team") {
  omp_set_num_threads(4);
  std::vector<int> seen;
  std::vector<std::thread::id> threads;
  int team = 0;
  HostQueue queue("queue");
  // More than the queue holds at once.
  const int count = 3 * static_cast<int>(HostQueue::kPiecesMax);
  for (int i = 0; i < count; ++i) {
    queue.Push([&, i] {
      seen.push_back(i);
      threads.push_back(std::this_thread::get_id());
      team = omp_get_max_threads();
    });
  }
  CHECK(queue.pushed() == static_cast<uint64_t>(count));
  REQUIRE(queue.Await(count));
  std::vector<int> expected(count);
  std::iota(expected.begin(), expected.end(), 0);
  CHECK(seen == expected);
  CHECK(threads.front() != std::this_thread::get_id());
  CHECK(threads == std::vector<std::thread::id>(count, threads.front()));
  CHECK(team == 1);
}

TEST_CASE(
    "a queue for regions of all threads takes as many as it is told, and no other thread does") {
  omp_set_num_threads(2);
  int team = 0;
  HostQueue queue("queue", HostQueue::Regions::kOfAllThreads);
  const Stream stream = Stream::Cpu(queue);
  SetThreads(stream, 3);
  RunIn(stream, [&] { team = omp_get_max_threads(); });
  AwaitAll(stream);
  CHECK(team == 3);
  CHECK(omp_get_max_threads() == 2);
}

#if !defined(CONVENE_SANITIZER)  // clang's OpenMP library keeps its threads
TEST_CASE("a queue that is done keeps no OpenMP team, asleep or not") {
  const auto count_threads = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {});
  };
  HostQueue queue("queue", HostQueue::Regions::kOfAllThreads);
  const Stream stream = Stream::Cpu(queue);
  SetThreads(stream, 5);
  AwaitAll(stream);
  const auto before = count_threads();
  int64_t during = 0;
  RunIn(stream, [&] {
#pragma omp parallel
    {
#pragma omp barrier
#pragma omp single
      during = count_threads();
    }
  });
  AwaitAll(stream);
  CHECK(during == before + 4);
  CHECK(count_threads() == before);
}
#endif

TEST_CASE("a wait for the first pieces does not wait for later ones, and ends at its time") {
  Gate gate;
  int done = 0;
  HostQueue queue("queue");
  CHECK(queue.Await(0));
  queue.Push([&] { ++done; });
  queue.Push([&] { gate.Pass(); });
  REQUIRE(queue.Await(1, absl::Seconds(60)));
  CHECK(done == 1);
  CHECK_FALSE(queue.Await(2, absl::Milliseconds(1)));
  CHECK_FALSE(queue.Await(2, absl::ZeroDuration()));
  CHECK_FALSE(queue.Await(2, absl::Seconds(-1)));
  gate.Open();
  CHECK(queue.Await(2));
}

TEST_CASE("a queue that is destroyed runs what it holds first") {
  int done = 0;
  {
    Gate gate;
    HostQueue queue("queue");
    queue.Push([&] { gate.Pass(); });
    for (int i = 0; i < 10; ++i) queue.Push([&] { ++done; });
    gate.Open();
  }
  CHECK(done == 10);
}

TEST_CASE("a queue that nobody uses has no thread") {
  const ScopedThreadFault no_threads("queue");
  HostQueue queue("queue");
  CHECK(queue.Await(0));
}

TEST_CASE("work of a stream without a queue runs at once") {
  int done = 0;
  const Stream stream = Stream::Cpu();
  RunIn(stream, [&] { ++done; });
  CHECK(done == 1);
  AwaitAll(stream);
}

}  // namespace
}  // namespace convene::worker
