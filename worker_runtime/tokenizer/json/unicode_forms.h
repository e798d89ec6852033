// Unicode's normalization forms (UAX #15), by libutf8proc.
#pragma once

#include <memory>

#include "worker_runtime/tokenizer/json/text_normalizer.h"

namespace convene::worker {

enum class UnicodeForm { kNfc, kNfd, kNfkc, kNfkd };

// n log n in the length of a run of marks, else linear. Text that is in the form already is found
// out quickly and left alone. Making a step takes some milliseconds (a table of all characters).
std::unique_ptr<NormalizerStep> MakeUnicodeForm(UnicodeForm form);

}  // namespace convene::worker
