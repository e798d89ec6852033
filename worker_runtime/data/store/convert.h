// Tokens from one format to another.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "worker_runtime/data/store/token_source.h"

namespace convene::worker {

struct ConvertOptions {
  TokenFormat format = TokenFormat::kConvene;
  // For a source that does not say: every id is below it. 0: one more than its largest id.
  int vocabulary_size = 0;
  // Megatron's and llm.c's formats do not say which tokens count in the loss. True writes them as
  // if all did; false refuses such a source.
  bool drop_counted = false;
  // Called now and then from the calling thread, over the comparing of the source's
  // checksums, where it has any, and two readings of all tokens. May be empty.
  std::function<void(int64_t done_tokens, int64_t total_tokens)> progress;
};

// Writes `source` under the name `path`: x.bin, x.idx or x for Megatron's two files, x.ds for
// nanotron's, which stand beside it. Files of these names, or those that links of these names lead
// to, are replaced when all is on the disk (until then "x.partial.converted" and "x.lock" stand
// beside each x, and the remains of a killed process go with the next call); the one without
// which a format is not recognised comes last, so that a set that is half there is none. Megatron's
// tokens are uint16 for a vocabulary below 65500, else int32, as it chooses itself; llm.c's are
// GPT-2's for ids below 65536, else Llama 3's; nanotron's have two bytes for ids below 65536, else
// four. llm.c's format has no documents, and these lose their ends. Of a source with a compact
// vocabulary the tokenizer's own ids are written, in our own format too.
//
// FailedPrecondition: another process is making a file of these names. DataLoss: the source differs
// from its checksums, or its documents are not in order. InvalidArgument: an id that is no id or
// outside `vocabulary_size`; tokens that count unequally for a format that cannot say so; more than
// 2^31 - 1 tokens for llm.c, or in one document for Megatron; a name that does not end in .ds for
// nanotron, or does for llm.c; for llm.c the name of a Megatron index that is there, or of its
// tokens; a file to write that is one of `source`'s, by whatever name (nothing is written then).
// Otherwise as tools/base/files.h; nothing is left under the new names then.
absl::Status ConvertTokens(const TokenSource& source, const std::string& path,
                           const ConvertOptions& options);

}  // namespace convene::worker
