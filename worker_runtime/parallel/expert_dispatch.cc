#include "worker_runtime/parallel/expert_dispatch.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tools/base/check.h"
#include "tools/base/rounding.h"

namespace convene::worker {

int64_t MostReceived(const DispatchShape& shape, int rows) {
  return int64_t{shape.ranks} * rows * shape.chosen_of_rank();
}

int64_t BoundOf(const DispatchShape& shape, double factor) {
  const double even = factor * shape.rows * shape.chosen;
  const int64_t most = MostReceived(shape, shape.rows);
  const int64_t wanted = even < static_cast<double>(most) ? static_cast<int64_t>(even) : most;
  return std::max(wanted, MostReceived(shape, 1));
}

int64_t ExpertDispatch::ArraysCount(const DispatchShape& shape) {
  return 3 * int64_t{shape.rows} * shape.chosen + 3 * shape.bound;
}

ExpertDispatch::ExpertDispatch(const DispatchShape& shape, Arena& host)
    : shape_(shape),
      arrays_(host.Declare<int32_t>("expert rows", ArraysCount(shape))),
      sent_begin_(host.Declare<int32_t>("expert rows", shape.ranks + 1)),
      arrived_begin_(host.Declare<int32_t>("expert rows", shape.ranks + 1)),
      sorted_begin_(host.Declare<int32_t>("expert rows", shape.local_experts() + 1)),
      counts_(host.Declare<int32_t>("expert rows", int64_t{1} * shape.ranks * shape.experts)) {
  CONVENE_CHECK(shape.experts % shape.ranks == 0 && shape.bound >= MostReceived(shape, 1));
}

template <typename Visit>
void ExpertDispatch::ForChoices(absl::Span<const int32_t> chosen, int rank,
                                const Visit& visit) const {
  const int32_t* choice =
      chosen.data() + (int64_t{rank} * shape_.rows + row_begin_) * shape_.chosen;
  for (int token = 0; token < rows_; ++token) {
    for (int j = 0; j < shape_.chosen; ++j, ++choice) {
      if (*choice >= 0) visit(token, j, *choice);
    }
  }
}

ExpertLoad ExpertDispatch::Route(absl::Span<const int32_t> chosen) {
  chunks_ = 1;
  row_begin_ = 0;
  rows_ = shape_.rows;
  std::fill_n(At(counts_), counts_.size(), 0);
  int32_t* const by_expert = At(counts_);
  for (int rank = 0; rank < shape_.ranks; ++rank) {
    ForChoices(chosen, rank, [&](int, int, int expert) { ++by_expert[expert]; });
  }
  const double all = std::accumulate(by_expert, by_expert + shape_.experts, 0.0);
  ExpertLoad load;
  int64_t of_rank = 0;
  int64_t most = 0;
  for (int expert = 0; expert < shape_.experts; ++expert) {
    const double share = all > 0 ? by_expert[expert] / all : 0;
    load.highest = std::max(load.highest, share * shape_.experts);
    if (share > 0) load.entropy -= share * std::log(share);
    if (expert % shape_.local_experts() == 0) of_rank = 0;
    of_rank += by_expert[expert];
    most = std::max(most, of_rank);
  }
  load.is_chunked = most > shape_.bound;
  if (load.is_chunked) {
    chunks_ = static_cast<int>(CeilDivide(shape_.rows, shape_.bound / MostReceived(shape_, 1)));
  }
  Plan(chosen, 0);
  return load;
}

void ExpertDispatch::Plan(absl::Span<const int32_t> chosen, int chunk) {
  const auto longest = static_cast<int>(CeilDivide(shape_.rows, chunks_));
  row_begin_ = std::min(chunk * longest, shape_.rows);
  rows_ = std::min(longest, shape_.rows - row_begin_);
  PlanSent(chosen);
  PlanArrived(chosen);
}

// A counting sort of this rank's choices by expert, which is by receiving rank too.
void ExpertDispatch::PlanSent(absl::Span<const int32_t> chosen) {
  int32_t* const next = At(counts_);
  std::fill_n(next, shape_.experts, 0);
  ForChoices(chosen, shape_.rank, [&](int, int, int expert) { ++next[expert]; });
  int32_t place = 0;
  for (int expert = 0; expert < shape_.experts; ++expert) {
    if (expert % shape_.local_experts() == 0) {
      At(sent_begin_)[expert / shape_.local_experts()] = place;
    }
    const int32_t count = next[expert];
    next[expert] = place;
    place += count;
  }
  sent_begin_.span().back() = place;
  int32_t* const sent_from = At(arrays_);
  int32_t* const sent_choices = sent_from + choices();
  int32_t* const places = sent_choices + choices();
  std::fill_n(places, int64_t{rows_} * shape_.chosen, -1);
  ForChoices(chosen, shape_.rank, [&](int token, int j, int expert) {
    const int32_t at = next[expert]++;
    const int32_t choice = token * shape_.chosen + j;
    sent_from[at] = token;
    sent_choices[at] = choice;
    places[choice] = at;
  });
}

// From the counts of each sending rank and own expert alone: rows of one rank for one expert keep
// their order.
void ExpertDispatch::PlanArrived(absl::Span<const int32_t> chosen) {
  const int experts = shape_.local_experts();
  const int first = shape_.rank * experts;
  int32_t* const arrived_begin = At(arrived_begin_);
  const absl::Span<int32_t> sorted = sorted_begin_.span();
  std::fill_n(At(counts_), counts_.size(), 0);
  for (int rank = 0; rank < shape_.ranks; ++rank) {
    int32_t* const of_rank = At(counts_) + int64_t{rank} * experts;
    ForChoices(chosen, rank, [&](int, int, int expert) {
      if (expert >= first && expert < first + experts) ++of_rank[expert - first];
    });
  }
  std::fill(sorted.begin(), sorted.end(), 0);
  for (int rank = 0; rank < shape_.ranks; ++rank) {
    const int32_t* const of_rank = At(counts_) + int64_t{rank} * experts;
    arrived_begin[rank + 1] = arrived_begin[rank];
    for (int expert = 0; expert < experts; ++expert) {
      arrived_begin[rank + 1] += of_rank[expert];
      sorted[expert + 1] += of_rank[expert];
    }
  }
  for (int expert = 0; expert < experts; ++expert) {
    sorted[expert + 1] += sorted[expert];
  }
  CONVENE_CHECK(received() <= shape_.bound);
  int32_t* const sorted_from = At(arrays_) + 3 * choices();
  int32_t* const arrived_at = sorted_from + shape_.bound;
  int32_t arrived = 0;
  for (int rank = 0; rank < shape_.ranks; ++rank) {
    for (int expert = 0; expert < experts; ++expert) {
      // `sorted` moves on by what is placed, and back below.
      for (int32_t left = At(counts_)[int64_t{rank} * experts + expert]; left > 0;
           --left, ++arrived) {
        const int32_t at = sorted[expert]++;
        sorted_from[at] = arrived;
        arrived_at[arrived] = at;
      }
    }
  }
  std::rotate(sorted.begin(), sorted.end() - 1, sorted.end());
  sorted.back() = arrived;
  sorted.front() = 0;
  int32_t* const expert_of = arrived_at + shape_.bound;
  for (int expert = 0; expert < experts; ++expert) {
    std::fill(expert_of + sorted[expert], expert_of + sorted[expert + 1], expert);
  }
}

}  // namespace convene::worker
