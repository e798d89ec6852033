// Why messages never wait in a circle (nccl_collective.h), played through: the real executor's
// calls as queues of a GPU, where a message lasts until its receiver takes it.
#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/base/testing/status_testing.h"
#include "worker_runtime/comm/collective.h"
#include "worker_runtime/comm/nccl/limits.h"
#include "worker_runtime/comm/testing/messages_only.h"
#include "worker_runtime/device/elements.h"
#include "worker_runtime/device/stream.h"
#include "worker_runtime/pipeline/executor.h"
#include "worker_runtime/schedule/generators.h"
#include "worker_runtime/schedule/lower.h"

namespace convene::worker {
namespace {

// One thing in a queue of a rank.
struct Item {
  std::vector<int> after;  // items of the same rank
  // A message: its number among those from one rank to another; it is over when both ends are
  // ready.
  int from = -1;
  int to = -1;
  int number = 0;
};

// The queues that messages of a rank are in.
enum class Lanes {
  kOne,
  kUpAndDown,  // to and from higher ranks, by the message's direction
  kOfPairs,    // one for each ordered pair of ranks, as in NcclCollective
};

// Records what the executor asks of one rank: arithmetic in one queue, messages in lanes.
class QueueingRank final : public testing::MessagesOnly, public PipelineStage {
 public:
  QueueingRank(int rank, int size, Lanes lanes, bool loads_lazily)
      : MessagesOnly(rank, size), kind_(lanes), loads_lazily_(loads_lazily) {}

  const std::vector<Item>& items() const { return items_; }

  // Arithmetic; it is one item.
  absl::Status Run(const StagePass& pass, Stream&) override {
    // The first pass of a kind has new kernels, and so has the second, which adds to gradients.
    const bool is_new = runs_[{pass.compute.kind, pass.compute.chunk}]++ < 2;
    Item item = {.after = compute_};
    if (loads_lazily_ && is_new) {
      for (int before = 0; before < static_cast<int>(items_.size()); ++before) {
        item.after.push_back(before);
      }
    }
    items_.push_back(std::move(item));
    compute_ = {Last()};
    return absl::OkStatus();
  }
  Elements activation(int) override { return {}; }
  Elements gradient(int) override { return {}; }

  absl::StatusOr<PendingMessage> Send(ConstElements, int peer, Stream&) override {
    return PendingMessage{.id = static_cast<uint64_t>(AddMessage(rank(), peer)) + 1};
  }
  absl::Status Wait(PendingMessage pending, Stream&) override {
    compute_.push_back(static_cast<int>(pending.id) - 1);
    return absl::OkStatus();
  }
  absl::StatusOr<PendingMessage> StartRecv(Elements, int peer, Stream&) override {
    return PendingMessage{.id = static_cast<uint64_t>(AddMessage(peer, rank())) + 1};
  }

 private:
  int AddMessage(int from, int to) {
    std::vector<int>& lane = kind_ == Lanes::kOfPairs ? lanes_[{from, to}]
                             : kind_ == Lanes::kOne   ? lanes_[{}]
                                                      : lanes_[{to < from, 0}];
    Item item = {.after = compute_, .from = from, .to = to, .number = numbers_[{from, to}]++};
    item.after.insert(item.after.end(), lane.begin(), lane.end());
    items_.push_back(std::move(item));
    lane = {Last()};
    return Last();
  }

  int Last() const { return static_cast<int>(items_.size()) - 1; }

