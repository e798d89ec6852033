// Token = byte.
#pragma once

#include <memory>

#include "worker_runtime/tokenizer/tokenizer.h"

namespace convene::worker {

// Token = byte; id 0 ends a document.
std::unique_ptr<Tokenizer> MakeByteTokenizer();

}  // namespace convene::worker
