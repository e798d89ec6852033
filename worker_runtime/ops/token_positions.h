// The positions of tokens in their documents, as rows of a table of learned positions.
#pragma once

#include <cstdint>

#include "worker_runtime/device/stream.h"
#include "worker_runtime/ops/token_runs.h"

namespace convene::worker {

// positions: (batch, length), of each token from its document's begin on. document_begin: see
// ops/documents.h; null: each row is a document.
void TokenPositions(int batch, int length, const TokenRuns& runs, const int32_t* document_begin,
                    int32_t* positions, Stream& stream);

}  // namespace convene::worker
