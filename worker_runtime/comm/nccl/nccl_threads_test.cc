// NCCL between ranks that are threads of this process, each with a GPU of its own: on every check
// the emulated ones. nccl_test has the same between processes, for a machine with one real GPU.
#include <cuda_runtime.h>
#include <stdlib.h>

#include <catch2/catch.hpp>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "tools/base/check.h"
#include "tools/base/status_macros.h"
#include "tools/base/testing/logged_text.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/thread.h"
#include "worker_runtime/comm/bootstrap.h"
#include "worker_runtime/comm/collective.h"
#include "worker_runtime/comm/nccl/nccl_bootstrap.h"
#include "worker_runtime/comm/nccl/testing/borrowed_store.h"
#include "worker_runtime/comm/testing/collective_suite.h"
#include "worker_runtime/comm/testing/memory_store.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/mesh/mesh.h"

namespace convene::worker {
namespace {

using testing::MemoryStore;

// The ranks of a layout. A later member of a rank ends before the earlier ones.
class Job {
 public:
  struct Rank {
    int number = 0;
    std::unique_ptr<Device> device;
    std::unique_ptr<CommunicatorSet> set;
    std::unique_ptr<Memory> registered;
  };
  using Body = std::function<absl::Status(Rank&)>;

  explicit Job(const Layout& layout) : layout_(layout), ranks_(layout.world_size()) {
    for (size_t rank = 0; rank < ranks_.size(); ++rank)
      ranks_[rank].number = static_cast<int>(rank);
  }
  ~Job() {
    (void)OnEveryRank([](Rank& rank) {
      rank.registered = nullptr;
      rank.set = nullptr;
      rank.device = nullptr;
      return absl::OkStatus();
    });
  }

  // The name of each rank's machine; else they are all on one.
  void Place(const std::vector<std::string>& machines) { machines_ = machines; }

  void Connect(const std::string& key_prefix, absl::Duration operation_timeout) {
    RequireOk(OnEveryRank([&](Rank& rank) -> absl::Status {
      if (rank.device == nullptr) {
        CONVENE_ASSIGN_OR_RETURN(rank.device, Device::Cuda(rank.number));
      }
      NcclBootstrapOptions options;
      options.base.operation_timeout = operation_timeout;
      if (!machines_.empty()) options.place.host_name = machines_[rank.number];
      // A ring.
      for (int place = 1; place < layout_.pp; ++place) {
        options.base.pp_links.emplace_back(place - 1, place);
      }
      if (layout_.pp > 2) options.base.pp_links.emplace_back(0, layout_.pp - 1);
      options.open_store = testing::OpeningOf(store_);
      CONVENE_ASSIGN_OR_RETURN(
          CommunicatorSet set,
          BootstrapNccl(layout_, rank.number, store_, key_prefix, options, *rank.device));
      rank.set = std::make_unique<CommunicatorSet>(std::move(set));
      rank.registered = MakeNcclMemory(*rank.set);
      return absl::OkStatus();
    }));
  }

  // At the same time, each in its own thread.
  std::vector<absl::Status> OnEveryRank(const Body& body) {
    std::vector<absl::Status> statuses(ranks_.size());
    std::vector<Thread> threads;
    for (Rank& rank : ranks_) {
      threads.emplace_back(absl::StrCat("rank ", rank.number), [&, &rank = rank] {
        cudaSetDevice(rank.number);
        statuses[rank.number] = body(rank);
      });
    }
    for (Thread& thread : threads) thread.Join();
    return statuses;
  }
  static void RequireOk(const std::vector<absl::Status>& statuses) {
    for (const absl::Status& status : statuses) REQUIRE_OK(status);
  }

