// Worlds that once broke, then worlds from seeds until enough has happened: half of it in the
// worlds of the same seeds in each run, half in worlds of new seeds. CONVENE_SIM_SEED runs the
// world of one seed alone. With CONVENE_SIM_SECONDS the new worlds go on for so long.
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <limits>
#include <stdexcept>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "tests/sim/simulation.h"
#include "tests/sim/world.h"
#include "tools/base/clock.h"
#include "tools/base/random.h"

namespace convene::sim {
namespace {

// Sanitizers cost a factor of ten.
#ifdef CONVENE_SANITIZER
constexpr int64_t kEvents = 100'000;
#else
constexpr int64_t kEvents = 1'000'000;
#endif

// Seeds of worlds in which a promise was broken once, beyond the worlds that each run has anyway.
constexpr int64_t kOnceBroken[] = {282, 3415, 224446738, 609831692, 991454652};

// The test kills no machine, so the journal's disk may be memory.
[[maybe_unused]] const bool kInMemory =
    access("/dev/shm", W_OK) == 0 && setenv("TEST_TMPDIR", "/dev/shm", /*overwrite=*/1) == 0;

int64_t NumberFromEnvironment(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  int64_t number = otherwise;
  if (text != nullptr) REQUIRE(absl::SimpleAtoi(text, &number));
  return number;
}

// Runs the world; returns the broken promise, "" without one.
std::string Live(Simulation* simulation, bool has_standbys) {
  try {
    World(simulation, has_standbys).Run();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

// The worlds of `seed` and those after it, until `enough` has happened or the time is over.
void LiveFrom(int64_t seed, int64_t enough, absl::Duration limit, bool has_standbys) {
  const MonotonicTime begin = Clock::Real().Now();
  const MonotonicTime end = begin + limit;
  int64_t events = 0;
  int64_t worlds = 0;
  for (; events < enough && Clock::Real().Now() < end; ++seed, ++worlds) {
    const std::string name =
        absl::StrCat(has_standbys ? "CONVENE_SIM_STANDBYS=1 " : "", "CONVENE_SIM_SEED=", seed);
    INFO("in the world of " << name);  // For a crash, or a signal to one that hangs.
    Simulation simulation(static_cast<uint64_t>(seed), /*traced=*/false);
    const std::string broken = Live(&simulation, has_standbys);
    events += simulation.event_count();
    if (broken.empty()) continue;
    // The same world again, with its memory on.
    Simulation again(static_cast<uint64_t>(seed), /*traced=*/true);
    Live(&again, has_standbys);
    FAIL(name << ": " << broken << "\nafter " << absl::StrJoin(again.trace(), "\n      ") << "\n"
              << broken);
  }
  const double seconds = absl::ToDoubleSeconds(Clock::Real().Now() - begin);
  std::cout << absl::StrCat(events, " events in ", worlds,
                            " worlds: ", static_cast<int64_t>(events / seconds), " events/s\n");
}

// `share`: of the events, and of the time.
void LiveThrough(bool has_standbys, double share) {
  const auto enough = static_cast<int64_t>(kEvents * share / 2);
  const int64_t only = NumberFromEnvironment("CONVENE_SIM_SEED", 0);
  if (only > 0) {
    if (has_standbys != (NumberFromEnvironment("CONVENE_SIM_STANDBYS", 0) > 0)) return;
    return LiveFrom(only, 1, absl::InfiniteDuration(), has_standbys);
  }
  LiveFrom(1, enough, absl::InfiniteDuration(), has_standbys);
  const int64_t fresh = 1'000'000 + static_cast<int64_t>(RandomU64() % 1'000'000'000);
  std::cout << "worlds that no run before has seen, from CONVENE_SIM_SEED=" << fresh << " on"
            << std::endl;
  const int64_t seconds = NumberFromEnvironment("CONVENE_SIM_SECONDS", 0);
  LiveFrom(fresh, seconds > 0 ? std::numeric_limits<int64_t>::max() : enough,
           seconds > 0 ? absl::Seconds(seconds) * share : absl::InfiniteDuration(), has_standbys);
}

TEST_CASE("whatever breaks, the promises hold, and every agent gets its answer in the end") {
  if (std::getenv("CONVENE_SIM_SEED") == nullptr) {
    for (const int64_t seed : kOnceBroken) LiveFrom(seed, 1, absl::InfiniteDuration(), false);
  }
  LiveThrough(/*has_standbys=*/false, 0.7);
}

TEST_CASE("whichever of several daemons is lost, the promises hold") {
  LiveThrough(/*has_standbys=*/true, 0.3);
}

}  // namespace
}  // namespace convene::sim
