// The tokenizer that made a run's ids, as the checkpoints of the run remember it.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "worker_runtime/checkpoint/kept_files.h"
#include "worker_runtime/checkpoint/state_source.h"
#include "worker_runtime/data/store/token_source.h"
#include "worker_runtime/options/options.h"
#include "worker_runtime/tokenizer/tokenizer.h"

namespace convene::worker {

// PURE. `made_by`: what the data say. The run's own tokenizer made them, or theirs did, or nobody
// says which.
TokenizerMark MarkOfTokenizer(const TrainOptions& options, const Tokenizer& tokenizer,
                              const TokenizerIdentity& made_by);

// The files of that tokenizer, with the one that cuts its vocabulary where that is a compact one,
// and of the chat template where it lies elsewhere. None of byte, and of a tokenizer that made
// token files and is not to be found any more, which the log says. Errors: TokenizerFiles' and
// LoadChatFormat's.
absl::StatusOr<std::vector<NamedFile>> FilesOfTokenizer(const TrainOptions& options,
                                                        const Tokenizer& tokenizer,
                                                        const TokenizerIdentity& made_by);

}  // namespace convene::worker
