// Instruction data as a format of `prepare`.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "worker_runtime/data/chat/conversation.h"
#include "worker_runtime/data/prepare/options.h"
#include "worker_runtime/tokenizer/tokenizer.h"

namespace convene::worker {

// `chat_template`: LoadChatFormat's name or path. `tokenizer` must outlive the format. The key
// names the template by its content, not by its path. Errors: LoadChatFormat's and
// ChatEncoderFactory::Make's.
absl::StatusOr<DocumentFormat> MakeMessageFormat(const std::string& chat_template, TrainOn train_on,
                                                 const Tokenizer* tokenizer);

}  // namespace convene::worker
