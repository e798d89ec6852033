// Instruction data as documents: a chat format and a tokenizer as what `prepare` is asked for.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "worker_runtime/data/chat/chat_encoder.h"
#include "worker_runtime/data/prepare/options.h"
#include "worker_runtime/tokenizer/tokenizer.h"

namespace convene::worker {

// `name_or_path`: as LoadChatFormat takes it. The format's key has the template's text and its
// variables. `tokenizer` must outlive the format and its encoders. A template that asks for today's
// date is told the one of the options, so that equal input gives equal tokens on any day. Errors:
// LoadChatFormat's and ChatEncoderFactory::Make's.
absl::StatusOr<DocumentFormat> ChatDocuments(const std::string& name_or_path,
                                             const ChatOptions& options,
                                             const Tokenizer* tokenizer);

}  // namespace convene::worker
