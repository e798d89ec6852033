#include "rendezvous/quorum/ranks.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/ascii.h"

namespace convene::rendezvous {
namespace {

// The run of digits that begins at `from`, without its leading zeros.
absl::string_view Digits(absl::string_view text, size_t from, size_t* end) {
  while (from < text.size() && text[from] == '0') ++from;
  *end = from;
  while (*end < text.size() && absl::ascii_isdigit(text[*end])) ++*end;
  return text.substr(from, *end - from);
}

using Seats = std::map<int, const Node*>;
using Nodes = std::vector<const Node*>;

int RankOf(const Node* node) {
  return node->node_rank < 0 ? std::numeric_limits<int>::max() : node->node_rank;
}

// Of nodes of one label.
bool NeighbourLess(const Node* a, const Node* b) {
  if (a->node_rank != b->node_rank) return RankOf(a) < RankOf(b);
  if (a->host != b->host) return NaturalLess(a->host, b->host);
  return std::tie(a->incarnation, a->id) < std::tie(b->incarnation, b->id);
}

// The place in `label`, at or after `from`, where a branch ends: "core." of "core.leaf7".
size_t BranchEnd(absl::string_view label, size_t from) {
  const size_t separator = label.find_first_of("./", from);
  return separator == absl::string_view::npos ? label.size() : separator + 1;
}

// The smallest node rank under each label, and under each branch that it is on.
using LeastRanks = std::map<std::string, int, std::less<>>;

// Of two labels: compares the first branches that differ.
bool LabelLess(const LeastRanks& least, absl::string_view a, absl::string_view b) {
  absl::string_view a_branch;
  absl::string_view b_branch;
  do {
    a_branch = a.substr(0, BranchEnd(a, a_branch.size()));
    b_branch = b.substr(0, BranchEnd(b, b_branch.size()));
  } while (a_branch == b_branch && a_branch.size() < std::min(a.size(), b.size()));
  if (a_branch == b_branch) return a.size() < b.size();  // such as "core." and "core.leaf7"
  const int a_rank = least.find(a_branch)->second;
  const int b_rank = least.find(b_branch)->second;
  if (a_rank != b_rank) return a_rank < b_rank;
  if (a.empty() || b.empty()) return b.empty();
  return NaturalLess(a_branch, b_branch);
}

// In the order of a first epoch.
Nodes InOrder(const Nodes& newcomers) {
  std::map<std::string, Nodes> of_label;
  LeastRanks least;
  for (const Node* node : newcomers) {
    const std::string& label = node->topology;
    of_label[label].push_back(node);
    size_t end = 0;
    do {
      end = BranchEnd(label, end);
      int& rank = least.emplace(label.substr(0, end), RankOf(node)).first->second;
      rank = std::min(rank, RankOf(node));
    } while (end < label.size());
  }
  std::vector<std::string> labels;
  for (auto& [label, nodes] : of_label) {
    std::sort(nodes.begin(), nodes.end(), NeighbourLess);
    labels.push_back(label);
  }
  std::sort(labels.begin(), labels.end(),
            [&](const std::string& a, const std::string& b) { return LabelLess(least, a, b); });
  Nodes ordered;
  for (const std::string& label : labels) {
    const Nodes& nodes = of_label[label];
    ordered.insert(ordered.end(), nodes.begin(), nodes.end());
  }
  return ordered;
}

// Gives each newcomer the seat of its own node rank. Returns the newcomers that got none. Node
// ranks that do not fit the seats (counted from 1, say) still give the order when there are no
// survivors.
Nodes TakeOwnSeats(const Nodes& newcomers, int nodes_max, Seats* seats) {
  const bool ranks_fit =
      !seats->empty() || std::none_of(newcomers.begin(), newcomers.end(), [&](const Node* node) {
        return node->node_rank >= nodes_max;
      });
  Nodes without_seat;
  for (const Node* node : newcomers) {
    const bool has_own = ranks_fit && node->node_rank >= 0 && node->node_rank < nodes_max;
    if (!has_own || !seats->emplace(node->node_rank, node).second) without_seat.push_back(node);
  }
  return without_seat;
}

// Gives each newcomer the lowest hole beside a survivor of its own label. Returns the newcomers
// that got none.
Nodes TakeSeatsBesideLabel(const Nodes& newcomers, int nodes_max, Seats* seats) {
  const Seats survivors = *seats;
  std::map<std::string, std::deque<int>> holes;  // of each label, ascending
  for (auto it = survivors.begin(); it != survivors.end(); ++it) {
    const int left = it == survivors.begin() ? -1 : std::prev(it)->first;
    const int right = std::next(it) == survivors.end() ? nodes_max : std::next(it)->first;
    std::deque<int>& of_label = holes[it->second->topology];
    for (int hole = left + 1; hole < right; ++hole) {
      if (hole != it->first) of_label.push_back(hole);
    }
  }
  Nodes without_seat;
  for (const Node* node : newcomers) {
    std::deque<int>& of_label = holes[node->topology];
    while (!of_label.empty() && !seats->emplace(of_label.front(), node).second) {
      of_label.pop_front();
    }
    if (of_label.empty()) without_seat.push_back(node);
  }
  return without_seat;
}

}  // namespace

bool NaturalLess(absl::string_view a, absl::string_view b) {
  size_t i = 0;
  size_t j = 0;
  while (i < a.size() && j < b.size()) {
    if (absl::ascii_isdigit(a[i]) && absl::ascii_isdigit(b[j])) {
      const absl::string_view x = Digits(a, i, &i);
      const absl::string_view y = Digits(b, j, &j);
      if (x.size() != y.size()) return x.size() < y.size();
      if (x != y) return x < y;
    } else {
      if (a[i] != b[j]) return a[i] < b[j];
      ++i;
      ++j;
    }
  }
  if (i < a.size() || j < b.size()) return j < b.size();
  if (a.size() != b.size()) return a.size() < b.size();
  return a < b;
}

Seating SeatMembers(const JobState& state, int nodes_max) {
  Seats seats;
  Nodes newcomers;
  bool has_labels = false;
  for (const auto& [id, node] : state.nodes()) {
    if (node.state != NodeState::kReady) continue;
    has_labels = has_labels || !node.topology.empty();
    if (node.is_member()) {
      seats[node.seat] = &node;
    } else {
      newcomers.push_back(&node);
    }
  }
  newcomers = InOrder(newcomers);
  newcomers = has_labels ? TakeSeatsBesideLabel(newcomers, nodes_max, &seats)
                         : TakeOwnSeats(newcomers, nodes_max, &seats);
  int seat = 0;
  for (const Node* node : newcomers) {
    while (seat < nodes_max && !seats.emplace(seat, node).second) ++seat;
    if (seat == nodes_max) break;
  }

  Seating seating;
  for (const auto& [place, node] : seats) {
    seating.members.push_back(node->id);
    seating.seats.push_back(place);
  }
  return seating;
}

}  // namespace convene::rendezvous
