// The cases of the layout property test: drawn, written, read and shrunk. No case is trained here.
#include "worker_runtime/trainer/testing/layout_case.h"

#include <catch2/catch.hpp>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "tools/base/testing/status_testing.h"
#include "worker_runtime/model/config.h"
#include "worker_runtime/model/testing/tiny_models.h"

namespace convene::worker {
namespace {

using testing::CaseOfSeed;
using testing::CaseOfText;
using testing::LayoutAxes;
using testing::LayoutAxis;
using testing::LayoutCase;
using testing::LegalLayout;
using testing::TextOf;

constexpr int kDrawn = 1500;

TEST_CASE("each field of a case is an axis of its own") {
  CHECK(LayoutAxes().size() == sizeof(LayoutCase) / sizeof(int));
  std::set<const int*> fields;
  LayoutCase the_case = testing::SimplestCase();
  for (const LayoutAxis& axis : LayoutAxes()) {
    CHECK(fields.insert(&(the_case.*axis.field)).second);
    if (axis.words.empty()) continue;
    INFO(axis.name);
    CHECK(*absl::c_max_element(axis.values) + 1 == static_cast<int>(axis.words.size()));
  }
}

TEST_CASE("every family of the table is drawn") {
  std::vector<std::string> drawn;
  for (const LayoutAxis& axis : LayoutAxes()) {
    if (axis.field == &LayoutCase::family) drawn.assign(axis.words.begin(), axis.words.end());
  }
  CHECK(testing::FamiliesOf(drawn) == testing::FamiliesOf(ModelNames()));
}

TEST_CASE("seeds give legal cases, the same ones each time") {
  for (int seed = 1; seed <= kDrawn; ++seed) {
    const LayoutCase drawn = CaseOfSeed(seed);
    INFO(TextOf(drawn));
    REQUIRE_OK(LegalLayout(drawn));
    if (seed % 100 == 0) CHECK(CaseOfSeed(seed) == drawn);
  }
}

TEST_CASE("a family has the same cases whichever other families there are") {
  std::map<int, uint64_t> numbers;
  for (uint64_t seed = 1; seed <= testing::CheckedSeeds(); ++seed) {
    const LayoutCase drawn = CaseOfSeed(seed);
    CHECK(drawn == testing::CaseOfFamily(drawn.family, numbers[drawn.family]++));
  }
}

// A value that the trainer refuses, or that is drawn too seldom, would be proven nowhere.
TEST_CASE("every check trains every value of every axis, and every two axes of the mesh together") {
  std::map<std::string, int> seen;
  for (uint64_t seed = 1; seed <= testing::CheckedSeeds(); ++seed) {
    const LayoutCase drawn = CaseOfSeed(seed);
    for (const LayoutAxis& axis : LayoutAxes()) {
      ++seen[absl::StrCat(axis.name, "=", drawn.*axis.field)];
      if (axis.kind != LayoutAxis::Kind::kRanks || drawn.*axis.field == 1) continue;
      for (const LayoutAxis& other : LayoutAxes()) {
        if (drawn.*other.field > 1) ++seen[absl::StrCat(axis.name, " x ", other.name)];
      }
    }
  }
  for (const LayoutAxis& axis : LayoutAxes()) {
    for (const int value : axis.values) {
      INFO(axis.name << "=" << value);
      CHECK(seen[absl::StrCat(axis.name, "=", value)] > 0);
    }
    for (const LayoutAxis& other : LayoutAxes()) {
      if (axis.kind != LayoutAxis::Kind::kRanks || other.kind != LayoutAxis::Kind::kRanks) continue;
      INFO(axis.name << " x " << other.name);
      CHECK(seen[absl::StrCat(axis.name, " x ", other.name)] > 0);
    }
  }
}

// No cut of a context refuses a window.
TEST_CASE("every check trains every window, and windows with every cut of a context") {
  std::set<std::string> seen;
  std::set<int> windows;
  for (uint64_t seed = 1; seed <= testing::CheckedSeeds(); ++seed) {
    const LayoutCase drawn = CaseOfSeed(seed);
    if (drawn.cp == 1 || testing::OptionsOf(drawn).model.sliding_window == 0) continue;
    windows.insert(drawn.window);
    const int part = drawn.sequence_length / drawn.cp;
    const char* const width = drawn.window <= part                   ? "in a part"
                              : drawn.window < drawn.sequence_length ? "over parts"
                                                                     : "over the row";
    seen.insert(absl::StrCat(drawn.cp_method, " ", width));
  }
  const auto axis = absl::c_find_if(
      LayoutAxes(), [](const LayoutAxis& a) { return a.field == &LayoutCase::window; });
  CHECK(windows == std::set<int>(axis->values.begin(), axis->values.end()));
  CHECK(seen.size() == 9);
}

TEST_CASE("a case's text says the case") {
  CHECK(TextOf(testing::SimplestCase()).empty());
  for (int seed = 1; seed <= 50; ++seed) {
    const LayoutCase drawn = CaseOfSeed(seed);
    INFO(TextOf(drawn));
    const auto read = CaseOfText(TextOf(drawn));
    REQUIRE_OK(read);
    CHECK(*read == drawn);
  }
  const auto read = CaseOfText("tp=2 schedule=gpipe");
  REQUIRE_OK(read);
  CHECK(read->tp == 2);
  CHECK(TextOf(*read) == "tp=2 schedule=gpipe");
  const auto invalid = absl::StatusCode::kInvalidArgument;
  CHECK_STATUS(CaseOfText("tq=2"), invalid, "'tq' is no axis");
  CHECK_STATUS(CaseOfText("tp=two"), invalid, "'tp=two' has no number");
  CHECK_STATUS(CaseOfText("schedule=2f2b"), invalid, "the words are 1f1b, gpipe");
}

TEST_CASE("one process does the same task, and knows no layout") {
  for (int seed = 1; seed <= 50; ++seed) {
    const LayoutCase drawn = CaseOfSeed(seed);
    const LayoutCase alone = testing::OneProcess(drawn);
    REQUIRE_OK(LegalLayout(alone));
    CHECK(testing::RanksOf(alone) == 1);
    CHECK(alone.micro_batch == drawn.global_batch);
    for (const LayoutAxis& axis : LayoutAxes()) {
      if (axis.kind == LayoutAxis::Kind::kTask) CHECK(alone.*axis.field == drawn.*axis.field);
    }
  }
}

TEST_CASE("a case shrinks to its cause, and what that needs to be legal") {
  int shrunk_cases = 0;
  for (int seed = 1; seed <= kDrawn; ++seed) {
    const auto fails = [](const LayoutCase& c) { return c.tp >= 2 && c.packed == 1; };
    const LayoutCase drawn = CaseOfSeed(seed);
    if (!fails(drawn)) continue;
    ++shrunk_cases;
    const testing::Shrunk shrunk = testing::Shrink(drawn, 1000, fails);
    INFO(TextOf(drawn) << " became " << TextOf(shrunk.smallest));
    CHECK(fails(shrunk.smallest));
    REQUIRE_OK(LegalLayout(shrunk.smallest));
    LayoutCase rest = shrunk.smallest;
    rest.tp = 1;
    rest.packed = 0;
    rest.kv_heads = 1;  // divisible by tp
    rest.queries_a_key = 1;
    rest.ffn = 4;
    rest.vocabulary = 8;
    // Where heads are copied: heads / tp x head_size x hidden comes in blocks of 64.
    rest.hidden = testing::SimplestCase().hidden;
    rest.head_size = testing::SimplestCase().head_size;
    CHECK(rest == testing::SimplestCase());
  }
  CHECK(shrunk_cases > 50);
}

TEST_CASE("shrinking asks no more often than it may") {
  int asked = 0;
  const testing::Shrunk shrunk = testing::Shrink(CaseOfSeed(3), 7, [&](const LayoutCase&) {
    ++asked;
    return false;
  });
  CHECK(asked == 7);
  CHECK(shrunk.runs == 7);
  CHECK(shrunk.smallest == CaseOfSeed(3));
}

}  // namespace
}  // namespace convene::worker
