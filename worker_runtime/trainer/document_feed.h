// Brings the places of packed rows' documents from a token batch to the pipeline stage.
#pragma once

#include <cstdint>
#include <vector>

#include "worker_runtime/device/arena.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/ops/attention.h"
#include "worker_runtime/ops/documents.h"
#include "worker_runtime/parallel/context_cut.h"

namespace convene::worker {

// Not thread-safe. Takes memory for as many documents as there are tokens, and allocates nothing
// after Bind. Rows that are not packed (Options::shape) take none.
class DocumentFeed {
 public:
  struct Options {
    AttentionShape shape;      // of one microbatch's attention op on this rank
    ContextCut cut;            // whose queries the shape has
    bool needs_table = false;  // NeedsDocumentTable
    int microbatches = 1;      // of a step
  };

  // Declares in the device's arena and in the host's; both, and the device, are borrowed.
  DocumentFeed(const Options& options, Device& device, Arena& arena, Arena& staging);

  // Queues the copy to the device of the lists that these microbatches' attention needs.
  // `document_begin`: TokenBatch's, of whole rows; may be reused on return. The documents of the
  // last call must no longer be in use. Returns StageBatch::documents, good until the next call;
  // null for rows that are not packed. REQUIRES: document_begin is null exactly then; microbatches
  // <= options.microbatches.
  const Documents* Feed(const int32_t* document_begin, int microbatches);

 private:
  int64_t tokens() const { return int64_t{options_.shape.batch} * options_.shape.sequence_length; }

  const Options options_;
  const std::vector<int32_t> positions_;
  Device& device_;
  ArenaBlock<int32_t> begins_, host_begins_;
  ArenaBlock<char> tables_, host_tables_;
  std::vector<Documents> documents_;
};

}  // namespace convene::worker
