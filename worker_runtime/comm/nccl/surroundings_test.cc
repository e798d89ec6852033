// The ranks' messages through the store, and NCCL's log.
#include <stdlib.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rendezvous/store/store_client.h"
#include "tools/base/testing/status_testing.h"
#include "worker_runtime/comm/nccl/debug_log.h"
#include "worker_runtime/comm/nccl/peers.h"
#include "worker_runtime/comm/nccl/stall.h"
#include "worker_runtime/comm/nccl/testing/borrowed_store.h"
#include "worker_runtime/comm/testing/memory_store.h"

namespace convene::worker {
namespace {

using testing::OpeningOf;

std::vector<NcclProgress> At(uint64_t sequence) {
  return {{.order = "dp", .started = sequence, .operation = "all_reduce", .size_bytes = 4}};
}

TEST_CASE("ranks that fail together learn what the others did last") {
  testing::MemoryStore store;
  const auto first = NcclPeers::Publish(OpeningOf(store), "epoch/1", 0, At(7));
  const auto second = NcclPeers::Publish(OpeningOf(store), "epoch/1", 1, At(6));
  REQUIRE(first != nullptr);
  REQUIRE(second != nullptr);
  const auto told = first->Ask({0, 1});
  REQUIRE(told.size() == 2);
  CHECK(told.at(0) == At(7));
  CHECK(told.at(1) == At(6));
  CHECK(ExplainStall(At(7).front(), {0, 1}, told) ==
        "rank 1 never started it (its last there: all_reduce #6)");
}

// --reproducible: its sums are of whole numbers (shard/binned_gradients.h).
TEST_CASE("of ranks that add up whole numbers the missing one alone is blamed") {
  testing::MemoryStore store;
  std::vector<NcclProgress> own = At(7);
  own.push_back({.order = "dp gather", .started = 3, .operation = "all_gather", .dtype = "int32"});
  const auto peers = NcclPeers::Publish(OpeningOf(store), "epoch/1", 0, own);
  REQUIRE(peers != nullptr);
  REQUIRE(NcclPeers::Publish(OpeningOf(store), "epoch/1", 1, own) != nullptr);
  CHECK_THAT(ExplainStall(own.front(), {0, 1, 2}, peers->Ask({0, 1, 2})),
             Catch::StartsWith("rank 2 left no word") && !Catch::Contains("rank 1"));
}

TEST_CASE("words that cannot be read are as good as none") {
  testing::MemoryStore store;
  REQUIRE_OK(store.Set("epoch/1/nccl/progress/1", "nonsense"));
  const auto peers = NcclPeers::Publish(OpeningOf(store), "epoch/1", 0, At(7));
  REQUIRE(peers != nullptr);
  CHECK(peers->Ask({1}).empty());
}

TEST_CASE("a rank without a store asks nobody") {
  CHECK(NcclPeers::Publish(nullptr, "epoch/1", 0, At(7)) == nullptr);
  const OpenStore gone =
      [](absl::Duration) -> absl::StatusOr<std::unique_ptr<rendezvous::StoreClient>> {
    return absl::UnavailableError("gone");
  };
  CHECK(NcclPeers::Publish(gone, "epoch/1", 0, At(7)) == nullptr);
}

// One case: the log is kept once in a process.
TEST_CASE("NCCL's log is kept unless the user wants it elsewhere, and nothing stays behind") {
  REQUIRE(setenv("NCCL_DEBUG", "WARN", 1) == 0);
  {
    const NcclDebugLog log;
    CHECK(getenv("NCCL_DEBUG") == std::string("WARN"));
    CHECK(getenv("NCCL_DEBUG_FILE") == nullptr);
    CHECK(log.Read().empty());
  }
  CHECK(getenv("NCCL_DEBUG") == std::string("WARN"));
  REQUIRE(unsetenv("NCCL_DEBUG") == 0);

  std::string path;
  {
    const NcclDebugLog log;
    REQUIRE(getenv("NCCL_DEBUG_FILE") != nullptr);
    path = getenv("NCCL_DEBUG_FILE");
    CHECK(getenv("NCCL_DEBUG") == std::string("INFO"));
    std::ofstream(path) << "as NCCL writes";
    CHECK(log.Read() == "as NCCL writes");
  }
  CHECK_FALSE(std::ifstream(path).good());
  CHECK(getenv("NCCL_DEBUG") == nullptr);
  CHECK(getenv("NCCL_DEBUG_FILE") == nullptr);
  {
    const NcclDebugLog again;
    CHECK(getenv("NCCL_DEBUG") == nullptr);
  }
}

}  // namespace
}  // namespace convene::worker
