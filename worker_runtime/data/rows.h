// One source of tokens, cut into rows of T inputs and T targets. Three ways to cut, one interface.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker_runtime/data/packing.h"
#include "worker_runtime/data/store/token_source.h"

namespace convene::worker {

// Tokens that lie side by side in the source.
struct TokenRange {
  int64_t first = 0;
  int64_t count = 0;
};

// Rows have numbers: [0, training_rows()) are trained, the validation_rows() after them are held
// out. Read-only and thread-safe.
class Rows {
 public:
  virtual ~Rows() = default;

  virtual int64_t training_rows() const = 0;
  virtual int64_t validation_rows() const = 0;

  // The row at `position` of the endless order that `seed` gives.
  virtual int64_t TrainingRow(int64_t seed, int64_t position) const = 0;

  // Replaces `ranges` by the row's. Without are_documents: T + 1 tokens, of which the first T are
  // inputs and the last T targets. With: each range is a document, whose tokens are inputs, each
  // with the next as target, and the last without one; T tokens at most, the rest is padding.
  virtual void RangesOf(int64_t row, std::vector<TokenRange>* ranges) const = 0;
  virtual bool are_documents() const { return false; }
  // Documents of which a row has two: the second one begins in the middle of the row, at T / 2.
  virtual bool are_pairs() const { return false; }

  // "training samples of 128 tokens", without their number: what a checkpoint must find again to
  // go on in the same order.
  virtual std::string Text() const = 0;
  // How the rows came about, with packing.
  virtual std::optional<PackingCounts> packing_counts() const { return std::nullopt; }
};

struct RowsOptions {
  int sequence_length = 0;
  double validation_fraction = 0.0;
};

// Row i is the tokens [i * T, i * T + T] of the source; its last token is the next row's first. The
// tokens left at the end (fewer than T + 1) are unused. OutOfRange: too few tokens; the text says
// how many there are and how many are needed. The source is borrowed.
absl::StatusOr<std::unique_ptr<Rows>> CutContiguously(const TokenSource& source,
                                                      const RowsOptions& options);

// Rows of whole documents; the last documents are held out and packed apart. InvalidArgument: the
// source does not know its documents; or it has too few rows though documents were dropped; or it
// has rows, but none to train, or none to hold out. OutOfRange: all its documents fill fewer rows
// than one of each kind that is wanted.
absl::StatusOr<std::unique_ptr<Rows>> PackDocuments(const TokenSource& source,
                                                    const RowsOptions& options,
                                                    const PackingOptions& packing);

// Rows of a pair of answers each (pair_source.h gives the source). With `packing` an answer longer
// than half a row is cut, or its pair left out; the last pairs are held out. OutOfRange: too
// few pairs. InvalidArgument: too few pairs are left where pairs were left out or teach nothing.
absl::StatusOr<std::unique_ptr<Rows>> CutPairs(const TokenSource& source,
                                               const RowsOptions& options,
                                               const PackingOptions& packing);

// Megatron's samples for a run of `run_samples` (megatron_order.h). Held out are the last sequences
// (round half to even, as its --split does), in the file's order. InvalidArgument as
// MegatronOrder::Build, or too few tokens.
absl::StatusOr<std::unique_ptr<Rows>> CutAsMegatron(const TokenSource& source,
                                                    const RowsOptions& options, int64_t seed,
                                                    int64_t run_samples);

}  // namespace convene::worker
