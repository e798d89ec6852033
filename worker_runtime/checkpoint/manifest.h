// PURE. The text form of the manifest and of a rank's index (FORMAT.md), to and from values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker_runtime/checkpoint/box.h"
#include "worker_runtime/checkpoint/state_source.h"
#include "worker_runtime/device/dtype.h"

namespace convene::worker {

// Chunks begin at multiples of this in their file.
constexpr int64_t kChunkAlignmentBytes = 64;
// The most elements in a chunk (16 MiB in fp32): bounds a reader's memory, and the bytes that it
// reads beyond its need.
constexpr int64_t kMaxChunkElements = int64_t{1} << 22;

struct DataFile {
  std::string name;  // in the step's directory
  int64_t bytes = 0;
  friend bool operator==(const DataFile&, const DataFile&) = default;
};

// A file in the step's KeptDirectory.
struct KeptFile {
  std::string name;
  int64_t bytes = 0;
  uint64_t checksum = 0;  // XXH3-64 of its bytes
  friend bool operator==(const KeptFile&, const KeptFile&) = default;
};

struct ChunkPlace {
  int file = 0;  // index into Manifest::files
  int64_t offset_bytes = 0;
  uint64_t checksum = 0;  // XXH3-64 of the chunk's bytes
  DType dtype = DType::kFloat32;
  friend bool operator==(const ChunkPlace&, const ChunkPlace&) = default;
};

// Chunk i holds pieces[i] and lies at places[i].
struct Manifest {
  CheckpointInfo info;
  std::vector<KeptFile> tokenizer_files;
  std::vector<DataFile> files;
  std::vector<TensorPiece> pieces;
  std::vector<ChunkPlace> places;
};

// A rank's index has the manifest's form with another first line; only info.step is set in it.
enum class ManifestKind { kManifest, kShardIndex };

std::string EncodeManifest(ManifestKind kind, const Manifest& manifest);

// DataLoss, with the line, for anything but the output of EncodeManifest for this kind: a wrong
// checksum, a truncated text, a piece that ValidatePiece refuses, a chunk outside its file,
// misaligned or too long. FailedPrecondition for a later version of the format.
absl::StatusOr<Manifest> DecodeManifest(ManifestKind kind, absl::string_view text);

}  // namespace convene::worker
