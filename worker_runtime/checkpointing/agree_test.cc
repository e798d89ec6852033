#include "worker_runtime/checkpointing/agree.h"

#include <string>
#include <vector>

#include "tools/base/testing/status_testing.h"
#include "tools/base/thread.h"
#include "worker_runtime/comm/testing/loopback.h"

namespace convene::worker {
namespace {

std::vector<absl::Status> AgreeOn(const std::vector<absl::Status>& statuses) {
  const LoopbackWorld world(static_cast<int>(statuses.size()));
  std::vector<int> ranks;
  for (size_t rank = 0; rank < statuses.size(); ++rank) ranks.push_back(static_cast<int>(rank));
  const auto group = world.Group(ranks, "world");
  std::vector<absl::Status> agreed(statuses.size());
  std::vector<Thread> threads;
  for (size_t rank = 0; rank < statuses.size(); ++rank) {
    threads.emplace_back("rank", [&, rank] {
      Stream stream = Stream::Cpu();
      agreed[rank] = Agree(statuses[rank], "count to ten", *group[rank], stream);
    });
  }
  for (Thread& thread : threads) thread.Join();
  return agreed;
}

TEST_CASE("when all are well all are told so") {
  for (const absl::Status& status : AgreeOn({absl::OkStatus(), absl::OkStatus()})) CHECK_OK(status);
}

TEST_CASE("one rank's error is everybody's, with its code and its words") {
  const auto agreed = AgreeOn(
      {absl::OkStatus(), absl::OkStatus(), absl::NotFoundError("ten: \xc3\xa9 is missing")});
  for (const int rank : {0, 1}) {
    CHECK(agreed[rank] ==
          absl::NotFoundError("rank 2 could not count to ten: ten: \xc3\xa9 is missing"));
  }
  CHECK(agreed[2] == absl::NotFoundError("ten: \xc3\xa9 is missing"));
}

TEST_CASE("of several errors the lowest rank's counts, but no damage before another error") {
  auto agreed = AgreeOn({absl::OkStatus(), absl::DataLossError("one"), absl::DataLossError("two")});
  CHECK_STATUS(agreed[0], absl::StatusCode::kDataLoss, "rank 1 could not count to ten: one");
  CHECK(agreed[2] == absl::DataLossError("two"));
  agreed = AgreeOn({absl::DataLossError("zero"), absl::OkStatus(), absl::NotFoundError("two")});
  for (const int rank : {0, 1}) {
    CHECK_STATUS(agreed[rank], absl::StatusCode::kNotFound, "rank 2 could not count to ten: two");
  }
}

TEST_CASE("long words are cut") {
  const auto agreed = AgreeOn({absl::InternalError(std::string(5000, 'x')), absl::OkStatus()});
  CHECK(agreed[1] ==
        absl::InternalError("rank 0 could not count to ten: " + std::string(1000, 'x')));
}

}  // namespace
}  // namespace convene::worker
