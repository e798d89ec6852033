#include <xxhash.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker_runtime/data/rows.h"
#include "worker_runtime/data/sample_order.h"

namespace convene::worker {
namespace {

class PairRows final : public Rows {
 public:
  PairRows(const TokenSource& source, int sequence_length)
      : source_(source), half_(sequence_length / 2), pairs_(source.document_count() / 2) {}

  // Pairs that are too long are cut, or left out with `drops`, and so are those that teach nothing;
  // the last ones are held out.
  void Take(bool drops, double validation_fraction) {
    for (int64_t pair = 0; pair < pairs_; ++pair) {
      const int64_t chosen = LengthOf(pair);
      const int64_t rejected = LengthOf(pairs_ + pair);
      counts_.documents += 2;
      const bool is_long = std::max(chosen, rejected) > half_;
      if (std::min(chosen, rejected) < 2) {
        counts_.too_short += 2;
      } else if (is_long && drops) {
        counts_.dropped += 2;
      } else if (!Teaches(pair)) {
        counts_.idle += 2;
      } else {
        counts_.cut += (chosen > half_ ? 1 : 0) + (rejected > half_ ? 1 : 0);
        counts_.tokens += KeptOf(pair) + KeptOf(pairs_ + pair);
        kept_.push_back(static_cast<uint32_t>(pair));
        const int64_t lengths[] = {chosen, rejected};
        hash_ = XXH3_64bits_withSeed(lengths, sizeof(lengths), hash_);
      }
    }
    counts_.rows = static_cast<int64_t>(kept_.size());
    if (validation_fraction <= 0 || counts_.rows < 2) return;
    const auto share =
        static_cast<int64_t>(static_cast<double>(counts_.rows) * validation_fraction);
    held_out_ = std::clamp<int64_t>(share, 1, counts_.rows - 1);
  }

  int64_t training_rows() const override { return counts_.rows - held_out_; }
  int64_t validation_rows() const override { return held_out_; }
  int64_t TrainingRow(int64_t seed, int64_t position) const override {
    return SampleAt(seed, training_rows(), position);
  }
  void RangesOf(int64_t row, std::vector<TokenRange>* ranges) const override {
    ranges->clear();
    for (const int64_t document : {int64_t{kept_[row]}, pairs_ + kept_[row]}) {
      ranges->push_back({source_.document_begin(document), KeptOf(document)});
    }
  }
  bool are_documents() const override { return true; }
  bool are_pairs() const override { return true; }
  std::string Text() const override {
    return absl::StrCat("training pairs in rows of ", 2 * half_, " tokens with hash ",
                        absl::Hex(hash_, absl::kZeroPad16));
  }
  std::optional<PackingCounts> packing_counts() const override { return counts_; }

 private:
  int64_t LengthOf(int64_t document) const {
    return source_.document_end(document) - source_.document_begin(document);
  }

  // As many of its tokens as its half of a row has room for.
  int64_t KeptOf(int64_t document) const { return std::min<int64_t>(LengthOf(document), half_); }

  // Whether within their halves the answers differ, and each has a target that counts.
  bool Teaches(int64_t pair) const {
    const int64_t length = KeptOf(pair);
    if (length == KeptOf(pairs_ + pair)) {
      std::vector<int32_t> chosen(length), rejected(length);
      source_.Read(source_.document_begin(pair), length, chosen.data());
      source_.Read(source_.document_begin(pairs_ + pair), length, rejected.data());
      if (chosen == rejected) return false;
    }
    return HasTarget(pair) && HasTarget(pairs_ + pair);
  }
  bool HasTarget(int64_t document) const {
    if (!source_.has_counted()) return true;
    std::vector<uint8_t> counted(KeptOf(document));
    source_.ReadCounted(source_.document_begin(document), static_cast<int64_t>(counted.size()),
                        counted.data());
    return std::any_of(counted.begin() + 1, counted.end(), [](uint8_t one) { return one != 0; });
  }

  const TokenSource& source_;
  const int half_;
  const int64_t pairs_;
  std::vector<uint32_t> kept_;
  int64_t held_out_ = 0;
  PackingCounts counts_;
  uint64_t hash_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Rows>> CutPairs(const TokenSource& source,
                                               const RowsOptions& options,
                                               const PackingOptions& packing) {
  auto rows = std::make_unique<PairRows>(source, options.sequence_length);
  rows->Take(packing.drop_too_long, options.validation_fraction);
  const bool holds_out = options.validation_fraction > 0;
  if (rows->training_rows() >= 1 && (!holds_out || rows->validation_rows() >= 1)) return rows;
  const PackingCounts counts = *rows->packing_counts();
  const std::string why = absl::StrCat(
      "of ", counts.documents / 2, " pairs ", counts.dropped / 2,
      " have an answer that is longer than half of sequence_length ", options.sequence_length, ", ",
      counts.too_short / 2, " one of fewer than two tokens, and ", counts.idle / 2,
      " have the same answers twice, as far as a half holds them, or an answer of which nothing "
      "counts within its half: too few are left for one training row",
      holds_out ? " and one validation row" : "",
      "; give more data or a longer sequence_length, or cut long answers");
  // Pairs that were dropped, or teach nothing, are a fault of the file, however long it is.
  const bool is_short = counts.dropped == 0 && counts.idle == 0;
  return is_short ? absl::OutOfRangeError(why) : absl::InvalidArgumentError(why);
}

}  // namespace convene::worker
