// Reads, encodes and hands on in order: threads that read files, threads that encode chunks, and
// the caller, who takes the results.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker_runtime/data/prepare/chunk_reader.h"
#include "worker_runtime/data/prepare/options.h"
#include "worker_runtime/data/prepare/record_encoder.h"
#include "worker_runtime/data/prepare/sources.h"

namespace convene::worker {

struct PipelineOptions {
  int readers = 1;
  int encoders = 1;
  // Bytes of chunks (text and records) that were read, but not taken yet. One chunk more may be
  // there, so that the next one in order always finds room.
  size_t in_flight_bytes = 0;
  InputFormat format = InputFormat::kAuto;
  std::string field;  // for kAuto
  RecordRules rules;  // is_json_lines is found by `format`
  // Called once for each encoding thread, from that thread.
  std::function<absl::StatusOr<std::unique_ptr<RecordEncoder>>()> new_encoder;
};

// Looks at the beginning of every file: RunPipeline itself would refuse a file when that file's
// turn comes, perhaps after hours. Errors: HoldsJsonLines'.
absl::Status CheckHeads(const std::vector<SourceFile>& sources, const PipelineOptions& options);

// Calls `take` from the calling thread with the chunks of `sources` from `start` on, in order:
// their sequence of records does not depend on the threads. Returns the first error in that order,
// after all chunks before it were taken; or an error of `take`, at once. All threads have ended
// when it returns. Errors: CheckText's, ChunkReader's, HoldsJsonLines', RecordEncoder's and
// new_encoder's; ResourceExhausted: no thread is left.
absl::Status RunPipeline(const std::vector<SourceFile>& sources, const InputPosition& start,
                         const PipelineOptions& options,
                         absl::FunctionRef<absl::Status(EncodedChunk chunk)> take);

}  // namespace convene::worker
