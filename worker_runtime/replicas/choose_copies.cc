#include "worker_runtime/replicas/choose_copies.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tools/base/text.h"

namespace convene::worker {
namespace {

constexpr size_t kMostShardsNamed = 16;

bool IsSensible(const CopyName& name) {
  return name.shards >= 1 && name.shard >= 0 && name.shard < name.shards;
}

struct Node {
  int64_t label = 0;
  int place_in_label = 0;
  int number = 0;
  std::vector<int> ranks;
};

// The first node of each label, then the second of each, and so on: neighbours in the circle have
// other labels wherever that can be.
std::vector<Node> CircleOfNodes(const std::vector<RankPlace>& places) {
  std::map<int, Node> by_number;
  for (size_t rank = 0; rank < places.size(); ++rank) {
    Node& node = by_number[places[rank].node];
    node.number = places[rank].node;
    node.label = places[rank].label;
    node.ranks.push_back(static_cast<int>(rank));
  }
  std::map<int64_t, int> count_of_label;
  std::vector<Node> circle;
  for (auto& [number, node] : by_number) {
    node.place_in_label = count_of_label[node.label]++;
    circle.push_back(std::move(node));
  }
  std::sort(circle.begin(), circle.end(), [](const Node& a, const Node& b) {
    return std::tie(a.place_in_label, a.label, a.number) <
           std::tie(b.place_in_label, b.label, b.number);
  });
  return circle;
}

// A rank that sends its shard, and where it may go.
struct Sender {
  int rank = 0;
  int place_in_node = 0;
  int64_t wanted = 0;                 // copies on nodes that have not got the shard
  bool leaves_label = false;          // all that have it stand behind one switch, and others do not
  std::vector<const Node*> by_worth;  // other labels first
};

// In the order of the circle.
std::vector<Sender> SendersOf(const std::vector<Node>& circle, const std::vector<RankPlace>& places,
                              const std::vector<int>& shard_of_rank, int replicas) {
  // [shard]: that have it by themselves.
  std::map<int, std::set<int>> nodes;
  std::map<int, std::set<int64_t>> labels;
  for (size_t rank = 0; rank < places.size(); ++rank) {
    nodes[shard_of_rank[rank]].insert(places[rank].node);
    labels[shard_of_rank[rank]].insert(places[rank].label);
  }
  std::vector<Sender> senders;
  for (size_t at = 0; at < circle.size(); ++at) {
    const Node& own = circle[at];
    for (size_t i = 0; i < own.ranks.size(); ++i) {
      Sender sender = {.rank = own.ranks[i], .place_in_node = static_cast<int>(i)};
      const int shard = shard_of_rank[sender.rank];
      const auto first = std::find(shard_of_rank.begin(), shard_of_rank.end(), shard);
      if (shard < 0 || first - shard_of_rank.begin() != sender.rank) continue;
      const auto leaves = [&](const Node* node) { return labels[shard].count(node->label) == 0; };
      for (size_t j = 1; j < circle.size(); ++j) {
        const Node& node = circle[(at + j) % circle.size()];
        if (nodes[shard].count(node.number) == 0) sender.by_worth.push_back(&node);
      }
      std::stable_partition(sender.by_worth.begin(), sender.by_worth.end(), leaves);
      sender.wanted = std::clamp<int64_t>(replicas + 1 - std::ssize(nodes[shard]), 0,
                                          std::ssize(sender.by_worth));
      sender.leaves_label =
          labels[shard].size() == 1 && !sender.by_worth.empty() && leaves(sender.by_worth.front());
      senders.push_back(std::move(sender));
    }
  }
  return senders;
}

}  // namespace

std::vector<int> NumberShards(const std::vector<double>& contents) {
  std::map<double, int> numbers;
  std::vector<int> shard_of_rank;
  for (const double content : contents) {
    const auto next = static_cast<int>(numbers.size());
    shard_of_rank.push_back(content == 0 ? -1 : numbers.emplace(content, next).first->second);
  }
  return shard_of_rank;
}

bool KeepsOwnCopy(const std::vector<RankPlace>& places, const std::vector<int>& shard_of_rank,
                  int rank) {
  if (shard_of_rank[rank] < 0) return false;
  for (int other = 0; other < rank; ++other) {
    if (places[other].node == places[rank].node && shard_of_rank[other] == shard_of_rank[rank]) {
      return false;
    }
  }
  return true;
}

std::vector<std::vector<int>> PlaceReplicas(const std::vector<RankPlace>& places,
                                            const std::vector<int>& shard_of_rank, int replicas) {
  const std::vector<Node> circle = CircleOfNodes(places);
  const std::vector<Sender> senders = SendersOf(circle, places, shard_of_rank, replicas);
  std::vector<std::vector<int>> holders(places.size());
  std::map<int, int> load;  // [node]: copies of others
  for (const Sender& sender : senders) {
    for (int64_t i = 0; i < sender.wanted; ++i) {
      const Node& node = *sender.by_worth[i];
      holders[sender.rank].push_back(node.ranks[sender.place_in_node % node.ranks.size()]);
      ++load[node.number];
    }
  }
  for (const Sender& sender : senders) {
    if (sender.wanted > 0 || !sender.leaves_label) continue;
    const int64_t own_label = places[sender.rank].label;
    const Node* least = nullptr;
    for (const Node* node : sender.by_worth) {
      if (node->label == own_label) break;
      if (least == nullptr || load[node->number] < load[least->number]) least = node;
    }
    const auto ranks = static_cast<int>(least->ranks.size());
    const int at = load[least->number];
    if (at >= replicas * ranks) continue;
    holders[sender.rank].push_back(least->ranks[at % ranks]);
    ++load[least->number];
  }
  return holders;
}

std::optional<WholeState> ChooseCopies(const std::vector<HeldCopy>& copies,
                                       const std::optional<RefusedState>& refused) {
  // Generation, step, shards: the latest comes last.
  std::map<std::tuple<int64_t, int64_t, int>, WholeState> states;
  for (const HeldCopy& copy : copies) {
    const CopyName& name = copy.name;
    if (!IsSensible(name)) continue;
    if (refused.has_value() &&
        std::tie(name.generation, name.step) >= std::tie(refused->generation, refused->step)) {
      continue;
    }
    WholeState& state = states[{name.generation, name.step, name.shards}];
    state.generation = name.generation;
    state.step = name.step;
    state.copies.resize(name.shards);
    state.copies[name.shard].push_back(copy);
  }
  for (auto state = states.rbegin(); state != states.rend(); ++state) {
    const auto& by_shard = state->second.copies;
    const bool is_whole = std::none_of(by_shard.begin(), by_shard.end(),
                                       [](const auto& of_shard) { return of_shard.empty(); });
    if (is_whole) return std::move(state->second);
  }
  return std::nullopt;
}

std::string WhatIsMissing(const std::vector<HeldCopy>& copies) {
  std::map<std::tuple<int64_t, int64_t, int>, std::set<int>> states;
  for (const HeldCopy& copy : copies) {
    const CopyName& name = copy.name;
    if (IsSensible(name)) {
      states[{name.generation, name.step, name.shards}].insert(name.shard);
    }
  }
  if (states.empty()) return "";
  const auto& [state, found] = *states.rbegin();
  const auto& [generation, step, shards] = state;
  std::vector<std::string> missing;
  for (int shard = 0; shard < shards; ++shard) {
    if (found.count(shard) == 0) missing.push_back(absl::StrCat(shard));
  }
  return absl::StrCat("the copy of step ", step, " in the nodes' memory is not whole: of its ",
                      shards, " shards (0 to ", shards - 1, ", in the order of the ranks) ",
                      missing.size() == 1 ? "this one is" : "these are",
                      " on no node of this epoch: ", JoinCapped(missing, kMostShardsNamed));
}

const HeldCopy& NearestCopy(const std::vector<HeldCopy>& copies, int reader, int node) {
  const auto own = std::find_if(copies.begin(), copies.end(),
                                [&](const HeldCopy& copy) { return copy.node == node; });
  return own != copies.end() ? *own : copies[reader % copies.size()];
}

}  // namespace convene::worker
