// PURE. A text of which some parts count in the loss, to tokens.
#pragma once

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "worker_runtime/data/chat/jinja/chat_template.h"
#include "worker_runtime/data/prepare/document_encoder.h"
#include "worker_runtime/tokenizer/tokenizer.h"

namespace convene::worker {

// Appends the ids of `text` to `document` and, for each, whether it counts. The text is tokenised
// as a whole, so that the ids are those of the original program; a token counts when one of its
// bytes is within a span. Where the tokens' bytes cannot be laid beside the text (a tokenizer that
// rewrites its input), the text is tokenised in pieces instead, cut where a span begins or ends.
//
// `spans`: in order, apart from each other, within the text. `encoder` is one of `tokenizer`'s.
void AppendCounted(absl::string_view text, absl::Span<const jinja::TextSpan> spans,
                   const Tokenizer& tokenizer, Encoder* encoder, EncodedDocument* document);

// The bytes of text that `ids` stand for.
int64_t CountTextBytes(const Tokenizer& tokenizer, absl::Span<const int32_t> ids);

}  // namespace convene::worker
