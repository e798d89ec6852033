#include "worker_runtime/tokenizer/pair_merges.h"

#include <algorithm>
#include <functional>
#include <limits>

#include "tools/base/check.h"

namespace convene::worker {
namespace {

// The rank of a pair that is in no merge.
constexpr int32_t kNoRank = std::numeric_limits<int32_t>::max();

// Up to this many symbols a look at all ranks for each merge costs less than a heap.
constexpr size_t kShort = 100;

// The table has 2^TableBits slots.
int TableBits(size_t merges) {
  int bits = 4;
  while ((size_t{1} << bits) < 2 * merges) ++bits;
  return bits;
}

// Half of what a core's second cache holds.
constexpr int kMostFilterBits = 22;

}  // namespace

PairMerges::PairMerges(absl::Span<const Merge> merges)
    : filter_(std::min(TableBits(merges.size()) + 2, kMostFilterBits)) {
  const int bits = TableBits(merges.size());
  slots_.assign(size_t{1} << bits, Merge{-1, -1, -1, kNoRank});
  mask_ = slots_.size() - 1;
  shift_ = 64 - bits;
  for (const Merge& merge : merges) {
    CONVENE_CHECK(merge.left >= 0 && merge.right >= 0 && merge.merged >= 0);
    CONVENE_CHECK(merge.rank >= 0 && merge.rank < kNoRank);
    const uint64_t hash =
        HashOfPair(static_cast<uint32_t>(merge.left), static_cast<uint32_t>(merge.right));
    filter_.Add(hash);
    uint64_t slot = hash >> shift_;
    while (slots_[slot].merged >= 0 &&
           !(slots_[slot].left == merge.left && slots_[slot].right == merge.right)) {
      slot = (slot + 1) & mask_;
    }
    slots_[slot] = merge;
  }
}

void PairMerges::Apply(std::vector<int32_t>* symbols, Scratch* scratch) const {
  if (symbols->size() < 2) return;
  if (symbols->size() <= kShort) {
    ApplyToShort(symbols, scratch);
  } else {
    ApplyToLong(symbols, scratch);
  }
}

void PairMerges::ApplyToShort(std::vector<int32_t>* symbols, Scratch* scratch) const {
  int32_t* const ids = symbols->data();
  size_t size = symbols->size();
  scratch->ranks.resize(size);
  // Of the pair of symbols i and i + 1. The last symbol begins no pair.
  int32_t* const ranks = scratch->ranks.data();
  const auto look_up = [&](size_t i) {
    const Merge* const merge = Find(ids[i], ids[i + 1]);
    ranks[i] = merge == nullptr ? kNoRank : merge->rank;
  };
  for (size_t i = 0; i + 1 < size; ++i) look_up(i);
  ranks[size - 1] = kNoRank;
  for (;;) {
    size_t best = 0;
    int32_t best_rank = ranks[0];
    for (size_t i = 1; i < size; ++i) {
      if (ranks[i] < best_rank) {
        best_rank = ranks[i];
        best = i;
      }
    }
    if (best_rank == kNoRank) break;
    ids[best] = Find(ids[best], ids[best + 1])->merged;
    // The pair of symbol `best` is looked up again below; the pair of best + 1 goes with it.
    std::copy(ids + best + 2, ids + size, ids + best + 1);
    std::copy(ranks + best + 2, ranks + size, ranks + best + 1);
    --size;
    if (best + 1 < size) {
      look_up(best);
    } else {
      ranks[best] = kNoRank;
    }
    if (best > 0) look_up(best - 1);
  }
  symbols->resize(size);
}

void PairMerges::ApplyToLong(std::vector<int32_t>* symbols, Scratch* scratch) const {
  std::vector<int32_t>& ids = *symbols;
  CONVENE_CHECK(ids.size() < std::numeric_limits<uint32_t>::max());
  const auto size = static_cast<uint32_t>(ids.size());
  // The symbols are a list: a merge puts its result at its left place and drops its right one.
  std::vector<uint32_t>& previous = scratch->previous;
  std::vector<uint32_t>& next = scratch->next;
  std::vector<int32_t>& ranks = scratch->ranks;
  previous.resize(size);
  next.resize(size);
  ranks.assign(size, kNoRank);
  // The best pair is on top, by rank and then by place. An entry is stale when its place has
  // another rank by now; it is dropped when it comes up.
  std::vector<uint64_t>& heap = scratch->heap;
  heap.clear();
  const auto look_up = [&](uint32_t i) {
    const Merge* const merge = next[i] == size ? nullptr : Find(ids[i], ids[next[i]]);
    ranks[i] = merge == nullptr ? kNoRank : merge->rank;
    if (merge != nullptr) heap.push_back(static_cast<uint64_t>(merge->rank) << 32 | i);
    return merge != nullptr;
  };
  for (uint32_t i = 0; i < size; ++i) {
    previous[i] = i - 1;
    next[i] = i + 1;
  }
  for (uint32_t i = 0; i < size; ++i) look_up(i);
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  while (!heap.empty()) {
    const uint64_t best = heap.front();
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    heap.pop_back();
    const auto place = static_cast<uint32_t>(best);
    if (ranks[place] != static_cast<int32_t>(best >> 32)) continue;
    const uint32_t dropped = next[place];
    ids[place] = Find(ids[place], ids[dropped])->merged;
    ranks[dropped] = kNoRank;
    next[place] = next[dropped];
    if (next[place] < size) previous[next[place]] = place;
    if (look_up(place)) std::push_heap(heap.begin(), heap.end(), std::greater<>());
    if (place > 0 && look_up(previous[place])) {
      std::push_heap(heap.begin(), heap.end(), std::greater<>());
    }
  }
  size_t kept = 0;
  for (uint32_t i = 0; i < size; i = next[i]) ids[kept++] = ids[i];
  ids.resize(kept);
}

}  // namespace convene::worker
