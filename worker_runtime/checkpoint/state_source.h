// The state of a training run outside of it: pieces of tensors with their element type, and where
// they are read from.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker_runtime/checkpoint/box.h"
#include "worker_runtime/device/elements.h"

namespace convene::worker {

// `data`, borrowed and in host memory, is the piece's flat_count elements in fp32 or bf16.
struct PieceToWrite {
  TensorPiece piece;
  ConstElements data;
};
struct PieceToRead {
  TensorPiece piece;
  Elements data;
};

// The tokenizer that made a run's ids, as the run's checkpoints remember it.
struct TokenizerMark {
  std::string path;          // where the run read it from, as LoadTokenizer takes it; "": not known
  uint64_t fingerprint = 0;  // Tokenizer::fingerprint(); 0: not known
  std::string chat_template;  // of messages: the name or the path that the run was given
  friend bool operator==(const TokenizerMark&, const TokenizerMark&) = default;
};

// The facts that are the same on all ranks.
struct CheckpointInfo {
  int64_t step = 0;              // finished optimizer steps
  int64_t samples_consumed = 0;  // = position in the sample order
  // Steps that changed the weights (the others were skipped): Adam's bias correction counts these.
  // In checkpoints of format versions below 3 it is `step`.
  int64_t updates = 0;
  int64_t seed = 0;
  std::string model;  // a text form of the shape; the loader compares it and refuses another
  // Names the data it was trained on; the loader compares it. "" in checkpoints of format
  // version 1.
  std::string data;
  // How these data were cut into samples; compared like `data`. "" below format version 3.
  std::string samples;
  std::string optimizer = "adamw";  // UpdateRule::name(); compared. "adamw" below version 5
  std::string spike_guard;          // SpikeGuard::State(); "" below version 6
  // OpenWeights's path of the weights beside which the run trains: those of its adapters, or those
  // of the references of its pairs of answers. "": it has neither. "" below version 7.
  std::string base;
  TokenizerMark tokenizer;  // not known below version 8
  // The most tokens of a text that the model is made for: as the weights say with which the run
  // began, or as long as its samples are, where that is more. 0: not known; so below version 9.
  int longest_text = 0;
  // The --resume that the run began with: a checkpoint's path, or "none". "": with auto, and below
  // version 9.
  std::string began_with;
  std::string layout;  // "dp2 x tp2 x pp2": for people, not for loading
  int world_size = 1;
  friend bool operator==(const CheckpointInfo&, const CheckpointInfo&) = default;
};

// Where a run's state is read from: a checkpoint (CheckpointReader), or whatever else holds all of
// it. Thread-safe.
class StateSource {
 public:
  virtual ~StateSource() = default;

  // For messages: a checkpoint's path.
  virtual const std::string& name() const = 0;
  virtual const CheckpointInfo& info() const = 0;

  // Fills every piece, whatever layout the state was saved by. Values are converted where they are
  // held in another type than is wanted: fp32 becomes bf16 by rounding to nearest, ties to even.
  // FailedPrecondition when a tensor is absent or has another shape; InvalidArgument:
  // ValidatePiece; DataLoss when what is held is damaged, so that an older state may be better.
  // After an error the pieces hold garbage.
  virtual absl::Status Read(const std::vector<PieceToRead>& pieces) const = 0;
};

// ValidatePiece(piece). Also InvalidArgument where `data` is not flat_count elements in fp32 or
// bf16.
absl::Status ValidatePiece(const TensorPiece& piece, const ConstElements& data);

// StateSource::Read for a source of this name that holds the pieces `available`. `load` gives the
// data of available[i], valid until the next call; it is called once for each of them that is
// needed, in ascending order of i. Errors: as StateSource::Read, and those of `load`.
absl::Status FillPieces(const std::vector<PieceToRead>& pieces, const std::string& source_name,
                        const std::vector<TensorPiece>& available,
                        absl::FunctionRef<absl::StatusOr<ConstElements>(int i)> load);

}  // namespace convene::worker
