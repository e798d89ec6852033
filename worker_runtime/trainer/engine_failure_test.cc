// A peer of a step dies, is silent, or is done and gone, while collectives run beside the
// arithmetic: the words that the other ranks end with.
#include <catch2/catch.hpp>
#include <memory>
#include <vector>

#include "tools/base/status_macros.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/thread.h"
#include "worker_runtime/comm/bootstrap.h"
#include "worker_runtime/comm/testing/test_worlds.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/trainer/engine.h"
#include "worker_runtime/trainer/testing/train_step.h"

namespace convene::worker {
namespace {

using testing::Transport;

constexpr Layout kLayout = {.dp = 2};
constexpr int kSequenceLength = 8;

// Trains until the set's rank has done its steps; the engine is gone on return.
absl::Status Train(int rank, int steps, CommunicatorSet& set) {
  const std::unique_ptr<Device> device = Device::Cpu();
  CONVENE_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine,
                           Engine::Create({.model = *NamedModel("llama-tiny"),
                                           .layout = kLayout,
                                           .rank = rank,
                                           .sequence_length = kSequenceLength,
                                           .bucket_count_min = 1},
                                          set, *device));
  const std::vector<int32_t> tokens(kSequenceLength, 65);
  for (int step = 1; step <= steps; ++step) {
    CONVENE_RETURN_IF_ERROR(
        TrainStep(*engine, {tokens.data(), tokens.data(), 10}, {.step = step}).status());
  }
  return absl::OkStatus();
}

// The end of a rank that trains longer than its peer, whose connections `closes` or not.
absl::Status LeftAlone(Transport transport, absl::Duration timeout, bool closes) {
  std::vector<CommunicatorSet> sets = testing::MakeSets(transport, kLayout, {.timeout = timeout});
  absl::Status end, end_of_peer;
  {
    Thread peer("peer", [&] {
      end_of_peer = Train(1, 2, sets[1]);
      if (closes) sets[1] = CommunicatorSet();
    });
    end = Train(0, 4, sets[0]);
    peer.Join();
  }
  CHECK_OK(end_of_peer);
  return end;
}

TEST_CASE("a peer that dies between two steps is named by the next one") {
  for (const Transport transport : testing::kTransports) {
    INFO(ToString(transport));
    CHECK_STATUS(LeftAlone(transport, absl::Seconds(60), /*closes=*/true),
                 absl::StatusCode::kUnavailable, "rank 1 (global rank 1)");
  }
}

TEST_CASE("a peer that is silent is named by the reduction that waited for it") {
  for (const Transport transport : testing::kTransports) {
    INFO(ToString(transport));
    const absl::Status end = LeftAlone(transport, absl::Seconds(2), /*closes=*/false);
    CHECK_STATUS(end, absl::StatusCode::kDeadlineExceeded, "dp reduce_scatter #");
    CHECK_STATUS(end, absl::StatusCode::kDeadlineExceeded, "rank 1 (global rank 1)");
  }
}

TEST_CASE("a peer that is done and gone is no error, whoever is first") {
  for (const Transport transport : testing::kTransports) {
    for (int turn = 0; turn < 10; ++turn) {
      std::vector<CommunicatorSet> sets = testing::MakeSets(transport, kLayout);
      std::vector<absl::Status> ends(sets.size());
      std::vector<Thread> ranks;
      for (int rank = 0; rank < kLayout.world_size(); ++rank) {
        ranks.emplace_back("rank", [&, rank] {
          ends[rank] = Train(rank, 2, sets[rank]);
          sets[rank] = CommunicatorSet();
        });
      }
      for (Thread& rank : ranks) rank.Join();
      INFO(ToString(transport));
      for (const absl::Status& end : ends) CHECK_OK(end);
    }
  }
}

}  // namespace
}  // namespace convene::worker
