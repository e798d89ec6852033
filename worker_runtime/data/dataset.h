// Token samples: rows of `sequence_length` inputs and targets from files of tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker_runtime/data/packing.h"
#include "worker_runtime/data/sample_order.h"
#include "worker_runtime/data/store/token_source.h"

namespace convene::worker {

struct TokenRange;

// How a file of tokens is cut into samples, and in which order they are trained.
enum class SampleOrder {
  // Sample i is the tokens [i * T, i * T + T] of the file; the order is sample_order.h's.
  kShuffled,
  // The samples of Megatron-core's GPTDataset (megatron_order.h).
  kMegatron,
};

struct DatasetSource {
  std::shared_ptr<const TokenSource> tokens;
  // The share of the samples that come from it, in any unit; above 0. Either all sources have one
  // or none has; without, each source's share is its number of samples, and all come round
  // together; a source that is too short for a sample is then left out, as long as another is not.
  std::optional<double> weight;
};

struct DatasetOptions {
  std::vector<DatasetSource> sources;  // of one tokenizer, as OpenData gives them
  int sequence_length = 0;
  // Of each source, the last such part is held out, rounded down, but at least one sample (a
  // document with `packing`, one sample's tokens in Megatron's order) when it is above 0. With 1
  // all is held out, and nothing is left to train on.
  double validation_fraction = 0.0;
  SampleOrder order = SampleOrder::kShuffled;
  // With `packing` a row is whole documents, padded at the end. Without, a row begins and ends
  // anywhere.
  std::optional<PackingOptions> packing;
  // With `packing`: the sources are JoinPairs' (pair_source.h), and a row is a pair of answers,
  // each padded to half the row.
  bool pairs = false;
  // The model's; a row with an id outside it is refused. 0: every id that a file may have is taken.
  int vocabulary_size = 0;
  // For SampleOrder::kMegatron alone, which builds its order when the data is opened: the seed that
  // TrainingPlaces will be given, and how many samples the whole run takes, from its first step on:
  // steps times the global batch. They decide how many epochs are shuffled together.
  int64_t seed = 0;
  int64_t run_samples = 0;
};

// Row r of what is filled is one sample: `sequence_length` = T inputs and, one later in the text, T
// targets. A target is -1, which the loss does not count, where the file says that its token does
// not count, and where there is none (after a document of a packed row); behind the last token of a
// packed row it is -2 (ops/targets.h). Training
// samples stand at positions of an endless order: a function of the seed and the position alone
// (blend.h says which source, sample_order.h which of its samples). Held-out samples have an index
// in [0, validation_samples()): any first n of them have the sources' shares of all held-out ones.
// A position or index of kNoSample is a row of padding: inputs 0, targets -2.
//
// Read-only and thread-safe; copies are cheap.
class Dataset {
 public:
  // InvalidArgument: sequence_length < 1, a fraction outside [0, 1], too few tokens for one
  // training sample (and one validation sample) in all sources or in one with a share, a source
  // with ids for more than `vocabulary_size`, Megatron's order with several sources, packing, all
  // held out or a bad seed, packing of a source that does not know its documents. The text names
  // the source.
  static absl::StatusOr<Dataset> Open(const DatasetOptions& options);

  // The sources that were left out, in their order: they are in nothing else that is asked here.
  // The options alone decide which sources these are, so that ranks and restarts agree.
  absl::Span<const std::shared_ptr<const TokenSource>> left_out() const;

  int sequence_length() const;
  // The largest of the sources that say; 0: none does.
  int vocabulary_size() const;
  int64_t token_count() const;
  uint64_t content_hash() const;
  // Of the first source that says.
  const TokenizerIdentity& tokenizer() const;
  // Whether the token occurs anywhere; reads the files until it does.
  bool Contains(int32_t token) const;
  // "1115394 tokens with hash 9ae16a3b2f90404f": identifies the tokens, for checkpoints and people.
  // Several sources stand one behind the other, with their shares.
  std::string Identity() const;
  // "8278 training samples of 128 tokens": how the tokens are cut; another cut gives other samples
  // in another order.
  std::string SamplesText() const;
  int64_t training_samples() const;
  int64_t validation_samples() const;

  // Whether some tokens do not count: CountedTargets is then less than T a row. Rows of packed
  // documents are such rows.
  bool has_counted() const;
  // Whether rows know their documents (packing), and FillDocuments may be called.
  bool has_documents() const;
  // Present with packing: what became of the documents of all sources, training and held out.
  std::optional<PackingCounts> packing_counts() const;

  // Where a sample's row stands, for the calls below.
  struct Place {
    int source = 0;
    int64_t row = kNoSample;
  };
  // REQUIRES: training_samples() > 0.
  std::vector<Place> TrainingPlaces(int64_t seed, absl::Span<const int64_t> positions) const;
  // REQUIRES: each index is kNoSample or in [0, validation_samples()).
  std::vector<Place> ValidationPlaces(absl::Span<const int64_t> indices) const;
  // Rows have numbers from 0 to row_count(), those of all sources one behind the other.
  int64_t row_count() const;
  std::vector<Place> RowPlaces(absl::Span<const int64_t> numbers) const;
  int64_t RowNumber(const Place& place) const;

  // `inputs` and `targets` are (places.size(), T). InvalidArgument: a row has an id outside the
  // vocabulary; the text names file, token and id.
  absl::Status Fill(absl::Span<const Place> places, int32_t* inputs, int32_t* targets) const;

  // For each input of the rows the position in its row at which its document begins, as
  // FindDocuments gives them; (places.size(), T). Padding is a document of its own. REQUIRES:
  // has_documents().
  void FillDocuments(absl::Span<const Place> places, int32_t* begin) const;

  // How many targets of these rows are tokens: what the loss of a global batch is divided by. Reads
  // no tokens, and nothing at all where all count. Of pairs the pairs that are there.
  int64_t CountedTargets(absl::Span<const Place> places) const;

  // Bytes of text that the targets which count stand for: what a loss in bits per byte is divided
  // by. Absent when a source does not say.
  std::optional<int64_t> ValidationTargetBytes(absl::Span<const int64_t> indices) const;

 private:
  struct Parts;
  explicit Dataset(std::shared_ptr<const Parts> parts);
  absl::Status FillRow(const Place& place, int32_t* inputs, int32_t* targets) const;
  std::vector<TokenRange> TargetsOf(const Place& place) const;

  std::shared_ptr<const Parts> parts_;
};

}  // namespace convene::worker
