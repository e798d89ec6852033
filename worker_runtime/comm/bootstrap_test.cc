#include "worker_runtime/comm/bootstrap.h"

#include <array>
#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "tools/base/clock.h"
#include "tools/base/mutex.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/thread.h"
#include "worker_runtime/comm/flight_recorder.h"
#include "worker_runtime/comm/testing/collective_testing.h"
#include "worker_runtime/comm/testing/memory_store.h"
#include "worker_runtime/comm/testing/test_worlds.h"
#include "worker_runtime/device/stream.h"
#include "worker_runtime/mesh/mesh.h"

namespace convene::worker {
namespace {

using testing::kTransports;
using testing::MakeSets;
using testing::MemoryStore;
using testing::Transport;

std::unique_ptr<Collective>& MemberOf(CommunicatorSet& set, Axes axes) {
  switch (axes) {
    case Axes::kTp:
      return set.tp;
    case Axes::kCp:
      return set.cp;
    case Axes::kShard:
      return set.dp;
    case Axes::kDpReplicate:
      return set.dp_replicate;
    case Axes::kEp:
      return set.ep;
    case Axes::kExpertShard:
      return set.expert_dp;
    case Axes::kExpertReplicate:
      return set.expert_dp_replicate;
    case Axes::kPp:
      return set.pp;
    case Axes::kPipelineEnds:
      return set.embedding;
    case Axes::kDpShard:
    case Axes::kWorld:
      break;
  }
  return set.world;
}

// Fails the test unless the communicator of every rank on these axes gathers exactly the ranks of
// its group.
void CheckGroups(std::vector<CommunicatorSet>& sets, const Layout& layout, Axes axes) {
  std::vector<std::vector<float>> gathered(sets.size());
  std::vector<absl::Status> statuses(sets.size());
  std::vector<Thread> threads;
  for (size_t rank = 0; rank < sets.size(); ++rank) {
    threads.emplace_back("rank", [&, rank] {
      Collective* const collective = MemberOf(sets[rank], axes).get();
      if (collective == nullptr) return;
      Stream stream = Stream::Cpu();
      gathered[rank].resize(collective->size());
      gathered[rank][collective->rank()] = static_cast<float>(rank);
      statuses[rank] = collective->AllGather(absl::MakeSpan(gathered[rank]), stream);
    });
  }
  for (Thread& thread : threads) thread.Join();
  for (size_t rank = 0; rank < sets.size(); ++rank) {
    INFO(layout.ToString() << " " << AxesName(axes) << " rank " << rank);
    CHECK_OK(statuses[rank]);
    const std::vector<int> group = GroupOf(layout, axes, static_cast<int>(rank));
    REQUIRE(gathered[rank] == std::vector<float>(group.begin(), group.end()));
    if (!group.empty()) CHECK(MemberOf(sets[rank], axes)->name() == AxesName(axes));
  }
}

TEST_CASE("each communicator connects the ranks of its group and no others") {
  for (const Transport transport : kTransports) {
    for (const Layout& layout :
         {Layout{.pp = 2, .dp = 2, .tp = 2}, Layout{.pp = 3, .dp = 1, .tp = 2},
          Layout{.pp = 1, .dp = 4, .tp = 1}, Layout{.dp = 4, .dp_replicate = 2},
          Layout{.dp = 2, .tp = 2, .cp = 2}, Layout{.dp = 4, .dp_replicate = 2, .cp = 2, .ep = 2},
          Layout{}}) {
      INFO(testing::ToString(transport));
      std::vector<CommunicatorSet> sets = MakeSets(transport, layout);
      for (const Axes axes :
           {Axes::kTp, Axes::kCp, Axes::kShard, Axes::kDpReplicate, Axes::kEp, Axes::kExpertShard,
            Axes::kExpertReplicate, Axes::kPp, Axes::kPipelineEnds, Axes::kWorld}) {
        CheckGroups(sets, layout, axes);
      }
    }
  }
}

TEST_CASE("two communicators of a rank work at the same time") {
  for (const Transport transport : kTransports) {
    std::vector<CommunicatorSet> sets = MakeSets(transport, {.pp = 1, .dp = 2, .tp = 1});
    std::vector<Thread> threads;
    std::vector<absl::Status> statuses(4);
    std::vector<float> sums(4);
    for (int rank = 0; rank < 2; ++rank) {
      for (const Axes axes : {Axes::kWorld, Axes::kShard}) {
        const int place = rank * 2 + (axes == Axes::kShard ? 1 : 0);
        threads.emplace_back("rank", [&, rank, axes, place] {
          Stream stream = Stream::Cpu();
          for (int i = 0; i < 100 && statuses[place].ok(); ++i) {
            float value = static_cast<float>(place);
            statuses[place] = MemberOf(sets[rank], axes)
                                  ->AllReduce(absl::MakeSpan(&value, 1), ReduceOp::kSum, stream);
            sums[place] += value;
          }
        });
      }
    }
    for (Thread& thread : threads) thread.Join();
    for (const absl::Status& status : statuses) CHECK_OK(status);
    CHECK(sums == std::vector<float>{200, 400, 200, 400});
  }
}

// Two ranks of dp 2, by what `options` says of each.
std::vector<CommunicatorSet> ConnectTwo(const std::vector<BootstrapOptions>& options) {
  const Layout layout{.pp = 1, .dp = 2, .tp = 1};
  MemoryStore store;
  std::vector<absl::StatusOr<CommunicatorSet>> connected(2);
  std::vector<Thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back("rank", [&, rank] {
      connected[rank] = BootstrapGloo(layout, rank, store, "epoch/1", options[rank]);
    });
  }
  for (Thread& rank : ranks) rank.Join();
  std::vector<CommunicatorSet> sets;
  for (auto& set : connected) {
    REQUIRE_OK(set);
    sets.push_back(*std::move(set));
  }
  return sets;
}

// The groups that a recorder's observer is told of.
class ToldGroups {
 public:
  void Observe(FlightRecorder& recorder) {
    recorder.Observe([this](const AwaitedOperation* awaited) {
      MutexLock lock(&mutex_);
      groups_.emplace_back(awaited == nullptr ? "none" : awaited->group);
      changed_.SignalAll();
    });
  }
  void Await(const std::string& group) {
    MutexLock lock(&mutex_);
    while (!absl::c_linear_search(groups_, group)) changed_.Wait(&mutex_);
  }
  std::vector<std::string> Take() {
    MutexLock lock(&mutex_);
    return std::exchange(groups_, {});
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::vector<std::string> groups_ ABSL_GUARDED_BY(mutex_);
};

TEST_CASE("a wait of the training is told before those of groups that work beside it") {
  ToldGroups told;
  FlightRecorder recorder(64, Clock::Real()), other(64, Clock::Real());
  std::vector<CommunicatorSet> sets = ConnectTwo({{.recorder = &recorder}, {.recorder = &other}});
  told.Observe(recorder);
  for (const auto place : {&CommunicatorSet::checkpoint, &CommunicatorSet::replicas}) {
    std::array<std::array<absl::Status, 2>, 2> statuses;  // beside the training and in dp
    const auto barrier = [&](int rank, std::unique_ptr<Collective> CommunicatorSet::*group) {
      return Thread("rank", [&sets, &statuses, rank, group] {
        Stream stream = Stream::Cpu();
        statuses.at(group == &CommunicatorSet::dp).at(rank) = (sets[rank].*group)->Barrier(stream);
      });
    };
    const std::string name = (sets[0].*place)->name();
    Thread beside = barrier(0, place);
    told.Await(name);
    Thread own = barrier(0, &CommunicatorSet::dp), peer = barrier(1, &CommunicatorSet::dp);
    own.Join();
    peer.Join();
    CHECK(told.Take() == std::vector<std::string>{name, "dp", "dp", name});
    Thread end = barrier(1, place);
    beside.Join();
    end.Join();
    for (const auto& of_group : statuses) {
      for (const absl::Status& status : of_group) CHECK_OK(status);
    }
    told.Take();
  }
}

TEST_CASE("the checkpoint communicator waits longer than the others") {
  // Of two worlds: a call of the second one that nobody answers measures the time.
  const BootstrapOptions options = {.operation_timeout = absl::Milliseconds(50)};
  std::vector<CommunicatorSet> sets = ConnectTwo({options, options});
  std::vector<CommunicatorSet> clocks = ConnectTwo({options, options});
  std::vector<absl::Status> waited(2);
  absl::Status given_up;
  Stream stream = Stream::Cpu();
  const auto wait = [&](absl::Status* status) {
    return Thread("rank 0", [&sets, status] {
      Stream own = Stream::Cpu();
      *status = sets[0].checkpoint->Barrier(own);
    });
  };
  Thread waiter = wait(&waited[0]);
  // Rank 1 comes when the time of an ordinary operation has passed.
  CHECK_STATUS(clocks[0].dp->Barrier(stream), absl::StatusCode::kDeadlineExceeded, "dp barrier");
  waited[1] = sets[1].checkpoint->Barrier(stream);
  waiter.Join();
  for (const absl::Status& status : waited) CHECK_OK(status);
  CHECK(sets[0].checkpoint->name() == "checkpoint");
  // But it is no reason to stay once another call of the rank has passed its time.
  waiter = wait(&given_up);
  CHECK_STATUS(sets[0].dp->Barrier(stream), absl::StatusCode::kDeadlineExceeded, "dp barrier #1");
  waiter.Join();
  CHECK_STATUS(given_up, absl::StatusCode::kDeadlineExceeded,
               "after dp barrier #1 (0 B): rank 1 (global rank 1) did not answer in time");
}

TEST_CASE("a rank that never comes is named") {
  MemoryStore store;
  const auto set = BootstrapGloo({.pp = 1, .dp = 2, .tp = 1}, 0, store, "epoch/1",
                                 {.connect_timeout = absl::Milliseconds(50)});
  CHECK_STATUS(set, absl::StatusCode::kDeadlineExceeded, "waiting for the address of rank 1");
}

TEST_CASE("all ranks read what each publishes: some bytes for each peer") {
  constexpr int kRanks = 8;
  constexpr size_t kAddressBytes = 136;  // of gloo's whole address
  MemoryStore store;
  std::vector<absl::StatusOr<CommunicatorSet>> sets(kRanks);
  std::vector<Thread> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back("rank", [&, rank] {
      sets[rank] = BootstrapGloo({.dp = kRanks}, rank, store, "epoch/1", {});
    });
  }
  for (Thread& rank : ranks) rank.Join();
  for (int rank = 0; rank < kRanks; ++rank) {
    CHECK_OK(sets[rank]);
    const auto published = store.Get(absl::StrCat("epoch/1/address/", rank), absl::ZeroDuration());
    REQUIRE_OK(published);
    CHECK(published->size() < kAddressBytes + 4 * kRanks);
  }
}

TEST_CASE("a rank of another world size is refused") {
  MemoryStore store;
  REQUIRE_OK(store.Set("epoch/1/address/1", "not an address"));
  const auto set = BootstrapGloo({.pp = 1, .dp = 5, .tp = 1}, 0, store, "epoch/1",
                                 {.connect_timeout = absl::Milliseconds(50)});
  CHECK_STATUS(set, absl::StatusCode::kUnavailable, "rank 1 published 14 bytes of addresses");
}

TEST_CASE("what cannot be bootstrapped says why") {
  MemoryStore store;
  CHECK_STATUS(BootstrapGloo({.pp = 1, .dp = 2, .tp = 1}, 2, store, "epoch/1", {}),
               absl::StatusCode::kInvalidArgument, "rank 2 is not in dp2 x tp1 x pp1");
  CHECK_STATUS(BootstrapGloo({.pp = 1, .dp = 2, .tp = 1}, 0, store, "epoch/1",
                             {.listen_host = "203.0.113.7"}),
               absl::StatusCode::kInvalidArgument, "203.0.113.7");
#ifndef __SANITIZE_THREAD__  // glibc looks names up in a thread of its own, unknown to it
  CHECK_STATUS(BootstrapGloo({.pp = 1, .dp = 2, .tp = 1}, 0, store, "epoch/1",
                             {.store_host = "no such host"}),
               absl::StatusCode::kInvalidArgument, "no such host");
#endif
}

TEST_CASE("abort of a set wakes all of its communicators") {
  for (const Transport transport : kTransports) {
    std::vector<CommunicatorSet> sets = MakeSets(transport, {.pp = 1, .dp = 2, .tp = 1});
    absl::Status waiting;
    Thread waiter("waiter", [&] {
      Stream stream = Stream::Cpu();
      waiting = sets[0].dp->Barrier(stream);
    });
    sets[0].AbortAll("stop");
    waiter.Join();
    CHECK_STATUS(waiting, absl::StatusCode::kAborted, "stop");
  }
}

}  // namespace
}  // namespace convene::worker
