// The steps of a pre-tokenizer. Each is what the part of the same name in Hugging Face's tokenizers
// does (tokenizers/src/pre_tokenizers).
#pragma once

#include <memory>
#include <string>

#include "worker_runtime/tokenizer/json/pre_tokenizer.h"

namespace convene::worker {

// What becomes of the matches; "the-final--countdown" by "-":
enum class SplitBehavior {
  kRemoved,             // the, final, countdown
  kIsolated,            // the, -, final, -, -, countdown
  kMergedWithPrevious,  // the-, final-, -, countdown
  kMergedWithNext,      // the, -final, -, -countdown
  kContiguous,          // the, -, final, --, countdown
};

// `invert`: what lies between the matches counts as match, and the other way round.
std::unique_ptr<PreTokenizerStep> MakeSplit(std::unique_ptr<SplitPattern> pattern,
                                            SplitBehavior behavior, bool invert);

enum class PrependScheme { kAlways, kFirst, kNever };

// Spaces become `replacement`; a piece that does not begin with it gets one before it (kFirst: only
// at the document's start); then with `split` a piece begins at each.
std::unique_ptr<PreTokenizerStep> MakeMetaspace(std::string replacement, PrependScheme prepend,
                                                bool split);

// A space before each piece that does not begin with one.
std::unique_ptr<PreTokenizerStep> MakeSpacePrefix();

// GPT-2's spelling of bytes.
std::unique_ptr<PreTokenizerStep> MakeSpelling();

}  // namespace convene::worker