  const Lanes kind_;
  const bool loads_lazily_;
  std::map<std::pair<ComputeKind, int>, int> runs_;  // by kind and chunk
  std::vector<Item> items_;
  std::vector<int> compute_;                               // what arithmetic waits for
  std::map<std::pair<int, int>, std::vector<int>> lanes_;  // the last item of each
  std::map<std::pair<int, int>, int> numbers_;
};

// Whether every queue of every rank runs dry. A message's end holds one of its rank's `rooms` from
// its start on, until the message is over. `loads_lazily`: a pass with new kernels waits until all
// that its rank has queued is done, as CUDA's lazy loading may.
bool AllComeToAnEnd(const Schedule& schedule, Lanes lanes, int rooms, int receives_ahead,
                    bool loads_lazily = false) {
  const int stages = static_cast<int>(schedule.ranks.size());
  const auto plans = Lower(schedule, receives_ahead);
  REQUIRE_OK(plans);
  std::vector<std::unique_ptr<QueueingRank>> ranks;
  for (int stage = 0; stage < stages; ++stage) {
    ranks.push_back(std::make_unique<QueueingRank>(stage, stages, lanes, loads_lazily));
    PipelineExecutor executor(*ranks[stage], *ranks[stage], (*plans)[stage]);
    Stream stream = Stream::Cpu();
    for (int step = 0; step < 2; ++step) REQUIRE_OK(executor.Run(stream));
  }
  std::vector<std::vector<char>> done(stages);
  size_t left = 0;
  for (int rank = 0; rank < stages; ++rank) {
    done[rank].resize(ranks[rank]->items().size());
    left += done[rank].size();
  }
  // Of each message, the ends that have started: rank and item.
  std::map<std::vector<int>, std::map<int, int>> started;
  std::vector<int> free_rooms(stages, rooms);
  for (bool progress = true; progress;) {
    progress = false;
    for (int rank = 0; rank < stages; ++rank) {
      for (size_t i = 0; i < done[rank].size(); ++i) {
        const Item& item = ranks[rank]->items()[i];
        if (done[rank][i]) continue;
        const bool waits = std::any_of(item.after.begin(), item.after.end(),
                                       [&](int before) { return !done[rank][before]; });
        if (waits) continue;
        std::map<int, int> ends = {{rank, static_cast<int>(i)}};
        if (item.from >= 0) {
          auto& known = started[{item.from, item.to, item.number}];
          if (known.count(rank) == 0 && free_rooms[rank] == 0) continue;
          if (known.emplace(rank, static_cast<int>(i)).second) --free_rooms[rank];
          if (known.size() < 2) continue;
          ends = known;
          for (const auto& [end_rank, end_item] : ends) ++free_rooms[end_rank];
        }
        for (const auto& [end_rank, end_item] : ends) done[end_rank][end_item] = 1;
        left -= ends.size();
        progress = true;
      }
    }
  }
  return left == 0;
}

constexpr int kRooms = 2 * kNcclLinksMax;

// Where receives are posted right before their passes, and where they are posted earlier.
void CheckComesToAnEnd(const Schedule& schedule) {
  for (const int receives_ahead : {0, 1}) {
    INFO("receives " << receives_ahead << " passes ahead");
    CHECK(AllComeToAnEnd(schedule, Lanes::kOfPairs, kRooms, receives_ahead));
  }
}

// With late receives: messages wait longest.
bool AllComeToAnEnd(const char* name, int stages, int microbatches, Lanes lanes,
                    int rooms = kRooms) {
  return AllComeToAnEnd(*MakeSchedule(name, stages, 0, microbatches), lanes, rooms,
                        /*receives_ahead=*/0);
}

constexpr const char* kSchedules[] = {"gpipe", "1f1b", "interleaved",
                                      "zb-h1", "zb-v", "dualpipe-v"};

TEST_CASE("with a lane for each ordered pair of ranks every schedule comes to its end") {
  for (int stages = 1; stages <= 8; ++stages) {
    for (const int microbatches : {1, 2, 3, 4, 7, 8, 9, 16, 17}) {
      for (const char* name : kSchedules) {
        INFO(name << ", " << stages << " stages, " << microbatches << " microbatches");
        const Schedule schedule = *MakeSchedule(name, stages, 0, microbatches);
        CheckComesToAnEnd(schedule);
        CheckComesToAnEnd(ForwardOnly(schedule.placement, microbatches));
      }
    }
  }
  for (const int chunks : {3, 4}) {
    INFO(chunks << " chunks a rank");
    CheckComesToAnEnd(*MakeSchedule("interleaved", 4, chunks, 8));
  }
}

// As a file may say.
TEST_CASE("a schedule whose chunks lie in no order comes to its end") {
  for (const ChunkPlacement& placement :
       {ChunkPlacement{2, 0, 1}, ChunkPlacement{0, 1, 0, 1}, ChunkPlacement{1, 0, 2, 0, 1},
        ChunkPlacement{0, 0, 1, 2, 1, 0}}) {
    CheckComesToAnEnd(ForwardOnly(placement, 8));
  }
}

TEST_CASE("no schedule has a rank exchange messages with more ranks than have lanes") {
  for (int stages = 1; stages <= 8; ++stages) {
    for (const char* name : kSchedules) {
      INFO(name << ", " << stages << " stages");
      std::map<int, int> links;
      for (const auto& [low, high] : LinksOf(MakeSchedule(name, stages, 0, 4)->placement)) {
        CHECK(low < high);
        CHECK(++links[low] <= kNcclLinksMax);
        CHECK(++links[high] <= kNcclLinksMax);
      }
    }
  }
}

// Why convene-train has all kernels loaded at the start for the other schedules.
TEST_CASE("where CUDA loads kernels at their first use these schedules come to their end") {
  for (const char* name : kSchedules) {
    INFO(name);
    int stand_still = 0;
    for (const int stages : {2, 3, 4, 7, 8, 12}) {
      for (const int microbatches : {1, 2, 3, 4, 7, 8, 12, 17, 24}) {
        stand_still += AllComeToAnEnd(*MakeSchedule(name, stages, 0, microbatches), Lanes::kOfPairs,
                                      kRooms, /*receives_ahead=*/1, /*loads_lazily=*/true)
                           ? 0
                           : 1;
      }
    }
    CHECK((stand_still == 0) == MayLoadKernelsLate(name));
  }
  CHECK_FALSE(MayLoadKernelsLate("some.csv"));
}

int StandStill(const char* name, Lanes lanes, int rooms = kRooms) {
  int count = 0;
  for (int stages = 2; stages <= 6; ++stages) {
    for (const int microbatches : {1, 2, 4, 7, 8, 16}) {
      count += AllComeToAnEnd(name, stages, microbatches, lanes, rooms) ? 0 : 1;
    }
  }
  return count;
}

// Why kNcclKernelsAtOnce counts a message for each lane.
TEST_CASE("where messages find less room beside the arithmetic neighbours wait for each other") {
  CHECK_FALSE(AllComeToAnEnd("1f1b", 2, 4, Lanes::kOfPairs, /*rooms=*/1));
  CHECK(StandStill("interleaved", Lanes::kOfPairs, /*rooms=*/2) > 0);
}

TEST_CASE("with one lane for both directions neighbours wait for each other") {
  CHECK_FALSE(AllComeToAnEnd("1f1b", 2, 4, Lanes::kOne));
  CHECK_FALSE(AllComeToAnEnd("1f1b", 4, 8, Lanes::kOne));
}

TEST_CASE("with one lane up and one down messages round the pipeline stand still") {
  for (const char* name : {"interleaved", "zb-v", "dualpipe-v"}) {
    INFO(name);
    CHECK(StandStill(name, Lanes::kUpAndDown) > 0);
  }
}

}  // namespace
}  // namespace convene::worker
