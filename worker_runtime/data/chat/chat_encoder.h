// Instruction data to tokens: makes of a chat format and a tokenizer what `prepare` encodes each
// line with. PURE.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/time/civil_time.h"
#include "worker_runtime/data/chat/chat_format.h"
#include "worker_runtime/data/chat/conversation.h"
#include "worker_runtime/data/prepare/document_encoder.h"
#include "worker_runtime/tokenizer/tokenizer.h"

namespace convene::worker {

struct ChatOptions {
  TrainOn train_on = TrainOn::kAnswers;
  Side side = Side::kOnly;
  // The answer to a template that asks for today's date.
  std::optional<absl::CivilDay> date;
  // Whether the tokenizer's end of a document goes behind a conversation that does not end with it
  // already. It does not count in the loss there; behind a prompt and completion it does.
  bool append_end_of_document = true;
  // Of a folder's template, for all renderings of one line together: seconds.
  int64_t max_steps = 80'000'000;
};

// Makes encoders; read-only and thread-safe. Looks at the whole vocabulary once. `tokenizer` must
// outlive it and its encoders.
class ChatEncoderFactory {
 public:
  // InvalidArgument: the tokenizer lacks a special token that the format needs.
  static absl::StatusOr<std::unique_ptr<ChatEncoderFactory>> Make(ChatFormat format,
                                                                  const Tokenizer* tokenizer,
                                                                  const ChatOptions& options);
  ~ChatEncoderFactory();

  // One for each thread; must not outlive the factory. Its Encode:
  // InvalidArgument: the line is broken, has nothing to learn, the template refuses it or takes
  // more than max_steps for it. FailedPrecondition, Unimplemented: the template cannot be used in
  // this way, with any data like this: stop rather than skip the line.
  // `counted` is empty with TrainOn::kAll, else one value for each id.
  std::unique_ptr<DocumentEncoder> New() const;

  struct Shared;

 private:
  explicit ChatEncoderFactory(std::unique_ptr<const Shared> shared);

  const std::unique_ptr<const Shared> shared_;
};

}  // namespace convene::worker
