// Agents that came and went leave no memory behind.
#include <malloc.h>

#include <catch2/catch.hpp>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "rendezvous/bench/bench_agents.h"
#include "rendezvous/server/server.h"
#include "tools/base/testing/status_testing.h"

namespace convene::rendezvous {
namespace {

constexpr int kAgents = 100;
constexpr int kFirstWaves = 2;
constexpr int kWaves = 14;
// The bytes that the threads' caches may hold more than before; less than 100 for each agent.
constexpr size_t kNoiseBytes = 128 * 1024;

// Both sides' heap is this process's. 0 under a sanitizer, whose leak check does this work.
size_t HeapInUse() { return mallinfo2().uordblks; }

void JoinAndFinish(int port) {
  BenchAgents agents(absl::StrCat("127.0.0.1:", port), kAgents);
  REQUIRE(agents.Join());
  REQUIRE(agents.Finish());
  CHECK(agents.lost() == 0);
}

TEST_CASE("waves of agents leave the heap as it was") {
  Server::Options options;
  options.host = "127.0.0.1";
  options.quiet = true;
  const auto server = Server::Start(options);
  REQUIRE_OK(server);
  for (int wave = 0; wave < kFirstWaves; ++wave) JoinAndFinish((*server)->port());
  const size_t before = HeapInUse();
  for (int wave = 0; wave < kWaves; ++wave) JoinAndFinish((*server)->port());
  // gRPC frees memory some time after a stream's end: one more wave gives it time, and makes a leak
  // larger.
  for (int wave = 0; wave < kWaves && HeapInUse() > before + kNoiseBytes; ++wave) {
    JoinAndFinish((*server)->port());
  }
  CHECK(HeapInUse() <= before + kNoiseBytes);
}

}  // namespace
}  // namespace convene::rendezvous
