// PURE. The order of samples of Megatron-core's GPTDataset, to the token.
//
// Source: megatron/core/datasets/gpt_dataset.py (_build_document_sample_shuffle_indices) and
// helpers.cpp (build_sample_idx). The epochs are as many as the run needs. The sequences of all
// epochs, each epoch's list behind the other, are shuffled together (the document index), and the
// samples are cut from them one behind the other, sample i being the tokens [i * T, i * T + T]; a
// second shuffle says which sample comes when (the shuffle index). When the last epoch is needed
// for less than 80 % of its samples, it is shuffled apart, after the others, and so are its
// samples. Both shuffles are numpy's RandomState(seed).shuffle: Fisher and Yates from the end,
// drawing from [0, i] by MT19937's 32 bits, masked, until they fit.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"

namespace convene::worker {

struct MegatronRun {
  int64_t seed = 0;
  int sequence_length = 0;
  // All samples of the run, from its first step on: they decide the epochs.
  int64_t samples = 0;
};

// Thread-safe. 4 bytes for each sequence of each epoch, and 4 for each sample.
class MegatronOrder {
 public:
  // Of sequence `sequence` in [0, count) `length`(sequence) is the number of tokens. It is kept,
  // and must give the same answer every time. InvalidArgument: a seed outside [0, 2^32), no
  // samples, too few tokens for one, or more than 2^32 - 2 samples or 2^31 - 1 sequences (numpy
  // takes wider numbers from there on, and so other ones).
  static absl::StatusOr<MegatronOrder> Build(const MegatronRun& run, int64_t count,
                                             std::function<int64_t(int64_t)> length);

  // At least MegatronRun::samples.
  int64_t sample_count() const { return static_cast<int64_t>(shuffle_.size()); }
  int64_t epochs() const { return epochs_; }
  bool separate_final_epoch() const { return separate_final_epoch_; }

  struct Piece {
    int64_t sequence = 0;
    int64_t offset = 0;  // in the sequence, in tokens
    int64_t count = 0;
    friend bool operator==(const Piece&, const Piece&) = default;
  };
  // Replaces `pieces` by those of the sample at `index`: sequence_length + 1 tokens together, none
  // empty. REQUIRES: 0 <= index < sample_count().
  void PiecesOf(int64_t index, std::vector<Piece>* pieces) const;

 private:
  MegatronOrder() = default;
  void IndexTokens();

  int sequence_length_ = 0;
  int64_t epochs_ = 0;
  bool separate_final_epoch_ = false;
  std::function<int64_t(int64_t)> length_;
  std::vector<int32_t> sequences_;      // the document index
  std::vector<int64_t> tokens_before_;  // of every 64th entry of sequences_
  std::vector<uint32_t> shuffle_;       // the shuffle index
};

}  // namespace convene::worker
