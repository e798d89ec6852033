#include "worker_runtime/replicas/choose_copies.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

namespace convene::worker {
namespace {

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

}  // namespace

std::vector<std::vector<int>> PlaceReplicas(const std::vector<RankPlace>& places, int replicas) {
  const std::vector<Node> circle = CircleOfNodes(places);
  std::vector<std::vector<int>> holders(places.size());
  for (size_t at = 0; at < circle.size(); ++at) {
    const Node& own = circle[at];
    std::vector<const Node*> others;
    for (size_t i = 1; i < circle.size(); ++i) {
      others.push_back(&circle[(at + i) % circle.size()]);
    }
    std::stable_partition(others.begin(), others.end(),
                          [&](const Node* node) { return node->label != own.label; });
    others.resize(std::min<size_t>(others.size(), std::max(replicas, 0)));
    for (size_t i = 0; i < own.ranks.size(); ++i) {
      for (const Node* node : others) {
        holders[own.ranks[i]].push_back(node->ranks[i % node->ranks.size()]);
      }
    }
  }
  return holders;
}

std::optional<WholeState> ChooseCopies(const std::vector<HeldCopy>& copies,
                                       const std::optional<RefusedState>& refused) {
  // Generation, step, world size: the latest comes last.
  std::map<std::tuple<int64_t, int64_t, int>, WholeState> states;
  for (const HeldCopy& copy : copies) {
    const CopyName& name = copy.name;
    if (name.world_size < 1 || name.owner < 0 || name.owner >= name.world_size) continue;
    if (refused.has_value() &&
        std::tie(name.generation, name.step) >= std::tie(refused->generation, refused->step)) {
      continue;
    }
    WholeState& state = states[{name.generation, name.step, name.world_size}];
    state.generation = name.generation;
    state.step = name.step;
    state.copies.resize(name.world_size);
    state.copies[name.owner].push_back(copy);
  }
  for (auto state = states.rbegin(); state != states.rend(); ++state) {
    const auto& by_owner = state->second.copies;
    const bool is_whole = std::none_of(by_owner.begin(), by_owner.end(),
                                       [](const auto& of_owner) { return of_owner.empty(); });
    if (is_whole) return std::move(state->second);
  }
  return std::nullopt;
}

const HeldCopy& NearestCopy(const std::vector<HeldCopy>& copies, int reader, int node) {
  const auto own = std::find_if(copies.begin(), copies.end(),
                                [&](const HeldCopy& copy) { return copy.node == node; });
  return own != copies.end() ? *own : copies[reader % copies.size()];
}

}  // namespace convene::worker
