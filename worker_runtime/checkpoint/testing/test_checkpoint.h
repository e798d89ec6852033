// For tests: writes test_layout.h's model to a disk, and tells whether a checkpoint holds it.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/checkpoint/checkpoint.h"
#include "worker_runtime/checkpoint/testing/test_layout.h"

namespace convene::worker::testing {

// These tests fsync thousands of times, milliseconds each on a disk: TempDir goes to memory where
// there is some.
inline const bool kTempDirsInMemory =
    access("/dev/shm", W_OK) == 0 && setenv("TEST_TMPDIR", "/dev/shm", 1) == 0;

using RankPieces = std::vector<std::vector<TensorPiece>>;

// T: float or BFloat16.
template <typename T = float>
absl::Status WriteRank(const std::string& directory, int64_t step, int rank, int version,
                       const std::vector<TensorPiece>& pieces) {
  std::vector<std::vector<T>> values;
  std::vector<PieceToWrite> items;
  for (const TensorPiece& piece : pieces) {
    values.emplace_back();
    for (int64_t p : Positions(piece)) values.back().push_back(T(ValueAt(piece.name, p, version)));
    items.push_back({piece, absl::MakeConstSpan(values.back())});
  }
  return WriteShard(directory, step, rank, items);
}

inline CheckpointInfo InfoOf(int64_t step, size_t world_size) {
  return {.step = step,
          .samples_consumed = step * 128,
          .updates = 3 * step,
          .seed = -7,
          .model = "llama\ntiny",
          .data = "two\ntokens",
          .samples = "few\nsamples",
          .layout = "dp \"2\"",
          .world_size = static_cast<int>(world_size)};
}

// The files of a tokenizer in this version.
inline std::vector<NamedFile> TokenizerOf(int version) {
  return {{"tokenizer.json", absl::StrCat("{\"version\": ", version, "}")},
          {"chat_template.jinja", "{{ messages }}"},
          {"additional_chat_templates/tool_use.jinja", "{{ tools }}"}};
}

// Writes one rank after the other, then the manifest.
template <typename T = float>
absl::Status WriteCheckpoint(const std::string& directory, int64_t step, int version,
                             const RankPieces& ranks, bool with_tokenizer = false) {
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    CONVENE_RETURN_IF_ERROR(
        WriteRank<T>(directory, step, static_cast<int>(rank), version, ranks[rank]));
  }
  return PublishCheckpoint(directory, InfoOf(step, ranks.size()),
                           with_tokenizer ? TokenizerOf(version) : std::vector<NamedFile>());
}

// OK when every rank reads the values of this version, as they are once they were Stored and have
// become Wanted; DataLoss when a value is wrong.
template <typename Stored = float, typename Wanted = float>
absl::Status CheckHolds(const CheckpointReader& reader, int version, const RankPieces& ranks) {
  for (const std::vector<TensorPiece>& pieces : ranks) {
    std::vector<std::vector<Wanted>> values;
    std::vector<PieceToRead> items;
    for (const TensorPiece& piece : pieces) {
      values.emplace_back(piece.flat_count, Wanted(-1.0f));
      items.push_back({piece, absl::MakeSpan(values.back())});
    }
    CONVENE_RETURN_IF_ERROR(reader.Read(items));
    for (size_t i = 0; i < pieces.size(); ++i) {
      const std::vector<int64_t> positions = Positions(pieces[i]);
      for (size_t k = 0; k < positions.size(); ++k) {
        const Stored stored(ValueAt(pieces[i].name, positions[k], version));
        const Wanted wanted(static_cast<float>(stored));
        if (static_cast<float>(values[i][k]) != static_cast<float>(wanted)) {
          return absl::DataLossError(absl::StrCat(pieces[i].name, " is wrong at ", positions[k]));
        }
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace convene::worker::testing
