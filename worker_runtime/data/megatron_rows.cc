#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/base/check.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/data/megatron_order.h"
#include "worker_runtime/data/rows.h"

namespace convene::worker {
namespace {

int64_t SequenceBegin(const TokenSource& source, int64_t sequence) {
  return sequence == 0 ? 0 : source.sequence_end(sequence - 1);
}

class MegatronRows final : public Rows {
 public:
  // The held-out rows lie one behind the other from token `validation_begin` on.
  MegatronRows(const TokenSource& source, int sequence_length, int64_t seed, MegatronOrder order,
               int64_t validation_begin, int64_t validation_rows)
      : source_(source),
        sequence_length_(sequence_length),
        seed_(seed),
        order_(std::move(order)),
        validation_begin_(validation_begin),
        validation_rows_(validation_rows) {}

  int64_t training_rows() const override { return order_.sample_count(); }
  int64_t validation_rows() const override { return validation_rows_; }

  // Past the run's last sample the order begins again.
  int64_t TrainingRow(int64_t seed, int64_t position) const override {
    CONVENE_CHECK(seed == seed_);
    return position % training_rows();
  }

  void RangesOf(int64_t row, std::vector<TokenRange>* ranges) const override {
    ranges->clear();
    if (row >= training_rows()) {
      ranges->push_back({validation_begin_ + (row - training_rows()) * sequence_length_,
                         sequence_length_ + INT64_C(1)});
      return;
    }
    std::vector<MegatronOrder::Piece> pieces;
    order_.PiecesOf(row, &pieces);
    for (const MegatronOrder::Piece& piece : pieces) {
      ranges->push_back({SequenceBegin(source_, piece.sequence) + piece.offset, piece.count});
    }
  }

  std::string Text() const override {
    return absl::StrCat("training samples of ", sequence_length_, " tokens in Megatron's order of ",
                        order_.epochs(), " epochs",
                        order_.separate_final_epoch() ? ", the last apart" : "");
  }

 private:
  const TokenSource& source_;
  const int sequence_length_;
  const int64_t seed_;
  const MegatronOrder order_;
  const int64_t validation_begin_;
  const int64_t validation_rows_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Rows>> CutAsMegatron(const TokenSource& source,
                                                    const RowsOptions& options, int64_t seed,
                                                    int64_t run_samples) {
  const bool has_validation = options.validation_fraction > 0.0;
  const int64_t sequences = source.sequence_count();
  // nearbyint rounds halves to even, as Python's round does.
  const auto training = static_cast<int64_t>(
      std::nearbyint((1.0 - options.validation_fraction) * static_cast<double>(sequences)));
  const int64_t validation_begin = SequenceBegin(source, training);
  const int64_t held_out_tokens = source.token_count() - validation_begin;
  const int64_t validation_rows =
      has_validation ? std::max<int64_t>(0, (held_out_tokens - 1) / options.sequence_length) : 0;
  if (has_validation && validation_rows < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the held-out ", sequences - training, " of ", sequences, " sequences have ",
        held_out_tokens, " tokens; one validation sample needs ", options.sequence_length + 1LL,
        ": hold out a larger fraction, or give a shorter sequence_length"));
  }
  const MegatronRun run = {
      .seed = seed, .sequence_length = options.sequence_length, .samples = run_samples};
  CONVENE_ASSIGN_OR_RETURN(MegatronOrder order,
                           MegatronOrder::Build(run, training, [&source](int64_t sequence) {
                             return source.sequence_end(sequence) - SequenceBegin(source, sequence);
                           }));
  return std::make_unique<MegatronRows>(source, options.sequence_length, seed, std::move(order),
                                        validation_begin, validation_rows);
}

}  // namespace convene::worker
