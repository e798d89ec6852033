// Agents that came and went leave nothing behind.
#include <malloc.h>

#include <catch2/catch.hpp>
#include <cstddef>

#include "rendezvous/bench/bench_agents.h"
#include "rendezvous/server/server.h"
#include "tools/base/testing/status_testing.h"

namespace convene::rendezvous {
namespace {

constexpr int kAgents = 100;
constexpr int kFirstWaves = 2;
constexpr int kWaves = 14;
// The threads' caches may hold this much more than before; less than 100 bytes for each agent.
constexpr size_t kNoiseBytes = 128 * 1024;

// Both sides' heap is this process's. 0 under a sanitizer, whose leak check does this work.
size_t HeapInUse() { return mallinfo2().uordblks; }

void JoinAndFinish(int port) {
  BenchAgents agents(port, kAgents);
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
  // gRPC clears away behind the streams' ends: a wave more gives it time, and a leak more bytes.
  for (int wave = 0; wave < kWaves && HeapInUse() > before + kNoiseBytes; ++wave) {
    JoinAndFinish((*server)->port());
  }
  CHECK(HeapInUse() <= before + kNoiseBytes);
}

}  // namespace
}  // namespace convene::rendezvous
