#include "agent/warm/warm_plan.h"

#include <catch2/catch.hpp>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "tools/base/clock.h"

namespace convene::agent {
namespace {

using Deed = WarmPlan::Deed;
using Words = std::vector<std::string>;

const MonotonicTime kStart = MonotonicTime::FromEpoch(absl::Seconds(100));

// A plan whose parent has imported what was recorded.
WarmPlan WarmOne(int count) {
  WarmPlan plan(count);
  plan.Recorded();
  CHECK(plan.Next(kStart) == Deed::kStartParent);
  plan.ParentConnected();
  CHECK(plan.Next(kStart) == Deed::kImport);
  CHECK(plan.Next(kStart) == Deed::kNone);
  plan.Warm(kStart);
  return plan;
}

TEST_CASE("convene-train can be warm, and Python where it looks at PYTHONPATH and has a script") {
  struct Row {
    Words command;
    std::string refusal;  // a part of it; "": none
  };
  const std::vector<Row> rows = {
      {{"/opt/convene/bin/convene-train", "-I"}, ""},
      {{"convene-train"}, ""},
      {{"my-convene-train"}, "neither convene-train"},
      {{"python3", "-u", "train.py", "-I"}, ""},
      {{"/opt/venv/bin/python3.11", "-u", "-m", "package.train"}, ""},
      {{"python", "-X", "dev", "-W", "error", "train.py"}, ""},
      {{"python", "-Werror", "-um", "package"}, ""},
      {{"python", "-c", "import train"}, ""},
      {{"python", "-uE", "train.py"}, "option -E"},
      {{"python", "-I", "train.py"}, "option -I"},
      {{"python", "-XS", "-S", "train.py"}, "option -S"},
      {{"python", "-"}, "from stdin"},
      {{"python", "-X", "train.py"}, "from stdin"},
      {{"python"}, "from stdin"},
      {{"/bin/sleep", "1"}, "/bin/sleep, which is neither convene-train nor Python"},
      {{"python3-config", "x"}, "nor Python itself"},
      {{"accelerate", "launch", "train.py"}, "nor Python itself"},
  };
  for (const Row& row : rows) {
    const std::string refusal = WarmRefusal(row.command);
    CAPTURE(refusal, row.refusal, row.command.back());
    CHECK(refusal.empty() == row.refusal.empty());
    CHECK(refusal.find(row.refusal) != std::string::npos);
  }
}

TEST_CASE("where an OpenMP library binds threads, workers with CPUs of their own are no forks") {
  CHECK(BindingRefusal({}).empty());
  CHECK(BindingRefusal({{"OMP_NUM_THREADS", "4"}, {"OMP_PLACES", ""}}).empty());
  for (const char* name : {"OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY"}) {
    CHECK(BindingRefusal({{name, "close"}}).find(name) == 0);
  }
  // It turns the others off.
  CHECK(BindingRefusal({{"OMP_PROC_BIND", "False"}, {"OMP_PLACES", "cores"}}).empty());
}

TEST_CASE("the parent of spares has no rank, and knows the workers' own PYTHONPATH") {
  const Words environment = {"HOME=/h", "MASTER_PORT=1", "PYTHONPATH=/a:/b",
                             "RANK=3",  "RANKING=x",     "WORLD_SIZE=4"};
  CHECK(ParentEnvironment("/bin/python3", environment, PlaceVariables(false), "/run/w/socket") ==
        Words{"HOME=/h", "RANKING=x", "PYTHONPATH=/run/w:/a:/b",
              "CONVENE_WARM=parent:/run/w/socket::/a:/b"});
  CHECK(RecorderEnvironment("python", {"RANK=0"}, "/run/w/socket") ==
        Words{"RANK=0", "PYTHONPATH=/run/w", "CONVENE_WARM=record:/run/w/socket:"});
  // An empty PYTHONPATH stays one, and puts no current directory into the path.
  CHECK(RecorderEnvironment("python", {"PYTHONPATH="}, "/run/w/socket") ==
        Words{"PYTHONPATH=/run/w", "CONVENE_WARM=record:/run/w/socket::"});
}

TEST_CASE("the trainer is told its role and the socket, and keeps its PYTHONPATH") {
  CHECK(ParentEnvironment("/b/convene-train", {"PYTHONPATH=/a", "RANK=3", "LOCAL_RANK=1"},
                          PlaceVariables(false), "/run/w/socket") ==
        Words{"PYTHONPATH=/a", "CONVENE_WARM=parent:/run/w/socket:"});
  CHECK(RecorderEnvironment("convene-train", {"RANK=0"}, "/run/w/socket") ==
        Words{"RANK=0", "CONVENE_WARM=record:/run/w/socket:"});
}

TEST_CASE("a spare is told its place on the node and its device, and nothing of a rank") {
  CHECK(SlotVariables({"HOME=/h", "RANK=5", "LOCAL_RANK=0", "LOCAL_RANKS=x", "CONVENE_LOCAL_RANK=1",
                       "LOCAL_WORLD_SIZE=2", "CUDA_VISIBLE_DEVICES=3,4", "MASTER_PORT=1",
                       "HIP_VISIBLE_DEVICES="}) == Words{"LOCAL_RANK=0", "CONVENE_LOCAL_RANK=1",
                                                         "CUDA_VISIBLE_DEVICES=3,4",
                                                         "HIP_VISIBLE_DEVICES="});
}

TEST_CASE("devices belong to a worker's place where each worker has its own") {
  CHECK(PlaceVariables(true).count("CUDA_VISIBLE_DEVICES") == 1);
  CHECK(PlaceVariables(false).count("CUDA_VISIBLE_DEVICES") == 0);
}

TEST_CASE("nothing is warm before a worker has told what it imports") {
  WarmPlan plan(2);
  CHECK(plan.wants_record());
  CHECK(plan.Next(kStart) == Deed::kNone);
  CHECK(plan.deadline() == MonotonicTime::InfiniteFuture());
}

TEST_CASE("as many spares are forked as are wanted, and those used are replaced later") {
  WarmPlan plan = WarmOne(2);
  CHECK(plan.Next(kStart) == Deed::kFork);
  CHECK(plan.Next(kStart) == Deed::kFork);
  CHECK(plan.Next(kStart) == Deed::kNone);
  CHECK(plan.deadline() == MonotonicTime::InfiniteFuture());
  plan.Used(kStart);
  CHECK(plan.Next(kStart) == Deed::kNone);
  CHECK(plan.deadline() == kStart + WarmPlan::kRefillDelay);
  CHECK(plan.Next(plan.deadline()) == Deed::kFork);
  CHECK(plan.Next(plan.deadline()) == Deed::kNone);
}

TEST_CASE("a spare that the agent ends unused is replaced at once") {
  WarmPlan plan = WarmOne(1);
  CHECK(plan.Next(kStart) == Deed::kFork);
  plan.SpareEnded();
  CHECK(plan.Next(kStart) == Deed::kFork);
}

TEST_CASE("a record that grows is imported by the parent at hand") {
  WarmPlan plan = WarmOne(1);
  plan.Recorded();
  CHECK(plan.Next(kStart) == Deed::kImport);
  CHECK(plan.Next(kStart) == Deed::kNone);
  plan.Warm(kStart);
  CHECK(plan.Next(kStart) == Deed::kFork);
}

TEST_CASE("an answer to an older record makes no spares") {
  WarmPlan plan = WarmOne(1);
  plan.Recorded();
  plan.Warm(kStart);
  CHECK(plan.Next(kStart) == Deed::kImport);
  CHECK(plan.Next(kStart) == Deed::kNone);
}

TEST_CASE("a parent that ends is replaced; its spares live on") {
  WarmPlan plan = WarmOne(1);
  CHECK(plan.Next(kStart) == Deed::kFork);
  plan.ParentEnded();
  CHECK(plan.Next(kStart) == Deed::kStartParent);
  plan.ParentConnected();
  CHECK(plan.Next(kStart) == Deed::kImport);
  plan.Warm(kStart);
  CHECK(plan.Next(kStart) == Deed::kNone);
}

TEST_CASE("a parent that tells what else to leave out has not failed, up to a bound") {
  WarmPlan plan(1);
  plan.Recorded();
  for (size_t i = 0; i < WarmPlan::kMostLeftOut; ++i) {
    REQUIRE(plan.Next(kStart) == Deed::kStartParent);
    plan.LeaveOut(absl::StrCat("module", i));
    plan.ParentEnded();
  }
  for (int i = 0; i <= WarmPlan::kMostFailures; ++i) {
    REQUIRE(plan.Next(kStart) == Deed::kStartParent);
    plan.LeaveOut(absl::StrCat("one more", i));
    plan.ParentEnded();
  }
  CHECK(plan.is_off());
}

TEST_CASE("after too many parents that ended there are no more") {
  WarmPlan plan(1);
  plan.LeaveOut("torch");  // An earlier run has told so: no parent of this run has.
  plan.Recorded();
  for (int i = 0; i < WarmPlan::kMostFailures; ++i) {
    CHECK(plan.Next(kStart) == Deed::kStartParent);
    if (i % 2 == 0) plan.LeaveOut("torch");
    plan.ParentEnded();
  }
  CHECK(plan.Next(kStart) == Deed::kStartParent);
  plan.ParentEnded();
  CHECK(plan.is_off());
  CHECK_FALSE(plan.wants_record());
  plan.Recorded();
  CHECK(plan.Next(kStart) == Deed::kNone);
}

TEST_CASE("spares are for the ranks that can be warm, one after the other") {
  using Slots = std::vector<int>;
  CHECK(SpareSlots(2, 4, std::nullopt) == Slots{0, 1});
  CHECK(SpareSlots(5, 3, std::nullopt) == Slots{0, 1, 2, 0, 1});
  CHECK(SpareSlots(1, 2, 0) == Slots{1});
  CHECK(SpareSlots(3, 4, 1) == Slots{0, 2, 3});
  CHECK(SpareSlots(1, 1, 0).empty());
}

TEST_CASE("after a spare has died the next one is not forked at once, and not for ever") {
  WarmPlan plan = WarmOne(2);
  MonotonicTime now = kStart;
  CHECK(plan.Next(now) == Deed::kFork);
  CHECK(plan.Next(now) == Deed::kFork);
  for (int round = 0; round <= WarmPlan::kMostFailures; ++round) {
    CHECK_FALSE(plan.is_off());
    plan.SpareDied(now);
    plan.SpareDied(now);  // of the same round
    if (plan.is_off()) break;
    CHECK(plan.Next(now) == Deed::kNone);
    CHECK(plan.deadline() == now + WarmPlan::kRefillDelay * (round + 1));
    now = plan.deadline();
    CHECK(plan.Next(now) == Deed::kFork);
    CHECK(plan.Next(now) == Deed::kFork);
  }
  CHECK(plan.is_off());
  CHECK(plan.Next(now + absl::Hours(1)) == Deed::kNone);
}

TEST_CASE("a parent that becomes warm ends no pause after a spare's death") {
  WarmPlan plan = WarmOne(1);
  CHECK(plan.Next(kStart) == Deed::kFork);
  plan.SpareDied(kStart);
  plan.ParentEnded();
  CHECK(plan.Next(kStart) == Deed::kStartParent);
  plan.ParentConnected();
  CHECK(plan.Next(kStart) == Deed::kImport);
  plan.Warm(kStart);
  CHECK(plan.Next(kStart) == Deed::kNone);
  CHECK(plan.deadline() == kStart + WarmPlan::kRefillDelay);
}

TEST_CASE("the count of parents that ended begins anew when spares are used") {
  WarmPlan plan(1);
  plan.Recorded();
  for (int i = 0; i < 3 * WarmPlan::kMostFailures; ++i) {
    CHECK(plan.Next(kStart) == Deed::kStartParent);
    plan.ParentConnected();
    CHECK(plan.Next(kStart) == Deed::kImport);
    plan.Warm(kStart);
    CHECK(plan.Next(kStart + WarmPlan::kRefillDelay) == Deed::kFork);
    plan.Used(kStart);
    plan.ParentEnded();
  }
}

TEST_CASE("a parent that takes too long is ended, once") {
  WarmPlan plan(1);
  plan.Recorded();
  CHECK(plan.Next(kStart) == Deed::kStartParent);
  CHECK(plan.deadline() == kStart + WarmPlan::kWarmLimit);
  CHECK(plan.Next(plan.deadline()) == Deed::kEndParent);
  CHECK(plan.Next(kStart + 2 * WarmPlan::kWarmLimit) == Deed::kNone);
  plan.ParentEnded();
  CHECK(plan.Next(kStart) == Deed::kStartParent);
}

TEST_CASE("after a change the next cold worker records, and what was left out counts no more") {
  WarmPlan plan = WarmOne(1);
  plan.LeaveOut("torch");
  plan.Changed();
  CHECK(plan.wants_record());
  CHECK(plan.left_out().empty());
  plan.Recorded();
  CHECK(plan.Next(kStart) == Deed::kNone);  // The old parent is there yet.
  plan.ParentEnded();
  CHECK(plan.Next(kStart) == Deed::kStartParent);
}

TEST_CASE("the first start waits for all spares where an earlier run has kept a record") {
  WarmPlan plan(2);
  CHECK_FALSE(plan.HoldsStart(0, kStart));
  const MonotonicTime start_by = kStart + absl::Minutes(2);
  plan.Kept(start_by);
  CHECK(plan.HoldsStart(0, kStart));
  CHECK(plan.Next(kStart) == Deed::kStartParent);
  CHECK(plan.deadline() == start_by);
  plan.ParentConnected();
  CHECK(plan.Next(kStart) == Deed::kImport);
  plan.Warm(kStart);
  CHECK(plan.HoldsStart(1, kStart));
  CHECK_FALSE(plan.HoldsStart(2, kStart));
  plan.StartBegins();
  CHECK_FALSE(plan.HoldsStart(0, kStart));
  CHECK_FALSE(plan.wants_record());
}

TEST_CASE("the first start waits through a parent's end, but not for ever") {
  WarmPlan plan(1);
  plan.Kept(kStart + absl::Minutes(2));
  CHECK(plan.Next(kStart) == Deed::kStartParent);
  plan.ParentEnded();
  CHECK(plan.HoldsStart(0, kStart));
  CHECK(plan.Next(kStart) == Deed::kStartParent);
  CHECK(plan.deadline() == kStart + absl::Minutes(2));
  CHECK_FALSE(plan.HoldsStart(0, plan.deadline()));
  plan.StartBegins();
  CHECK(plan.deadline() == kStart + WarmPlan::kWarmLimit);
}

TEST_CASE("the first start does not wait for what cannot come") {
  WarmPlan changed(1);
  changed.Kept(kStart + absl::Minutes(2));
  changed.Changed();
  CHECK_FALSE(changed.HoldsStart(0, kStart));
  CHECK(changed.wants_record());
  WarmPlan ended(1);
  ended.Kept(kStart + absl::Minutes(2));
  while (ended.Next(kStart) == Deed::kStartParent) ended.ParentEnded();
  CHECK(ended.is_off());
  CHECK_FALSE(ended.HoldsStart(0, kStart));
}

}  // namespace
}  // namespace convene::agent
