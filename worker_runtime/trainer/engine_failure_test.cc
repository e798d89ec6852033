// A peer of a step dies, is silent, or is done and gone, while collectives run beside the
// arithmetic: the words that the other ranks end with.
#include <catch2/catch.hpp>
#include <memory>
#include <vector>

#include "tools/base/status_macros.h"
#include "tools/base/testing/status_testing.h"
#include "worker_runtime/comm/bootstrap.h"
#include "worker_runtime/comm/testing/test_worlds.h"
#include "worker_runtime/testing/places.h"
#include "worker_runtime/trainer/engine.h"
#include "worker_runtime/trainer/testing/small_model.h"
#include "worker_runtime/trainer/testing/train_step.h"

namespace convene::worker {
namespace {

using testing::Transport;

constexpr Layout kLayout = {.dp = 2};
constexpr int kSequenceLength = 8;

// Trains until the rank has done its steps; the engine is gone on return.
absl::Status Train(int rank, int steps, testing::Place& place) {
  CONVENE_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine,
                           Engine::Create({.model = testing::SmallModel(),
                                           .layout = kLayout,
                                           .rank = rank,
                                           .sequence_length = kSequenceLength,
                                           .bucket_count_min = 1,
                                           .collective_memory = place.collective_memory.get()},
                                          place.communicators, *place.device));
  const std::vector<int32_t> tokens(kSequenceLength, 65);
  for (int step = 1; step <= steps; ++step) {
    CONVENE_RETURN_IF_ERROR(
        TrainStep(*engine, {tokens.data(), tokens.data(), 10}, {.step = step}).status());
  }
  return absl::OkStatus();
}

// The end of a rank that trains longer than its peer, whose connections `closes` or not.
absl::Status LeftAlone(Transport transport, absl::Duration timeout, bool closes) {
  const auto places = testing::Places::Make(kLayout, {.transport = transport, .timeout = timeout});
  REQUIRE_OK(places);
  const std::vector<absl::Status> ends = (*places)->OnEveryRank([&](int rank) {
    testing::Place& place = (**places)[rank];
    const absl::Status end = Train(rank, rank == 0 ? 4 : 2, place);
    if (rank == 1 && closes) place.communicators = CommunicatorSet();
    return end;
  });
  CHECK_OK(ends[1]);
  return ends[0];
}

TEST_CASE("a peer that dies between two steps is named by the next one") {
  if (testing::OnGpus()) return;  // NCCL cannot tell it from a silent one
  for (const Transport transport : testing::kTransports) {
    INFO(ToString(transport));
    CHECK_STATUS(LeftAlone(transport, absl::Seconds(60), /*closes=*/true),
                 absl::StatusCode::kUnavailable, "rank 1 (global rank 1)");
  }
}

TEST_CASE("a peer that is silent is named by the reduction that waited for it", "[once]") {
  if (!testing::HasPlacesOrSkips(kLayout.world_size())) return;
  for (const Transport transport : testing::TestedTransports()) {
    INFO(ToString(transport));
    const bool is_nccl = transport == Transport::kNccl;
    const absl::Status end =
        LeftAlone(transport, absl::Seconds(is_nccl ? 10 : 2), /*closes=*/false);
    CHECK_STATUS(end, absl::StatusCode::kDeadlineExceeded, "dp reduce_scatter #");
    // These ranks have no store in which NCCL's watchdog could look for the peer's word.
    CHECK_STATUS(end, absl::StatusCode::kDeadlineExceeded,
                 is_nccl ? "did not complete within 10s" : "rank 1 (global rank 1)");
  }
}

TEST_CASE("a peer that is done and gone is no error, whoever is first") {
  if (testing::OnGpus()) return;  // there a rank hears nothing of a peer that is gone
  for (const Transport transport : testing::kTransports) {
    for (int turn = 0; turn < 10; ++turn) {
      const auto places = testing::Places::Make(kLayout, {.transport = transport});
      REQUIRE_OK(places);
      const std::vector<absl::Status> ends = (*places)->OnEveryRank([&](int rank) {
        testing::Place& place = (**places)[rank];
        const absl::Status end = Train(rank, 2, place);
        place.communicators = CommunicatorSet();
        return end;
      });
      INFO(ToString(transport));
      for (const absl::Status& end : ends) CHECK_OK(end);
    }
  }
}

}  // namespace
}  // namespace convene::worker
