#include "worker_runtime/replicas/choose_copies.h"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "catch2/catch.hpp"

namespace convene::worker {
namespace {

std::vector<RankPlace> Places(std::vector<int> nodes, const std::vector<int64_t>& label_of_node) {
  std::vector<RankPlace> places;
  for (const int node : nodes) places.push_back({node, label_of_node[node]});
  return places;
}

std::vector<int> AllDifferent(size_t ranks) {
  std::vector<int> shard_of_rank(ranks);
  std::iota(shard_of_rank.begin(), shard_of_rank.end(), 0);
  return shard_of_rank;
}

// Every rank has a shard of its own.
std::vector<std::vector<int>> Place(const std::vector<RankPlace>& places, int replicas) {
  return PlaceReplicas(places, AllDifferent(places.size()), replicas);
}

TEST_CASE("a shard's copies go to other nodes, and to other labels first") {
  CHECK(Place(Places({0, 0, 1, 1}, {0, 0}), 1) ==
        std::vector<std::vector<int>>{{2}, {3}, {0}, {1}});
  CHECK(Place(Places({0, 1, 2}, {0, 0, 0}), 2) ==
        std::vector<std::vector<int>>{{1, 2}, {2, 0}, {0, 1}});
  // Two switches with two nodes each: never behind the same switch.
  CHECK(Place(Places({0, 1, 2, 3}, {7, 7, 8, 8}), 1) ==
        std::vector<std::vector<int>>{{2}, {3}, {1}, {0}});
  // More than the other switch has: then the own one, too.
  CHECK(Place(Places({0, 1, 2}, {7, 7, 8}), 2) ==
        std::vector<std::vector<int>>{{2, 1}, {2, 0}, {1, 0}});
  CHECK(Place(Places({0, 0}, {0}), 1) == std::vector<std::vector<int>>{{}, {}});
  CHECK(Place(Places({0, 1}, {0, 0}), 0) == std::vector<std::vector<int>>{{}, {}});
}

TEST_CASE("copies are never on the owner's node, on as many nodes as asked, and spread evenly") {
  for (int nodes = 1; nodes <= 7; ++nodes) {
    for (int ranks = 1; ranks <= 3; ++ranks) {
      for (int replicas = 0; replicas <= 4; ++replicas) {
        INFO(nodes << " nodes of " << ranks << " ranks, " << replicas << " replicas");
        std::vector<RankPlace> places;
        for (int i = 0; i < nodes * ranks; ++i) places.push_back({i / ranks, 0});
        const auto holders = Place(places, replicas);
        std::map<int, int> load;
        for (int owner = 0; owner < nodes * ranks; ++owner) {
          std::set<int> on;
          for (const int holder : holders[owner]) {
            on.insert(places[holder].node);
            ++load[holder];
          }
          CHECK(on.count(places[owner].node) == 0);
          CHECK(static_cast<int>(on.size()) == std::min(replicas, nodes - 1));
          CHECK(holders[owner].size() == on.size());
        }
        for (const auto& [holder, owners] : load) CHECK(owners == std::min(replicas, nodes - 1));
      }
    }
  }
}

TEST_CASE("nodes that have a shard by themselves count as its replicas") {
  CHECK(NumberShards({7, 9, 7, 0, 9, 3}) == std::vector<int>{0, 1, 0, -1, 1, 2});
  // Four nodes, of which two and two have the same.
  const std::vector<int> twice = {0, 1, 0, 1};
  const auto places = Places({0, 1, 2, 3}, {0, 0, 0, 0});
  CHECK(PlaceReplicas(places, twice, 1) == std::vector<std::vector<int>>(4));
  CHECK(PlaceReplicas(places, twice, 2) == std::vector<std::vector<int>>{{1}, {2}, {}, {}});
  CHECK(PlaceReplicas(places, twice, 3) == std::vector<std::vector<int>>{{1, 3}, {2, 0}, {}, {}});
  // Never behind a switch that has it already, where there is another one.
  CHECK(PlaceReplicas(Places({0, 1, 2, 3}, {7, 8, 8, 9}), {0, 0, 1, 1}, 2)[0] ==
        std::vector<int>{3});
  // Both nodes of a shard are behind one switch: enough copies, and the loss of that switch would
  // take them all. So one more goes behind another switch, where there is one.
  const std::vector<int> neighbours = {0, 0, 1, 1};
  CHECK(PlaceReplicas(Places({0, 1, 2, 3}, {7, 7, 8, 8}), neighbours, 1) ==
        std::vector<std::vector<int>>{{2}, {}, {1}, {}});
  CHECK(PlaceReplicas(Places({0, 1, 2, 3}, {7, 7, 7, 7}), neighbours, 1) ==
        std::vector<std::vector<int>>(4));
  CHECK(PlaceReplicas(Places({0, 1, 2, 3}, {7, 7, 8, 8}), neighbours, 0) ==
        std::vector<std::vector<int>>(4));
  // Few nodes behind the other switch keep no more copies than --replicas says.
  const auto uneven =
      PlaceReplicas(Places({0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, {7, 7, 7, 7, 7, 7, 7, 7, 8, 8}),
                    {0, 0, 1, 1, 2, 2, 3, 3, 4, 4}, 1);
  std::vector<int> load(10);
  for (const std::vector<int>& holders : uneven) {
    for (const int holder : holders) ++load[holder];
  }
  CHECK(load[8] == 1);
  CHECK(load[9] == 1);
  CHECK(std::accumulate(load.begin(), load.end(), 0) == 3);
  // Two ranks of one node: one of them keeps the node's copy, and sends it.
  const auto pairs = Places({0, 0, 1, 1}, {0, 0});
  const std::vector<int> same = {0, 0, 1, -1};
  CHECK(PlaceReplicas(pairs, same, 1) == std::vector<std::vector<int>>{{2}, {}, {0}, {}});
  std::vector<bool> keeps;
  for (int rank = 0; rank < 4; ++rank) keeps.push_back(KeepsOwnCopy(pairs, same, rank));
  CHECK(keeps == std::vector<bool>{true, false, true, false});
}

HeldCopy Copy(int64_t generation, int64_t step, int shard, int shards, int node = 0) {
  return {.name = {generation, step, shard, shards}, .reader = node, .node = node};
}

TEST_CASE("the newest state that is whole is chosen, never a mixture") {
  const std::vector<HeldCopy> copies = {
      Copy(1, 10, 0, 2), Copy(1, 10, 1, 2, 1), Copy(1, 11, 0, 2),    Copy(1, 11, 1, 2, 1),
      Copy(1, 12, 0, 2), Copy(2, 11, 0, 1),    Copy(2, 12, 1, 2, 1), Copy(3, 5, 1, 2),
      Copy(3, 5, 7, 2),  Copy(1, 11, 1, 2, 2), Copy(2, 12, 0, 3)};
  const auto first = ChooseCopies(copies, std::nullopt);
  REQUIRE(first.has_value());
  CHECK((first->generation == 2 && first->step == 11 && first->copies.size() == 1));
  const auto second = ChooseCopies(copies, RefusedState{2, 11});
  REQUIRE(second.has_value());
  CHECK((second->generation == 1 && second->step == 11));
  CHECK((second->copies[0].size() == 1 && second->copies[1].size() == 2));
  CHECK(ChooseCopies(copies, RefusedState{1, 11})->step == 10);
  CHECK_FALSE(ChooseCopies(copies, RefusedState{1, 10}).has_value());
  CHECK_FALSE(ChooseCopies({}, std::nullopt).has_value());
}

TEST_CASE("a state that is not whole is told: the newest one, and what it lacks") {
  CHECK(WhatIsMissing({}).empty());
  CHECK(WhatIsMissing({Copy(1, 10, 0, 3), Copy(1, 9, 1, 3), Copy(1, 10, 5, 3)}) ==
        "the copy of step 10 in the nodes' memory is not whole: of its 3 shards (0 to 2, in the "
        "order of the ranks) these are on no node of this epoch: 1, 2");
  CHECK(WhatIsMissing({Copy(2, 4, 1, 2), Copy(1, 10, 0, 2)}) ==
        "the copy of step 4 in the nodes' memory is not whole: of its 2 shards (0 to 1, in the "
        "order of the ranks) this one is on no node of this epoch: 0");
}

TEST_CASE("a rank reads on its own node, and others in turn") {
  const std::vector<HeldCopy> copies = {Copy(1, 1, 0, 1, 3), Copy(1, 1, 0, 1, 5)};
  CHECK(NearestCopy(copies, 0, 5).node == 5);
  CHECK(NearestCopy(copies, 0, 9).node == 3);
  CHECK(NearestCopy(copies, 1, 9).node == 5);
}

// A restart as a model: the nodes that are left, one rank each, have chosen a state and read it,
// and make the first copies of the next generation. Every order of their deeds is searched, with a
// second death at every moment, of the workers alone and with every set of nodes.
class Restart {
 public:
  // `copies`: that the nodes `nodes` hold. REQUIRES: a state is whole.
  Restart(const std::vector<HeldCopy>& copies, std::vector<int> nodes, int replicas)
      : nodes_(std::move(nodes)),
        replicas_(replicas),
        copies_(copies),
        chosen_(*ChooseCopies(copies, std::nullopt)) {
    std::vector<RankPlace> places;
    for (const int node : nodes_) places.push_back({node, 0});
    holders_ = PlaceReplicas(places, AllDifferent(places.size()), replicas);
  }

  void Search() { Visit(std::vector<int>(nodes_.size(), kNone)); }

 private:
  // How far a rank is: PeerReplicas::BeginGeneration, then its first Replicate.
  enum : int { kNone, kFreedOthers, kSealedOwn, kSealedTheirs, kTold, kFreedOld };

  bool AllAre(const std::vector<int>& done, int least) const {
    return std::all_of(done.begin(), done.end(), [&](int deeds) { return deeds >= least; });
  }

  bool Holds(size_t rank, size_t sender) const {
    const std::vector<int>& holders = holders_[sender];
    return std::find(holders.begin(), holders.end(), static_cast<int>(rank)) != holders.end();
  }

  bool MayGo(const std::vector<int>& done, size_t rank) const {
    if (done[rank] == kFreedOld) return false;
    if (done[rank] == kTold) return AllAre(done, kTold);
    if (done[rank] != kSealedOwn) return true;
    for (size_t sender = 0; sender < nodes_.size(); ++sender) {
      if (Holds(rank, sender) && done[sender] < kSealedOwn) return false;
    }
    return true;
  }

  void Visit(const std::vector<int>& done) {
    if (!seen_.insert(done).second) return;
    for (int lost = 0; lost < (1 << nodes_.size()); ++lost) CheckDeath(done, lost);
    for (size_t rank = 0; rank < nodes_.size(); ++rank) {
      if (!MayGo(done, rank)) continue;
      std::vector<int> next = done;
      ++next[rank];
      Visit(next);
    }
  }

  std::vector<HeldCopy> CopiesAfter(const std::vector<int>& done, int lost) const {
    std::vector<HeldCopy> left;
    const auto shards = static_cast<int>(nodes_.size());
    for (size_t rank = 0; rank < nodes_.size(); ++rank) {
      if ((lost >> rank & 1) != 0) continue;
      for (const HeldCopy& copy : copies_) {
        if (copy.node != nodes_[rank]) continue;
        const bool is_chosen = copy.name.step == chosen_.step;
        if (done[rank] < kFreedOthers || (is_chosen && done[rank] < kFreedOld)) {
          left.push_back(copy);
        }
      }
      for (size_t sender = 0; sender < nodes_.size(); ++sender) {
        const int sealed = sender == rank ? kSealedOwn : kSealedTheirs;
        if ((sender != rank && !Holds(rank, sender)) || done[rank] < sealed) continue;
        left.push_back(Copy(2, chosen_.step, static_cast<int>(sender), shards, nodes_[rank]));
      }
    }
    return left;
  }

  void CheckDeath(const std::vector<int>& done, int lost) const {
    const auto found = ChooseCopies(CopiesAfter(done, lost), std::nullopt);
    const int most_lost = std::min(replicas_, static_cast<int>(nodes_.size()) - 1);
    const bool stands_everywhere = AllAre(done, kTold) && __builtin_popcount(lost) <= most_lost;
    if (lost == 0 || stands_everywhere) {
      if (!found.has_value() || found->step != chosen_.step) FAIL_CHECK("the state was lost");
    }
    if (!found.has_value()) return;
    for (const auto& of_shard : found->copies) {
      for (const HeldCopy& copy : of_shard) {
        const bool is_of_it =
            copy.name.step == found->step && copy.name.generation == found->generation;
        if (!is_of_it) FAIL_CHECK("a mixture of states");
      }
    }
  }

  const std::vector<int> nodes_;
  const int replicas_;
  const std::vector<HeldCopy> copies_;
  const WholeState chosen_;
  std::vector<std::vector<int>> holders_;
  std::set<std::vector<int>> seen_;
};

// The protocol of PeerReplicas::Replicate as a model: one rank a node, whose program is a list of
// deeds. Every order of the ranks' deeds is searched, with the workers' death at every moment, and
// the loss of every set of nodes.
enum class Deed { kBreakOwn, kSealOwn, kBreakTheirs, kSealTheirs, kBarrier };
constexpr std::array kProgram = {Deed::kBreakOwn, Deed::kSealOwn, Deed::kBreakTheirs,
                                 Deed::kSealTheirs, Deed::kBarrier};
constexpr int kStages = 4;

class Model {
 public:
  // `shard_of_node`: several nodes may have the same.
  Model(std::vector<int> shard_of_node, int replicas)
      : nodes_(static_cast<int>(shard_of_node.size())),
        replicas_(replicas),
        shard_of_(std::move(shard_of_node)) {
    std::vector<RankPlace> places;
    for (int node = 0; node < nodes_; ++node) places.push_back({node, 0});
    holders_ = PlaceReplicas(places, shard_of_, replicas);
  }

  // Visits each state that can be reached; `done` deeds of each rank.
  void Search() { Visit(std::vector<int>(nodes_, 0)); }
  int64_t deaths() const { return deaths_; }
  int64_t restarts() const { return static_cast<int64_t>(restarted_.size()); }

 private:
  // The step of the copy in a half after so many deeds of the writer; -1: none, or torn.
  static int StepIn(int half, int done, Deed breaks, Deed seals) {
    int step = -1;
    for (int i = 0; i < done; ++i) {
      const int stage = i / static_cast<int>(kProgram.size());
      if (stage % 2 != half) continue;
      const Deed deed = kProgram[i % kProgram.size()];
      if (deed == breaks) step = -1;
      if (deed == seals) step = stage;
    }
    return step;
  }

  bool MayGo(const std::vector<int>& done, int rank) const {
    const int at = done[rank] % static_cast<int>(kProgram.size());
    const int stage = done[rank] / static_cast<int>(kProgram.size());
    const auto all_past = [&](int deed, const std::vector<int>& ranks) {
      return std::all_of(ranks.begin(), ranks.end(), [&](int other) {
        return done[other] >= stage * static_cast<int>(kProgram.size()) + deed;
      });
    };
    if (stage == kStages) return false;
    if (kProgram[at] == Deed::kSealTheirs) {  // the owners have sent
      std::vector<int> owners;
      for (int owner = 0; owner < nodes_; ++owner) {
        if (Holds(rank, owner)) owners.push_back(owner);
      }
      return all_past(2, owners);
    }
    if (kProgram[at] == Deed::kBarrier) {
      std::vector<int> all(nodes_);
      for (int i = 0; i < nodes_; ++i) all[i] = i;
      return all_past(4, all);
    }
    return true;
  }

  bool Holds(int rank, int owner) const {
    return std::find(holders_[owner].begin(), holders_[owner].end(), rank) != holders_[owner].end();
  }

  int shards() const { return 1 + *std::max_element(shard_of_.begin(), shard_of_.end()); }

  // Whether the nodes that are left have every shard by themselves.
  bool SomeNodeHasEach(int lost) const {
    std::set<int> left;
    for (int node = 0; node < nodes_; ++node) {
      if ((lost >> node & 1) == 0) left.insert(shard_of_[node]);
    }
    return static_cast<int>(left.size()) == shards();
  }

  void Visit(const std::vector<int>& done) {
    if (!seen_.insert(done).second) return;
    for (int lost = 0; lost < (1 << nodes_); ++lost) CheckDeath(done, lost);
    for (int rank = 0; rank < nodes_; ++rank) {
      if (!MayGo(done, rank)) continue;
      std::vector<int> next = done;
      ++next[rank];
      Visit(next);
    }
  }

  // `lost`: the nodes that are lost with the workers.
  void CheckDeath(const std::vector<int>& done, int lost) {
    ++deaths_;
    std::vector<HeldCopy> copies;
    const auto add = [&](int node, int owner, Deed breaks, Deed seals) {
      for (int half = 0; half < 2; ++half) {
        const int step = StepIn(half, done[node], breaks, seals);
        if (step >= 0) copies.push_back(Copy(1, step, shard_of_[owner], shards(), node));
      }
    };
    for (int node = 0; node < nodes_; ++node) {
      if ((lost >> node & 1) != 0) continue;
      add(node, node, Deed::kBreakOwn, Deed::kSealOwn);
      for (int owner = 0; owner < nodes_; ++owner) {
        if (Holds(node, owner)) add(node, owner, Deed::kBreakTheirs, Deed::kSealTheirs);
      }
    }
    const auto chosen = ChooseCopies(copies, std::nullopt);
    // The stage that all ranks have told to stand everywhere.
    int agreed = kStages;
    for (const int deeds : done) {
      agreed = std::min(agreed, deeds / static_cast<int>(kProgram.size()) - 1);
    }
    if (agreed >= 0 && (__builtin_popcount(lost) <= replicas_ || SomeNodeHasEach(lost))) {
      if (!chosen.has_value() || chosen->step < agreed) FAIL_CHECK("a stage was lost: " << agreed);
    }
    if (!chosen.has_value()) return;
    DieAgain(copies, lost);
    for (const auto& of_shard : chosen->copies) {
      if (of_shard.empty()) FAIL_CHECK("a shard is missing");
      for (const HeldCopy& copy : of_shard) {
        if (copy.name.step != chosen->step) FAIL_CHECK("a mixture of steps");
      }
    }
  }

  // Many orders leave the same copies.
  void DieAgain(const std::vector<HeldCopy>& copies, int lost) {
    std::vector<int> left;
    for (int node = 0; node < nodes_; ++node) {
      if ((lost >> node & 1) == 0) left.push_back(node);
    }
    std::vector<std::array<int64_t, 3>> names;
    for (const HeldCopy& copy : copies) {
      names.push_back({copy.name.step, copy.name.shard, copy.node});
    }
    if (!restarted_.insert({left, names}).second) return;
    Restart(copies, std::move(left), replicas_).Search();
  }

  const int nodes_;
  const int replicas_;
  const std::vector<int> shard_of_;
  std::vector<std::vector<int>> holders_;
  std::set<std::vector<int>> seen_;
  std::set<std::pair<std::vector<int>, std::vector<std::array<int64_t, 3>>>> restarted_;
  int64_t deaths_ = 0;
};

TEST_CASE(
    "whatever dies at whatever moment, a stage that all have agreed on is found again, also after "
    "a "
    "second death during the restore") {
  using Case = std::pair<std::vector<int>, int>;
  for (const auto& [shards, replicas] : {Case{{0}, 0},
                                         {{0, 1}, 0},
                                         {{0, 1}, 1},
                                         {{0, 1, 2}, 1},
                                         {{0, 1, 2}, 2},
                                         {{0, 0}, 0},
                                         {{0, 0, 0}, 1},
                                         {{0, 1, 0}, 0},
                                         {{0, 1, 0}, 1},
                                         {{0, 0, 1}, 2}}) {
    INFO(shards.size() << " nodes, the last with shard " << shards.back() << ", " << replicas
                       << " replicas");
    Model model(shards, replicas);
    model.Search();
    CHECK(model.deaths() > 20);
    CHECK(model.restarts() > 5);
  }
}

}  // namespace
}  // namespace convene::worker
