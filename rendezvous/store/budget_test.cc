#include "rendezvous/store/budget.h"

#include <utility>
#include <vector>

#include "tools/base/testing/status_testing.h"
#include "tools/base/thread.h"

namespace convene::rendezvous {
namespace {

constexpr size_t kMax = size_t{400} << 20;
constexpr size_t kMiB = size_t{1} << 20;

// All charges of `bytes` each that `run` can take.
std::vector<Budget::Charge> TakeAll(Budget* budget, absl::string_view run, size_t bytes) {
  std::vector<Budget::Charge> charges;
  while (true) {
    auto charge = budget->Take(run, bytes);
    if (!charge.ok()) return charges;
    charges.push_back(*std::move(charge));
  }
}

TEST_CASE("a run gets half of what is free, the next one half of the rest, and so on") {
  Budget budget(kMax);
  const auto a = TakeAll(&budget, "a", kMiB);
  CHECK(a.size() == 150);  // of 300 MiB for large charges
  const auto b = TakeAll(&budget, "b", kMiB);
  CHECK(b.size() == 75);
  const auto c = TakeAll(&budget, "c", kMiB);
  CHECK(c.size() == 37);
  CHECK_STATUS(budget.Take("a", kMiB), absl::StatusCode::kResourceExhausted,
               "no room for 1.0 MiB more of \"a\", which hold 150 MiB in large values");
}

TEST_CASE("large charges leave the small ones their room, in every run") {
  Budget budget(kMax);
  const auto large = TakeAll(&budget, "a", kMiB);
  CHECK_OK(budget.Take("a", 100));
  CHECK_OK(budget.Take("b", Budget::kSmallBytes));
  const auto small = TakeAll(&budget, "a", Budget::kSmallBytes);
  CHECK(small.size() * Budget::kSmallBytes <= kMax / 8);
  CHECK(small.size() * Budget::kSmallBytes > kMax / 8 - kMiB);
  CHECK_OK(budget.Take("b", kMiB));
  CHECK(budget.bytes() <= kMax);
}

TEST_CASE("a charge that grows moves to the large ones; shrinking is always right") {
  Budget budget(kMax);
  Budget::Charge charge = budget.Open("a");
  REQUIRE_OK(charge.Resize(100));
  REQUIRE_OK(charge.Resize(kMiB));
  CHECK_STATUS(charge.Resize(kMax), absl::StatusCode::kResourceExhausted, "--store-memory");
  CHECK(charge.bytes() == kMiB);
  // A full part does not refuse less, and a charge that was large does not fill the small part.
  const auto rest = TakeAll(&budget, "a", kMiB);
  const auto small = TakeAll(&budget, "a", Budget::kSmallBytes);
  REQUIRE_OK(charge.Resize(100));
  CHECK_STATUS(budget.Take("a", Budget::kSmallBytes), absl::StatusCode::kResourceExhausted,
               "in small values");
  CHECK_OK(budget.Take("a", kMiB - 100));
}

TEST_CASE("nothing is left of charges that ended, on whatever thread") {
  Budget budget(kMax);
  {
    auto first = budget.Take("a", 1000);
    auto second = budget.Take("a", kMiB);
    REQUIRE_OK(first);
    REQUIRE_OK(second);
    CHECK(budget.Holds("a"));
    CHECK(budget.bytes() > kMiB + 1000);  // the run's own record counts
    Budget::Charge moved = *std::move(first);
    moved = *std::move(second);  // ends the first
    CHECK(budget.bytes() < kMiB + 1000);
    auto thread = Thread::Start("ends", [&moved] { moved = Budget::Charge(); });
    REQUIRE_OK(thread);
    thread->Join();
  }
  CHECK(budget.bytes() == 0);
  CHECK_FALSE(budget.Holds("a"));
}

TEST_CASE("the largest runs are named, and refusals are counted") {
  Budget budget(kMax);
  const auto a = budget.Take("a", 10000);
  const auto b = budget.Take("b", kMiB);
  const auto c = budget.Take("c", 100);
  const Budget::Charge none = budget.Open("none");
  CHECK_FALSE(budget.Take("c", kMax).ok());
  const Budget::Counts counts = budget.counts(2);
  REQUIRE(counts.largest.size() == 2);
  CHECK(counts.largest[0].run == "b");
  CHECK(counts.largest[1].run == "a");
  CHECK(counts.refusals == 1);
  CHECK(counts.bytes == budget.bytes());
  CHECK(counts.bytes_max == kMax);
  CHECK(budget.counts(9).largest.size() == 3);
}

}  // namespace
}  // namespace convene::rendezvous
