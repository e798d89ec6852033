#include "worker_runtime/tuning/job_choices.h"

#include <catch2/catch.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tools/base/testing/logged_text.h"
#include "tools/base/testing/manual_clock.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"
#include "tools/base/thread.h"
#include "worker_runtime/comm/testing/memory_store.h"
#include "worker_runtime/tuning/choice_file.h"
#include "worker_runtime/tuning/choice_table.h"

namespace convene::worker {
namespace {

using convene::testing::LoggedText;
using convene::testing::TempDir;
using testing::MemoryStore;

constexpr char kMachine[] = "a GPU";

struct Rank {
  std::string directory;
  bool offers = true;
  std::string machine = kMachine;
};

// All ranks of an attempt, begun at the same time.
std::vector<std::unique_ptr<JobChoices>> Begin(const std::vector<Rank>& ranks,
                                               const std::shared_ptr<MemoryStore>& store,
                                               const std::string& prefix = "epoch/1") {
  std::vector<std::unique_ptr<JobChoices>> all(ranks.size());
  std::vector<Thread> threads;
  for (size_t i = 0; i < ranks.size(); ++i) {
    threads.emplace_back("rank", [&, i] {
      auto begun =
          JobChoices::Start(ranks[i].machine, ChoiceFile(ranks[i].directory, ranks[i].machine),
                            {.rank = static_cast<int>(i),
                             .world_size = static_cast<int>(ranks.size()),
                             .offers = ranks[i].offers,
                             .key_prefix = prefix,
                             .timeout = absl::Seconds(10)},
                            store);
      if (begun.ok()) all[i] = *std::move(begun);
    });
  }
  for (Thread& thread : threads) thread.Join();
  return all;
}

void KeepIn(const std::string& directory, const std::string& product, uint64_t algorithm,
            const std::string& machine = kMachine) {
  ChoiceTable table(machine);
  table.Put(product, algorithm);
  REQUIRE_OK(ChoiceFile(directory, machine).Keep(table));
}

TEST_CASE("a rank that is alone times once, and after a restart knows") {
  const TempDir folder;
  for (const bool is_restart : {false, true}) {
    const LoggedText log;
    ManualClock clock;
    auto choices =
        JobChoices::Start(kMachine, ChoiceFile(folder.path(), kMachine), {}, nullptr, &clock);
    REQUIRE_OK(choices);
    const std::optional<uint64_t> known = (*choices)->Find("product");
    CHECK(known.has_value() == is_restart);
    if (!is_restart) {
      clock.Advance(absl::Milliseconds(250));
      CHECK((*choices)->Land("product", 7) == 7);
    }
    CHECK((*choices)->Find("product") == 7);
    (*choices)->Keep();
    (*choices)->Keep();
    CHECK(log.CountOf(is_restart ? "2 known, 0 timed in 0.00 s; kept in "
                                 : "1 known, 1 timed in 0.25 s; kept in ") == 1);
    CHECK(log.CountOf("algorithms of products") == 1);
  }
}

TEST_CASE("without a file the choices last as long as the process") {
  const LoggedText log;
  auto choices = JobChoices::Start(kMachine, std::nullopt, {}, nullptr);
  REQUIRE_OK(choices);
  (*choices)->Land("product", 7);
  (*choices)->Keep();
  CHECK((*choices)->Find("product") == 7);
  CHECK(log.CountOf("kept nowhere") == 1);
}

TEST_CASE("of ranks that time the same product the first one decides for all") {
  const TempDir a, b;
  const auto store = std::make_shared<MemoryStore>();
  const auto ranks = Begin({{a.path()}, {a.path(), false}, {b.path()}}, store);
  CHECK(ranks[2]->Land("product", 2) == 2);
  CHECK(ranks[0]->Land("product", 1) == 2);
  // This one has not begun to time.
  CHECK(ranks[1]->Find("product") == 2);
  for (const auto& rank : ranks) rank->Keep();
  // Each node begins with the same after a restart, also where it is alone.
  for (const TempDir* node : {&a, &b}) {
    CHECK(ChoiceFile(node->path(), kMachine).Read().Find("product") == 2);
  }
}

TEST_CASE(
    "nodes that have kept different choices begin with those of the lowest rank, and keep them") {
  const TempDir a, b, c;
  KeepIn(a.path(), "product", 1);
  KeepIn(b.path(), "product", 2);
  KeepIn(b.path(), "of b", 3);
  const auto store = std::make_shared<MemoryStore>();
  const auto ranks = Begin({{a.path()}, {b.path()}, {b.path(), false}, {c.path()}}, store);
  for (const auto& rank : ranks) {
    REQUIRE(rank != nullptr);
    CHECK(rank->Find("product") == 1);
    CHECK(rank->Find("of b") == 3);
    rank->Keep();
  }
  for (const TempDir* node : {&a, &b, &c}) {
    const ChoiceTable kept = ChoiceFile(node->path(), kMachine).Read();
    CHECK(kept.Find("product") == 1);
    CHECK(kept.Find("of b") == 3);
  }
}

TEST_CASE("another kind of GPU keeps to its own choices") {
  const TempDir a, b;
  KeepIn(a.path(), "product", 1);
  KeepIn(b.path(), "product", 2, "another GPU");
  const auto store = std::make_shared<MemoryStore>();
  const auto ranks = Begin({{a.path()}, {b.path(), true, "another GPU"}}, store);
  CHECK(ranks[0]->Find("product") == 1);
  CHECK(ranks[1]->Find("product") == 2);
  CHECK(ranks[0]->Land("new", 10) == 10);
  CHECK_FALSE(ranks[1]->Find("new").has_value());
  CHECK(ranks[1]->Land("new", 20) == 20);
}

TEST_CASE("a choice that the library no longer knows is replaced, on every rank alike") {
  const TempDir a;
  KeepIn(a.path(), "product", 1);
  const auto store = std::make_shared<MemoryStore>();
  const auto ranks = Begin({{a.path()}, {a.path(), false}}, store);
  CHECK(ranks[0]->Land("product", 5) == 5);
  CHECK(ranks[1]->Land("product", 6) == 5);
  ranks[0]->Keep();
  CHECK(ChoiceFile(a.path(), kMachine).Read().Find("product") == 5);
}

// A store that is lost at some point.
class LostStore final : public rendezvous::StoreClient {
 public:
  absl::Status Set(const std::string& key, const std::string& value) override {
    return is_lost ? Lost() : store.Set(key, value);
  }
  absl::StatusOr<std::string> Get(const std::string& key, absl::Duration timeout) override {
    if (is_lost) return Lost();
    return store.Get(key, timeout);
  }
  absl::StatusOr<int64_t> Add(const std::string& key, int64_t delta) override {
    if (is_lost) return Lost();
    return store.Add(key, delta);
  }
  absl::Status Wait(const std::vector<std::string>& keys, absl::Duration timeout) override {
    return is_lost ? Lost() : store.Wait(keys, timeout);
  }
  static absl::Status Lost() { return absl::UnavailableError("the store is gone"); }

