// Sharded checkpoints: each rank writes the pieces it owns, the manifest makes them one checkpoint, any layout reads it (FORMAT.md).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace convene::worker {

// A box inside a global tensor, row-major: [offset[d], offset[d] + extent[d]) in each axis d.
struct Box {
  std::vector<int64_t> offset;
  std::vector<int64_t> extent;
  int64_t elements() const;
  friend bool operator==(const Box&, const Box&) = default;
};

// What a rank holds of one global tensor: `flat_count` elements, from `flat_begin`, of the row-major flattening of `local_box`. A
// ZeRO shard cuts a tensor anywhere; a whole tensor-parallel slice has flat_begin 0 and flat_count local_box.elements().
struct TensorPiece {
  std::string name;                    // "layers.3.attention.qkv.weight", "optimizer.first_moment/layers.3...": global
  std::vector<int64_t> global_shape;
  Box local_box;
  int64_t flat_begin = 0;
  int64_t flat_count = 0;
};

struct PieceToWrite {
  TensorPiece piece;
  const float* data = nullptr;  // flat_count elements
};
struct PieceToRead {
  TensorPiece piece;
  float* data = nullptr;  // flat_count elements
};

// What is the same on all ranks: goes into the manifest.
struct CheckpointInfo {
  int64_t step = 0;              // finished optimizer steps
  int64_t samples_consumed = 0;  // = position in the sample order
  int64_t seed = 0;
  std::string model;             // a text form of the shape: loading into another shape is refused
  std::string layout;            // "dp2 x tp2 x pp2": for people, not for loading
  int world_size = 1;
};

// Step 1, every rank: writes and fsyncs `directory`/step_NNNNNNNN/rank_RRRRR.bin (chunks with checksums) and .index.
// ResourceExhausted when the disk is full; whatever was written of this step is then removed and older checkpoints are untouched.
absl::Status WriteShard(const std::string& directory, int64_t step, int rank,
                        const std::vector<PieceToWrite>& pieces);

// Step 2, one rank, once all WriteShard calls have succeeded: reads the world_size indexes, checks that the chunks tile every tensor
// exactly once, and publishes the manifest by rename. Only then does the checkpoint exist.
absl::Status PublishCheckpoint(const std::string& directory, const CheckpointInfo& info);

// Removes all but the `keep` newest published checkpoints, and unpublished remains older than the newest published one.
absl::Status RemoveOldCheckpoints(const std::string& directory, int keep);

// A published checkpoint that has been opened: its manifest parsed and checked.
class CheckpointReader {
 public:
  // DataLoss when the manifest is damaged or a file is missing or shorter than the manifest says.
  static absl::StatusOr<CheckpointReader> Open(const std::string& step_directory);

  const CheckpointInfo& info() const { return info_; }
  const std::string& path() const { return path_; }

  // Fills every piece, from whatever chunks cover it, checking each chunk's checksum before use. DataLoss names the file, the chunk
  // and both checksums; FailedPrecondition when a tensor is absent or has another shape.
  absl::Status Read(const std::vector<PieceToRead>& pieces) const;

  // Checks every chunk of every file.
  absl::Status Verify() const;

 private:
  struct Chunk;
  std::string path_;
  CheckpointInfo info_;
  std::vector<Chunk> chunks_;
};

// Published checkpoints in `directory`, newest first: their directories. Empty when there is none (also when `directory` is absent).
absl::StatusOr<std::vector<std::string>> ListCheckpoints(const std::string& directory);

}  // namespace convene::worker
