// PURE. Where the answers stand in what a model folder's chat template makes of a conversation.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker_runtime/data/chat/conversation.h"
#include "worker_runtime/data/chat/jinja/chat_template.h"

namespace convene::worker {

// The text of the whole conversation, and the spans of the answers in `learned`.
//
// A template with {% generation %} says itself what is generated: all its spans, or, where some
// answers are not to be learned, those of the others; then there must be one for each answer.
//
// Of another template the text is rendered up to each answer, with and without it: an answer
// begins where the text before it ends, with the generation prompt, and ends where the text with it
// ends, less the white space behind the token that ends the turn. That needs a template whose text
// only grows; one that rewrites earlier turns can at most be trained on the last answer. A template
// that writes no generation prompt there may all the same put a header before every answer, which
// is none of the answer: it is found by a rendering with another answer in its place.
//
// `variables`: those of the model folder, such as bos_token; the conversation's win.
// InvalidArgument: the conversation, among others refused by the template. FailedPrecondition: the
// template is not such a one, or does not show where an answer begins, or asks for a date.
// Unimplemented: Render's. ResourceExhausted: all renderings together take more than the options'
// steps, of which each message that is rendered takes one more.
absl::StatusOr<jinja::Rendered> RenderAnswers(const jinja::ChatTemplate& chat_template,
                                              const jinja::Dict& variables,
                                              const Conversation& conversation,
                                              const std::vector<bool>& learned,
                                              const std::vector<std::string>& specials,
                                              const jinja::RenderOptions& options);

// The text without a look at its answers.
absl::StatusOr<jinja::Rendered> RenderWhole(const jinja::ChatTemplate& chat_template,
                                            const jinja::Dict& variables,
                                            const Conversation& conversation,
                                            const jinja::RenderOptions& options);

}  // namespace convene::worker
