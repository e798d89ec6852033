// Token samples: rows of `sequence_length` inputs and targets from a token file.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker_runtime/data/token_file.h"

namespace convene::worker {

// Sample i is the tokens [i * T, i * T + T], T = sequence_length: T inputs and, one later, T
// targets; its last token is the next sample's first. The first training_samples() are trained on;
// the validation_samples() after them are held out. The tokens left at the end (fewer than T + 1)
// are unused. Read-only and thread-safe; copies are cheap.
class Dataset {
 public:
  // The last `validation_fraction` of the samples is held out, rounded down, but at least one when
  // it is above 0. InvalidArgument: sequence_length < 1, a fraction outside [0, 1), or too few
  // tokens for one training sample (and one validation sample): the text says how many there are
  // and how many are needed. Otherwise as TokenFile::Open.
  static absl::StatusOr<Dataset> Open(const std::string& token_file, int sequence_length,
                                      double validation_fraction);

  int sequence_length() const { return sequence_length_; }
  int vocabulary_size() const { return tokens_.vocabulary_size(); }
  int64_t token_count() const { return tokens_.token_count(); }
  uint64_t content_hash() const { return tokens_.content_hash(); }
  // Whether the token occurs anywhere; reads the file until it does.
  bool Contains(int32_t token) const { return tokens_.Contains(token); }
  // "1115394 tokens with hash 9ae16a3b2f90404f": identifies the tokens, for checkpoints and people.
  std::string Identity() const;
  // "8278 training samples of 128 tokens": how the tokens are cut; another cut gives other samples
  // in another order.
  std::string SamplesText() const;
  int64_t training_samples() const { return training_samples_; }
  int64_t validation_samples() const { return validation_samples_; }

  // Row r of `inputs` and `targets`, each (positions.size(), T), is the training sample at
  // positions[r] of the order that `seed` gives (sample_order.h). A row of kNoSample has inputs 0
  // and targets -1, which the loss does not count.
  void FillMicrobatch(int64_t seed, absl::Span<const int64_t> positions, int32_t* inputs,
                      int32_t* targets) const;

  // The same for held-out samples by their index, in the file's order; kNoSample as above.
  // REQUIRES: each index is kNoSample or in [0, validation_samples()).
  void FillValidation(absl::Span<const int64_t> indices, int32_t* inputs, int32_t* targets) const;

 private:
  Dataset(TokenFile tokens, int sequence_length, int64_t training_samples,
          int64_t validation_samples);
  void FillRow(int64_t sample, int32_t* inputs, int32_t* targets) const;

  TokenFile tokens_;
  int sequence_length_;
  int64_t training_samples_;
  int64_t validation_samples_;
};

}  // namespace convene::worker
