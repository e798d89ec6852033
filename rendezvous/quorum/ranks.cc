#include "rendezvous/quorum/ranks.h"

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>

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
  const auto rank = [](const Node* node) {
    return node->node_rank < 0 ? std::numeric_limits<int>::max() : node->node_rank;
  };
  if (rank(a) != rank(b)) return rank(a) < rank(b);
  if (a->host != b->host) return NaturalLess(a->host, b->host);
  return std::tie(a->incarnation, a->id) < std::tie(b->incarnation, b->id);
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
  std::map<int, MemberId> seated;
  std::vector<const Node*> newcomers;
  for (const auto& [id, node] : state.nodes()) {
    if (node.state != NodeState::kReady) continue;
    if (node.is_member()) {
      seated[node.seat] = id;
    } else {
      newcomers.push_back(&node);
    }
  }
  std::sort(newcomers.begin(), newcomers.end(), NewcomerLess);
  const size_t vacancies = static_cast<size_t>(nodes_max) - seated.size();
  if (newcomers.size() > vacancies) newcomers.resize(vacancies);

  // Node ranks that do not fit the seats (counted from 1, say) still give the order when there is
  // nobody to be stable for.
  const bool ranks_fit =
      !seated.empty() || std::none_of(newcomers.begin(), newcomers.end(), [&](const Node* node) {
        return node->node_rank >= nodes_max;
      });
  std::vector<const Node*> without_seat;
  for (const Node* node : newcomers) {
    const bool has_own = ranks_fit && node->node_rank >= 0 && node->node_rank < nodes_max;
    if (!has_own || !seated.emplace(node->node_rank, node->id).second) without_seat.push_back(node);
  }
  int seat = 0;
  for (const Node* node : without_seat) {
    while (!seated.emplace(seat, node->id).second) ++seat;
  }

  Seating seating;
  for (const auto& [place, id] : seated) {
    seating.members.push_back(id);
    seating.seats.push_back(place);
  }
  return seating;
}

}  // namespace convene::rendezvous
