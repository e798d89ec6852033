#include "rendezvous/quorum/ranks.h"

#include <algorithm>
#include <deque>
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

bool NewcomerLess(const Node* a, const Node* b) {
  if (a->topology != b->topology) {
    if (a->topology.empty() || b->topology.empty()) return b->topology.empty();
    return NaturalLess(a->topology, b->topology);
  }
  const auto rank = [](const Node* node) {
    return node->node_rank < 0 ? std::numeric_limits<int>::max() : node->node_rank;
  };
  if (rank(a) != rank(b)) return rank(a) < rank(b);
  if (a->host != b->host) return NaturalLess(a->host, b->host);
  return std::tie(a->incarnation, a->id) < std::tie(b->incarnation, b->id);
}

using Seats = std::map<int, const Node*>;
using Nodes = std::vector<const Node*>;

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
  std::sort(newcomers.begin(), newcomers.end(), NewcomerLess);
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
