// A tokenizer whose vocabulary is cut to some of its tokens, numbered without gaps.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "worker_runtime/tokenizer/tokenizer.h"

namespace convene::worker {

// The ids that every compact vocabulary of `whole` has, ascending: for each byte that a token has
// in it the token that stands for that byte alone, the tokens around a document, and the one that
// ends it. A byte that is in no token (SmolLM2 has 21) needs none. Unimplemented: there is a byte
// in a token, but not alone (SentencePiece without byte fallback), so that a text with a token that
// was cut away could not be written.
absl::StatusOr<std::vector<int32_t>> IndispensableIds(const Tokenizer& whole);

// The id i stands for the token original_ids[i] of `whole`. A text is encoded as by `whole`; in the
// place of a token that is not among `original_ids` stand the tokens of its bytes, those of its
// text for a special token. So every text has ids, and decodes as with `whole`. fingerprint() is
// CompactFingerprint (fingerprint.h) of both, kind() is that of `whole`, and the special tokens are
// those of `original_ids`.
//
// InvalidArgument: `original_ids` is not ascending, has ids outside the vocabulary, or lacks
// indispensable ones. Else as IndispensableIds.
absl::StatusOr<std::unique_ptr<Tokenizer>> MakeCompactTokenizer(std::unique_ptr<Tokenizer> whole,
                                                                std::vector<int32_t> original_ids);

}  // namespace convene::worker