 private:
  const Layout layout_;
  MemoryStore store_;
  std::vector<std::string> machines_;
  std::vector<Rank> ranks_;
};

bool HasGpusOrSkips(int wanted) {
  if (Device::CudaCount() >= wanted) return true;
  std::printf("SKIPPED: %d CUDA devices, and %d ranks\n", Device::CudaCount(), wanted);
  return false;
}

testing::DataPlace PlaceIn(Memory& memory, Device& device) {
  return {.allocate =
              [&memory](size_t bytes) {
                const absl::StatusOr<void*> data = memory.Allocate(bytes);
                CONVENE_CHECK(data.ok());
                return std::shared_ptr<void>(
                    *data, [&memory, bytes](void* given) { memory.Free(given, bytes); });
              },
          .copy = [&device](const void* from, void* to, size_t bytes) -> absl::Status {
            device.Copy(from, to, bytes, device.compute());
            return device.status();
          }};
}

absl::Status RunSuite(Job::Rank& rank, Collective& group, Memory& memory, bool with_messages) {
  if (group.size() == 1) return absl::OkStatus();  // has no NCCL, and needs none
  testing::RankUnderTest here = {.group = group,
                                 .stream = rank.device->compute(),
                                 .place = PlaceIn(memory, *rank.device),
                                 .in_rank_order = false};
  for (const testing::SuiteCheck& check : testing::CollectiveSuite()) {
    if (check.needs_messages && !with_messages) continue;
    CONVENE_RETURN_IF_ERROR(
        Annotate(check.run(here), absl::StrCat(group.name(), ": ", check.behaviour)));
  }
  return absl::OkStatus();
}

TEST_CASE("every rank finds what each operation promises, over NCCL between threads") {
  if (!HasGpusOrSkips(4)) return;
  for (const Layout& layout :
       {Layout{.dp = 2}, Layout{.pp = 2}, Layout{.dp = 2, .tp = 2},
        Layout{.dp = 4, .dp_replicate = 2}, Layout{.tp = 2, .cp = 2}, Layout{.pp = 4}}) {
    INFO(layout.ToString());
    Job job(layout);
    job.Connect("epoch/1", absl::Seconds(20));
    Job::RequireOk(job.OnEveryRank([](Job::Rank& rank) -> absl::Status {
      CommunicatorSet& set = *rank.set;
      CONVENE_RETURN_IF_ERROR(RunSuite(rank, *set.world, *rank.registered, false));
      for (Collective* const group : {set.tp.get(), set.cp.get(), set.dp.get(), set.dp_gather.get(),
                                      set.dp_replicate.get()}) {
        CONVENE_RETURN_IF_ERROR(RunSuite(rank, *group, rank.device->memory(), false));
      }
      return RunSuite(rank, *set.pp, rank.device->memory(), true);
    }));
  }
}

// The ring's pairs have lanes; the others have none.
TEST_CASE("a message to a rank without a lane is refused") {
  if (!HasGpusOrSkips(4)) return;
  Job job({.pp = 4});
  job.Connect("epoch/1", absl::Seconds(20));
  const auto statuses = job.OnEveryRank([](Job::Rank& rank) {
    float token = 0;
    return rank.set->pp
        ->Send(Elements(&token, 1, DType::kFloat32), (rank.number + 2) % 4, rank.device->compute())
        .status();
  });
  for (const absl::Status& status : statuses) {
    CHECK_STATUS(status, absl::StatusCode::kFailedPrecondition, "has no lanes for messages");
  }
}

// A rank that has gone another way leaves its word, so nobody waits for it any longer.
TEST_CASE("ranks that wait for each other in two groups name each other, and harm nothing else") {
  if (!HasGpusOrSkips(3)) return;
  Job job({.dp = 3});
  job.Connect("epoch/1", absl::Seconds(1));
  const auto statuses = job.OnEveryRank([](Job::Rank& rank) {
    Collective& group = rank.number == 2 ? *rank.set->world : *rank.set->dp;
    return group.Barrier(rank.device->compute());
  });
  for (const int rank : {0, 1}) {
    CHECK_STATUS(statuses[rank], absl::StatusCode::kDeadlineExceeded,
                 "dp barrier #2 (4 B): did not complete");
    CHECK_THAT(std::string(statuses[rank].message()), Catch::Contains("rank 2 never started it"));
  }
  CHECK_STATUS(statuses[2], absl::StatusCode::kDeadlineExceeded, "world barrier #2 (4 B)");
  // Between host memories all is well.
  Job::RequireOk(job.OnEveryRank(
      [](Job::Rank& rank) { return rank.set->host->Barrier(rank.device->compute()); }));
}

// An older NCCL has symmetric windows too, but an abort would wait for an operation on one
// (limits.h).
TEST_CASE("a rank that does not work on registered memory is named, and the others end") {
  if (!HasGpusOrSkips(2)) return;
  const bool is_older = GENERATE(false, true);
  if (is_older) REQUIRE(setenv("CONVENE_EMULATED_NCCL_VERSION", "22809", 1) == 0);
  Job job({.dp = 2});
  job.Connect("epoch/1", absl::Seconds(1));
  const auto statuses = job.OnEveryRank([](Job::Rank& rank) -> absl::Status {
    constexpr size_t kBytes = 4096;
    Stream& stream = rank.device->compute();
    CONVENE_ASSIGN_OR_RETURN(void* const data, rank.registered->Allocate(kBytes));
    if (rank.number == 0) {
      const Elements elements(data, kBytes / sizeof(float), DType::kFloat32);
      CONVENE_RETURN_IF_ERROR(rank.set->dp->AllReduce(elements, ReduceOp::kSum, stream));
    }
    const absl::Status status =
        (rank.number == 0 ? rank.set->dp : rank.set->world)->Barrier(stream);
    CONVENE_RETURN_IF_ERROR(rank.device->Synchronize(absl::Seconds(20)));
    rank.registered->Free(data, kBytes);
    return status;
  });
  CHECK_STATUS(statuses[0], absl::StatusCode::kDeadlineExceeded,
               "dp all_reduce #2 (4096 B): did not complete");
  CHECK_THAT(std::string(statuses[0].message()), Catch::Contains("rank 1 never started it"));
  REQUIRE(unsetenv("CONVENE_EMULATED_NCCL_VERSION") == 0);
}

// Through a window each rank reads the others' data at its own offset, and the emulated NCCL ends
// the process where these differ: no group of both machines has one.
TEST_CASE("between machines an NCCL that may hang there works on no registered memory") {
  if (!HasGpusOrSkips(4)) return;
  const convene::testing::LoggedText log;
  const bool is_mended = GENERATE(false, true);
  REQUIRE(setenv("CONVENE_EMULATED_NCCL_VERSION", is_mended ? "23206" : "22907", 1) == 0);
  Job job({.dp = 2, .tp = 2});
  job.Place({"a", "a", "b", "b"});
  job.Connect("epoch/1", absl::Seconds(20));
  CHECK(log.CountOf("registers no memory for groups of several machines: before 2.32.6") ==
        (is_mended ? 0 : 1));
  Job::RequireOk(job.OnEveryRank([&](Job::Rank& rank) -> absl::Status {
    constexpr size_t kCount = 256;
    Stream& stream = rank.device->compute();
    CONVENE_ASSIGN_OR_RETURN(void* const data, rank.registered->Allocate(8 * kCount));
    auto* const values = static_cast<float*>(data);
    const Elements same(values, kCount, DType::kFloat32);
    CONVENE_RETURN_IF_ERROR(rank.set->tp->AllReduce(same, ReduceOp::kSum, stream));
    const int place = is_mended ? 0 : rank.set->dp->rank();
    const Elements elsewhere(values + place * kCount, kCount, DType::kFloat32);
    CONVENE_RETURN_IF_ERROR(rank.set->dp->AllReduce(elsewhere, ReduceOp::kSum, stream));
    CONVENE_RETURN_IF_ERROR(rank.device->Synchronize(absl::Seconds(20)));
    rank.registered->Free(data, 8 * kCount);
    return absl::OkStatus();
  }));
  REQUIRE(unsetenv("CONVENE_EMULATED_NCCL_VERSION") == 0);
}

TEST_CASE("an abort ends what waits, and the same threads make new communicators") {
  if (!HasGpusOrSkips(2)) return;
  Job job({.dp = 2});
  job.Connect("epoch/1", absl::Seconds(20));
  // Rank 0 waits for a rank that gives up.
  const auto statuses = job.OnEveryRank([](Job::Rank& rank) {
    if (rank.number == 0) {
      Thread other("other", [&] { rank.set->dp->Abort("a new epoch has begun"); });
      const absl::Status status = rank.set->dp->Barrier(rank.device->compute());
      other.Join();
      return status;
    }
    rank.set->AbortAll("a new epoch has begun");
    return rank.set->dp->Barrier(rank.device->compute());
  });
  for (const absl::Status& status : statuses) {
    CHECK_STATUS(status, absl::StatusCode::kAborted, "a new epoch has begun");
  }
  Job::RequireOk(job.OnEveryRank([](Job::Rank& rank) {
    rank.registered = nullptr;
    rank.set = nullptr;
    return absl::OkStatus();
  }));
  job.Connect("epoch/2", absl::Seconds(20));
  Job::RequireOk(job.OnEveryRank(
      [](Job::Rank& rank) { return rank.set->dp->Barrier(rank.device->compute()); }));
}

}  // namespace
}  // namespace convene::worker
