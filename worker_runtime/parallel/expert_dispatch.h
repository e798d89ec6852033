// Where the tokens of an expert-parallel group go, and where their results come back: the order of
// the rows on each leg of the way. Nothing is dropped.
//
//   x (rows)          a rank's tokens
//     │ sent_from
//   sent (rows x chosen)     by receiving rank, its expert, token
//     │ AllToAllV
//   arrived                  by sending rank, expert, token
//     │ sorted_from
//   sorted                   by expert, sending rank, token: what the experts' products take
//
// and back the same way: arrived[i] = sorted[arrived_at[i]], AllToAllV, and token t takes
// sent[places[t][j]] of its j-th expert. Where each rank has all experts, `sent` is sorted already.
// A token may go to no expert: then it is not sent, and its places are -1.
//
// How many tokens a rank gets is known when they are routed alone, and its memory is planned before
// (`bound`). A microbatch with more for any rank of the group goes in chunks of its tokens, so few
// that all of them could choose one rank's experts.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "worker_runtime/device/arena.h"

namespace convene::worker {

struct DispatchShape {
  int ranks = 1;
  int rank = 0;
  int rows = 0;     // tokens of each rank
  int chosen = 0;   // experts of a token
  int experts = 0;  // of all ranks together; rank r has the r-th run of them
  int64_t bound =
      0;  // rows of `arrived` and `sorted` that a rank has room for; at least LeastBound

  int local_experts() const { return experts / ranks; }
  // Experts of one rank that a token can choose.
  int chosen_of_rank() const { return chosen < local_experts() ? chosen : local_experts(); }
};

// The most rows that a rank can get of so many tokens of each rank.
int64_t MostReceived(const DispatchShape& shape, int rows);
// The room that `factor` times an even load takes, or less where no load needs as much.
int64_t BoundOf(const DispatchShape& shape, double factor);

// How the load of a microbatch is spread over the group's experts.
struct ExpertLoad {
  double highest = 0;  // the most tokens of an expert, over the mean of all; 0: there are none
  double entropy = 0;  // of the shares of experts in the tokens, in nats
  bool is_chunked = false;
};

// Not thread-safe. Its numbers follow from the choices alone.
class ExpertDispatch {
 public:
  // Declares its arrays, of their full length, in `host`: memory that the host writes, and that
  // devices copy from. Build it before all other calls.
  ExpertDispatch(const DispatchShape& shape, Arena& host);

  // Takes the choices of all ranks: (ranks, rows, chosen), of which each token's are distinct
  // numbers below `experts`, or all -1: it goes to no expert. Says how the load is spread. The plan
  // is then chunk 0's.
  ExpertLoad Route(absl::Span<const int32_t> chosen);

  int chunks() const { return chunks_; }
  // The arrays below become those of a chunk. `chosen`: the same as Route's.
  void Plan(absl::Span<const int32_t> chosen, int chunk);

  // Of the chunk: this rank's tokens, and how many rows come to its experts.
  int row_begin() const { return row_begin_; }
  int rows() const { return rows_; }
  int sent() const { return sent_begin_.span().back(); }
  int received() const { return sorted_begin().back(); }
  // By receiving rank, and by sending rank: (ranks + 1) borders.
  const int32_t* sent_begin() const { return At(sent_begin_); }
  const int32_t* arrived_begin() const { return At(arrived_begin_); }
  // (local experts + 1)
  absl::Span<const int32_t> sorted_begin() const { return sorted_begin_.span(); }

  // All index arrays side by side, as they go to the device in one copy, and where each begins.
  static int64_t ArraysCount(const DispatchShape& shape);
  absl::Span<const int32_t> arrays() const { return arrays_.span(); }
  // All count the chunk's tokens from 0. sent_choices: (token, j) as token * chosen + j.
  const int32_t* SentFrom(const int32_t* arrays) const { return arrays; }
  const int32_t* SentChoices(const int32_t* arrays) const { return arrays + choices(); }
  const int32_t* Places(const int32_t* arrays) const { return arrays + 2 * choices(); }
  const int32_t* SortedFrom(const int32_t* arrays) const { return arrays + 3 * choices(); }
  const int32_t* ArrivedAt(const int32_t* arrays) const {
    return arrays + 3 * choices() + shape_.bound;
  }
  // Of each sorted row its expert, counted from this rank's first one.
  const int32_t* ExpertOf(const int32_t* arrays) const {
    return arrays + 3 * choices() + 2 * shape_.bound;
  }

 private:
  int64_t choices() const { return int64_t{shape_.rows} * shape_.chosen; }
  // Calls for each expert that a rank's tokens in the chunk chose: (token, place among its choices,
  // expert).
  template <typename Visit>
  void ForChoices(absl::Span<const int32_t> chosen, int rank, const Visit& visit) const;
  void PlanSent(absl::Span<const int32_t> chosen);
  void PlanArrived(absl::Span<const int32_t> chosen);

  const DispatchShape shape_;
  int chunks_ = 1;
  int row_begin_ = 0;
  int rows_ = 0;
  ArenaBlock<int32_t> arrays_;
  ArenaBlock<int32_t> sent_begin_, arrived_begin_, sorted_begin_;
  ArenaBlock<int32_t> counts_;  // (ranks, experts), then where the next row of each goes
};

}  // namespace convene::worker
