// The emulated NCCL itself: when an operation is queued, when it ends, and the mistakes that it
// must name. comm/nccl/nccl_threads_test has the results of every operation.
#include <cuda_runtime.h>
#include <nccl.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <vector>

#include "worker_runtime/device/emulated/runtime.h"

namespace convene::emulated {
namespace {

using Catch::Contains;

constexpr int kFloats = 6;

// A rank: a GPU, a stream, a communicator, and memory.
struct Rank {
  int number = 0;
  int gpu = 0;
  cudaStream_t stream = nullptr;
  ncclComm_t communicator = nullptr;
  float* data = nullptr;

  void MakeCurrent() const { REQUIRE(cudaSetDevice(gpu) == cudaSuccess); }
  ncclResult_t Ask() const {
    ncclResult_t state = ncclSuccess;
    REQUIRE(ncclCommGetAsyncError(communicator, &state) == ncclSuccess);
    return state;
  }
  // As NcclSession waits for each call.
  void AwaitQueued() const {
    while (Ask() == ncclInProgress) {
    }
  }
  // Whether all work of the stream is done.
  bool IsDone() const {
    MakeCurrent();
    cudaEvent_t event = nullptr;
    REQUIRE(cudaEventCreate(&event) == cudaSuccess);
    REQUIRE(cudaEventRecord(event, stream) == cudaSuccess);
    const cudaError_t state = cudaEventQuery(event);
    (void)cudaGetLastError();
    REQUIRE(cudaEventDestroy(event) == cudaSuccess);
    return state == cudaSuccess;
  }
  ncclResult_t AllReduce(size_t count = kFloats) const {
    return ncclAllReduce(data, data, count, ncclFloat32, ncclSum, communicator, stream);
  }
};

// Ranks of one communicator, all on this thread.
class Ranks {
 public:
  // Rank r has the GPU (first_gpu + r) % count.
  explicit Ranks(int count, int first_gpu = 0) : ranks_(count) {
    ncclUniqueId id;
    REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
    for (int number = 0; number < count; ++number) {
      Rank& rank = ranks_[number];
      rank.number = number;
      rank.gpu = (first_gpu + number) % count;
      rank.MakeCurrent();
      REQUIRE(cudaStreamCreateWithPriority(&rank.stream, cudaStreamNonBlocking, 0) == cudaSuccess);
      REQUIRE(cudaMalloc(reinterpret_cast<void**>(&rank.data), kFloats * sizeof(float)) ==
              cudaSuccess);
      for (int i = 0; i < kFloats; ++i) rank.data[i] = static_cast<float>(number + 1);
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = 0;
      REQUIRE(ncclCommInitRankConfig(&rank.communicator, count, id, number, &config) ==
              ncclInProgress);
    }
    for (const Rank& rank : ranks_) rank.AwaitQueued();
  }
  ~Ranks() {
    ForgetFailure();
    for (const Rank& rank : ranks_) ncclCommAbort(rank.communicator);
    for (const Rank& rank : ranks_) {
      rank.MakeCurrent();
      cudaStreamDestroy(rank.stream);
      cudaFree(rank.data);
    }
    cudaSetDevice(0);
  }
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  const Rank& operator[](int number) const { return ranks_[number]; }