  MemoryStore store;
  bool is_lost = false;
};

TEST_CASE("a rank whose store is lost goes on with its own choices, and says so once") {
  const LoggedText log;
  const auto store = std::make_shared<LostStore>();
  auto choices = JobChoices::Start(kMachine, std::nullopt, {.key_prefix = "epoch/1"}, store);
  REQUIRE_OK(choices);
  store->is_lost = true;
  CHECK_FALSE((*choices)->Find("product").has_value());
  CHECK((*choices)->Land("product", 4) == 4);
  CHECK((*choices)->Land("another", 5) == 5);
  CHECK(log.CountOf("the job's store no longer carries") == 1);
  store->is_lost = true;
  CHECK_STATUS(JobChoices::Start(kMachine, std::nullopt, {.key_prefix = "epoch/2"}, store),
               absl::StatusCode::kUnavailable, "gone");
}

TEST_CASE("a file that cannot be written ends no training, and is named once") {
  const LoggedText log;
  auto choices = JobChoices::Start(kMachine, ChoiceFile("/proc/none", kMachine), {}, nullptr);
  REQUIRE_OK(choices);
  for (uint64_t i = 1; i < 4; ++i) {
    (*choices)->Land(absl::StrCat("product ", i), i);
    (*choices)->Keep();
  }
  CHECK(log.CountOf("are not kept, and a restart times them anew") == 1);
}

}  // namespace
}  // namespace convene::worker
