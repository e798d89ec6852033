#include "worker_runtime/data/packing.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "absl/strings/str_cat.h"
#include "tools/base/check.h"

namespace convene::worker {
namespace {

constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();

// A set of numbers in [0, size), with the next one found in a few steps: a bit for each number, and
// above it a bit for each word that has any, and so on.
class OrderedSet {
 public:
  explicit OrderedSet(size_t size) {
    do {
      size = (size + 63) / 64;
      levels_.emplace_back(size);
    } while (size > 1);
  }

  void Insert(size_t number) {
    for (std::vector<uint64_t>& level : levels_) {
      level[number / 64] |= uint64_t{1} << (number % 64);
      number /= 64;
    }
  }

  void Erase(size_t number) {
    for (std::vector<uint64_t>& level : levels_) {
      level[number / 64] &= ~(uint64_t{1} << (number % 64));
      if (level[number / 64] != 0) return;
      number /= 64;
    }
  }

  // The smallest that is at least `number`, or SIZE_MAX.
  size_t Next(size_t number) const {
    for (size_t height = 0; height < levels_.size(); ++height) {
      const size_t word = number / 64;
      if (word >= levels_[height].size()) return std::numeric_limits<size_t>::max();
      const uint64_t rest = levels_[height][word] >> (number % 64);
      if (rest != 0) return Descend(height, number + std::countr_zero(rest));
      number = word + 1;
    }
    return std::numeric_limits<size_t>::max();
  }

 private:
  size_t Descend(size_t height, size_t number) const {
    while (height > 0) {
      --height;
      number = number * 64 + std::countr_zero(levels_[height][number]);
    }
    return number;
  }

  std::vector<std::vector<uint64_t>> levels_;
};

// Rows by the room that they have left.
class OpenRows {
 public:
  explicit OpenRows(int row_tokens)
      : row_tokens_(row_tokens), first_(row_tokens + 1, kNone), rooms_(row_tokens + 1) {}

  // The row that takes a document of `length` tokens: the one with the least room that holds it.
  uint32_t Take(int64_t length) {
    size_t room = rooms_.Next(length);
    uint32_t row;
    if (room > static_cast<size_t>(row_tokens_)) {
      room = row_tokens_;
      row = static_cast<uint32_t>(next_.size());
      next_.push_back(kNone);
    } else {
      row = first_[room];
      first_[room] = next_[row];
      if (first_[room] == kNone) rooms_.Erase(room);
    }
    const size_t left = room - length;
    // Nothing shorter than two tokens comes.
    if (left >= 2) {
      next_[row] = first_[left];
      first_[left] = row;
      rooms_.Insert(left);
    }
    return row;
  }

  size_t size() const { return next_.size(); }

 private:
  const int row_tokens_;
  std::vector<uint32_t> first_;  // by room: a list of rows
  std::vector<uint32_t> next_;   // by row: the next with as much room
  OrderedSet rooms_;
};

}  // namespace

PackingCounts& PackingCounts::operator+=(const PackingCounts& other) {
  documents += other.documents;
  rows += other.rows;
  tokens += other.tokens;
  cut += other.cut;
  dropped += other.dropped;
  too_short += other.too_short;
  idle += other.idle;
  lost_tokens += other.lost_tokens;
  return *this;
}

absl::StatusOr<Packing> Packing::Pack(int row_tokens, int64_t document_count,
                                      absl::FunctionRef<int64_t(int64_t)> length,
                                      const PackingOptions& options) {
  CONVENE_CHECK(row_tokens >= 1 && document_count >= 0);
  if (document_count >= int64_t{kNone}) {
    return absl::InvalidArgumentError(absl::StrCat(document_count, " documents are more than the ",
                                                   kNone - 1, " that can be packed"));
  }
  Packing packing;
  PackingCounts& counts = packing.counts_;
  counts.documents = document_count;
  const auto tokens_of = [&](int64_t document) -> int64_t {
    const int64_t tokens = length(document);
    if (tokens < 2 || (tokens > row_tokens && options.drop_too_long)) return 0;
    return std::min<int64_t>(tokens, row_tokens);
  };
  // Sorted by length, by counting: where the documents of each length begin, the longest first.
  std::vector<uint32_t> begin(row_tokens + 2, 0);
  for (int64_t document = 0; document < document_count; ++document) {
    const int64_t all = length(document);
    const int64_t kept = tokens_of(document);
    counts.too_short += all < 2 ? 1 : 0;
    counts.dropped += all >= 2 && kept == 0 ? 1 : 0;
    counts.cut += kept > 0 && kept < all ? 1 : 0;
    counts.tokens += kept;
    counts.lost_tokens += all - kept;
    if (kept > 0) ++begin[row_tokens - kept + 1];
  }
  for (int i = 0; i <= row_tokens; ++i) begin[i + 1] += begin[i];
  std::vector<uint32_t> by_length(begin[row_tokens + 1]);
  for (int64_t document = 0; document < document_count; ++document) {
    const int64_t kept = tokens_of(document);
    if (kept > 0) by_length[begin[row_tokens - kept]++] = static_cast<uint32_t>(document);
  }
  std::vector<uint32_t> row_of(document_count, kNone);
  OpenRows rows(row_tokens);
  for (const uint32_t document : by_length) row_of[document] = rows.Take(tokens_of(document));
  counts.rows = static_cast<int64_t>(rows.size());
  // From the row of each document to the documents of each row.
  std::vector<uint32_t>& row_begin = packing.row_begin_;
  row_begin.assign(rows.size() + 1, 0);
  for (const uint32_t row : row_of) {
    if (row != kNone) ++row_begin[row + 1];
  }
  for (size_t row = 0; row < rows.size(); ++row) row_begin[row + 1] += row_begin[row];
  std::vector<uint32_t> next(row_begin.begin(), row_begin.end() - 1);
  packing.documents_ = std::move(by_length);
  for (int64_t document = 0; document < document_count; ++document) {
    if (row_of[document] == kNone) continue;
    packing.documents_[next[row_of[document]]++] = static_cast<uint32_t>(document);
  }
  return packing;
}

}  // namespace convene::worker