 private:
  std::vector<Rank> ranks_;
};

TEST_CASE("an operation is in its stream once its caller has asked, not before") {
  const Ranks ranks(2);
  CHECK(ranks[0].AllReduce() == ncclInProgress);
  ranks[0].AwaitQueued();
  CHECK(ranks[1].AllReduce() == ncclInProgress);
  CHECK(ranks[1].IsDone());  // nothing stands in it
  CHECK_FALSE(ranks[0].IsDone());
  ranks[1].AwaitQueued();
  CHECK(ranks[0].IsDone());
  CHECK(ranks[1].data[0] == 3);
}

TEST_CASE("an operation lasts until every rank's stream has come to it") {
  const Ranks ranks(3);
  for (int rank = 0; rank < 3; ++rank) {
    (void)ranks[rank].AllReduce();
    ranks[rank].AwaitQueued();
    CHECK(ranks[rank].IsDone() == (rank == 2));
  }
  for (int rank = 0; rank < 3; ++rank) {
    CHECK(ranks[rank].IsDone());
    CHECK(ranks[rank].data[kFloats - 1] == 6);
  }
}

TEST_CASE("groups whose ranks have other GPUs add up in another order") {
  std::vector<float> sums;
  for (const int first_gpu : {0, 1}) {
    const Ranks ranks(3, first_gpu);
    for (int rank = 0; rank < 3; ++rank) {
      ranks[rank].data[0] = std::vector<float>{1e8f, 1.0f, -1e8f}[rank];
      (void)ranks[rank].AllReduce();
      ranks[rank].AwaitQueued();
    }
    for (int rank = 0; rank < 3; ++rank) {
      CHECK(ranks[rank].IsDone());
      CHECK(ranks[rank].data[0] == ranks[0].data[0]);
    }
    sums.push_back(ranks[0].data[0]);
  }
  CHECK(sums[0] != sums[1]);
}

TEST_CASE("a send lasts until its receiver takes it, and the messages of a group go together") {
  const Ranks ranks(2);
  (void)ncclSend(ranks[0].data, 2, ncclFloat32, 1, ranks[0].communicator, ranks[0].stream);
  ranks[0].AwaitQueued();
  CHECK_FALSE(ranks[0].IsDone());
  (void)ncclRecv(ranks[1].data + 4, 2, ncclFloat32, 0, ranks[1].communicator, ranks[1].stream);
  ranks[1].AwaitQueued();
  CHECK(ranks[0].IsDone());
  CHECK(ranks[1].IsDone());
  CHECK(ranks[1].data[4] == 1);
  // Each sends first: one after the other, both would wait for ever.
  for (int rank = 0; rank < 2; ++rank) {
    const Rank& here = ranks[rank];
    CHECK(ncclGroupStart() == ncclSuccess);
    CHECK(ncclSend(here.data, 1, ncclFloat32, 1 - rank, here.communicator, here.stream) ==
          ncclSuccess);
    CHECK(ncclRecv(here.data + 3, 1, ncclFloat32, 1 - rank, here.communicator, here.stream) ==
          ncclSuccess);
    CHECK(ncclGroupEnd() == ncclInProgress);
    here.AwaitQueued();
  }
  CHECK(ranks[0].IsDone());
  CHECK(ranks[0].data[3] == 2);
  CHECK(ranks[1].data[3] == 1);
}

TEST_CASE("an abort ends a rank's own operations, and no other rank's") {
  const Ranks ranks(3);
  for (const int rank : {0, 1}) {
    (void)ranks[rank].AllReduce();
    ranks[rank].AwaitQueued();
  }
  CHECK(ncclGroupStart() == ncclSuccess);
  CHECK(ncclCommAbort(ranks[0].communicator) == ncclSuccess);
  CHECK(ranks[0].IsDone());
  CHECK(ncclGroupEnd() == ncclSuccess);
  CHECK(ranks[0].data[0] == 1);
  (void)ranks[2].AllReduce();
  ranks[2].AwaitQueued();
  CHECK_FALSE(ranks[1].IsDone());
  CHECK_FALSE(ranks[2].IsDone());
  CHECK(ncclCommAbort(ranks[0].communicator) == ncclInvalidArgument);
}

TEST_CASE("what NCCL or a GPU would take for a mistake is refused") {
  const Ranks ranks(2);
  const Rank& here = ranks[0];
  SECTION("a stream of another GPU") {
    CHECK(ncclAllReduce(here.data, here.data, 1, ncclFloat32, ncclSum, here.communicator,
                        ranks[1].stream) == ncclInvalidArgument);
    ranks[1].MakeCurrent();
    CHECK(QueueWork(here.stream, [] {}) == cudaErrorInvalidResourceHandle);
  }
  SECTION("buffers that overlap, and are not in place") {
    CHECK(ncclAllGather(here.data + 1, here.data, 2, ncclFloat32, here.communicator, here.stream) ==
          ncclInvalidArgument);
  }
  SECTION("a call while the last one is in progress") {
    CHECK(here.AllReduce() == ncclInProgress);
    CHECK(here.AllReduce() == ncclInvalidUsage);
  }
  SECTION("memory that is not registered") {
    CHECK(ncclCommDeregister(here.communicator, here.data) == ncclInvalidArgument);
  }
  SECTION("two ranks on one GPU") {
    ncclUniqueId id;
    REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclComm_t made = nullptr;
    CHECK(ncclCommInitRankConfig(&made, 2, id, 0, &config) == ncclInProgress);
    ncclComm_t other = nullptr;
    CHECK(ncclCommInitRankConfig(&other, 2, id, 1, &config) == ncclInvalidUsage);
    CHECK(ncclCommAbort(made) == ncclSuccess);
  }
}

void MakeWindows(const Ranks& ranks) {
  for (int number = 0; number < 2; ++number) {
    const Rank& rank = ranks[number];
    ncclWindow_t window = nullptr;
    REQUIRE(ncclCommWindowRegister(rank.communicator, rank.data, kFloats * sizeof(float), &window,
                                   NCCL_WIN_COLL_SYMMETRIC) == ncclInProgress);
    if (number == 0) CHECK((rank.Ask(), rank.Ask(), rank.Ask()) == ncclInProgress);
  }
  for (int number = 0; number < 2; ++number) ranks[number].AwaitQueued();
}

TEST_CASE("from 2.29.7 on, an abort ends an operation on a symmetric window") {
  const bool is_older = GENERATE(false, true);
  if (is_older) REQUIRE(setenv("CONVENE_EMULATED_NCCL_VERSION", "22809", 1) == 0);
  const Ranks ranks(2);
  MakeWindows(ranks);
  (void)ranks[0].AllReduce();
  ranks[0].AwaitQueued();
  CHECK_FALSE(ranks[0].IsDone());
  CHECK(ncclCommAbort(ranks[0].communicator) == ncclSuccess);
  CHECK(cudaStreamSynchronize(ranks[0].stream) ==
        (is_older ? cudaErrorLaunchFailure : cudaSuccess));
  if (is_older) {
    CHECK_THAT(cudaGetErrorString(cudaErrorLaunchFailure), Contains("an abort waits"));
  }
  REQUIRE(unsetenv("CONVENE_EMULATED_NCCL_VERSION") == 0);
}

TEST_CASE("through a symmetric window all ranks use one offset") {
  const Ranks ranks(2);
  MakeWindows(ranks);
  const auto reduce = [&](int moved) {
    for (int number = 0; number < 2; ++number) {
      const Rank& rank = ranks[number];
      float* const data = rank.data + (number == 1 ? moved : 0);
      (void)ncclAllReduce(data, data, 1, ncclFloat32, ncclSum, rank.communicator, rank.stream);
      rank.AwaitQueued();
    }
    return cudaStreamSynchronize(nullptr);
  };
  CHECK(reduce(0) == cudaSuccess);
  CHECK(reduce(1) == cudaErrorLaunchFailure);
  CHECK_THAT(cudaGetErrorString(cudaErrorLaunchFailure), Contains("different offsets"));
}

TEST_CASE("ranks that call for different counts are named") {
  const Ranks ranks(2);
  (void)ranks[0].AllReduce();
  ranks[0].AwaitQueued();
  (void)ranks[1].AllReduce(kFloats - 1);
  ranks[1].AwaitQueued();
  REQUIRE(cudaStreamSynchronize(nullptr) == cudaErrorLaunchFailure);
  CHECK_THAT(cudaGetErrorString(cudaErrorLaunchFailure),
             Contains("5 elements") && Contains("with 6"));
}

}  // namespace
}  // namespace convene::emulated
