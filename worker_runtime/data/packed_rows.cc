#include <xxhash.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/data/rows.h"
#include "worker_runtime/data/sample_order.h"

namespace convene::worker {
namespace {

TokenRange DocumentRange(const TokenSource& source, int64_t document) {
  const int64_t first = source.document_begin(document);
  return {first, source.document_end(document) - first};
}

class PackedRows final : public Rows {
 public:
  PackedRows(const TokenSource& source, int sequence_length, int64_t training_documents,
             Packing training, Packing validation)
      : source_(source),
        sequence_length_(sequence_length),
        training_documents_(training_documents),
        training_(std::move(training)),
        validation_(std::move(validation)) {
    for (int64_t document = 0; document < training_documents_; ++document) {
      const int64_t end = source_.document_end(document);
      ends_hash_ = XXH3_64bits_withSeed(&end, sizeof(end), ends_hash_);
    }
  }

  int64_t training_rows() const override { return training_.row_count(); }
  int64_t validation_rows() const override { return validation_.row_count(); }

  int64_t TrainingRow(int64_t seed, int64_t position) const override {
    return SampleAt(seed, training_rows(), position);
  }

  void RangesOf(int64_t row, std::vector<TokenRange>* ranges) const override {
    ranges->clear();
    const bool is_training = row < training_rows();
    const absl::Span<const uint32_t> documents =
        is_training ? training_.Row(row) : validation_.Row(row - training_rows());
    for (const uint32_t document : documents) {
      TokenRange range =
          DocumentRange(source_, int64_t{document} + (is_training ? 0 : training_documents_));
      range.count = std::min<int64_t>(range.count, sequence_length_);
      ranges->push_back(range);
    }
  }

  bool are_documents() const override { return true; }

  std::string Text() const override {
    return absl::StrCat(
        "training rows of ", sequence_length_, " tokens, packed with ",
        training_.counts().documents - training_.counts().dropped - training_.counts().too_short,
        " documents with hash ", absl::Hex(ends_hash_, absl::kZeroPad16));
  }

  std::optional<PackingCounts> packing_counts() const override {
    PackingCounts sum = training_.counts();
    sum += validation_.counts();
    return sum;
  }

 private:
  const TokenSource& source_;
  const int sequence_length_;
  const int64_t training_documents_;
  const Packing training_;
  const Packing validation_;  // its document 0 is training_documents_
  // Other documents' ends in the same tokens give other rows.
  uint64_t ends_hash_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Rows>> PackDocuments(const TokenSource& source,
                                                    const RowsOptions& options,
                                                    const PackingOptions& packing) {
  if (!source.knows_documents()) {
    return absl::InvalidArgumentError(
        "packing needs to know where documents begin, and this file does not say: prepare it again "
        "from its text, or train without packing");
  }
  const int64_t documents = source.document_count();
  const bool has_validation = options.validation_fraction > 0.0;
  const int64_t needed = has_validation ? 2 : 1;
  int64_t held_out = 0;
  if (has_validation && documents >= needed) {
    held_out = std::clamp<int64_t>(
        static_cast<int64_t>(static_cast<double>(documents) * options.validation_fraction), 1,
        documents - 1);
  }
  const int64_t training = documents - held_out;
  const auto pack = [&](int64_t first, int64_t count) {
    const auto length = [&](int64_t i) { return DocumentRange(source, first + i).count; };
    return Packing::Pack(options.sequence_length, count, length, packing);
  };
  CONVENE_ASSIGN_OR_RETURN(Packing training_rows, pack(0, training));
  CONVENE_ASSIGN_OR_RETURN(Packing validation_rows, pack(training, held_out));
  if (training_rows.row_count() < 1 || (has_validation && validation_rows.row_count() < 1)) {
    const int64_t dropped = training_rows.counts().dropped + validation_rows.counts().dropped;
    const std::string why =
        absl::StrCat("of ", documents, " documents ", dropped, " are longer than sequence_length ",
                     options.sequence_length, " and ",
                     training_rows.counts().too_short + validation_rows.counts().too_short,
                     " have fewer than two tokens: too few are left for one training row",
                     has_validation ? " and one validation row" : "",
                     "; give more data or a longer sequence_length, or cut long documents");
    // A file that only lacks its held-out row may be long, and so is one whose documents were
    // dropped.
    const bool is_short =
        dropped == 0 && training_rows.row_count() + validation_rows.row_count() < needed;
    return is_short ? absl::OutOfRangeError(why) : absl::InvalidArgumentError(why);
  }
  return std::make_unique<PackedRows>(source, options.sequence_length, training,
                                      std::move(training_rows), std::move(validation_rows));
}

}  // namespace convene::worker
