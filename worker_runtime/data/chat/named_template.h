// PURE. The chat formats that we know by name, as a sequence of pieces (README.md has the table).
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker_runtime/data/chat/conversation.h"

namespace convene::worker {

enum class NamedTemplate { kLlama3, kChatml, kQwen25, kMistralV1, kMistralV3, kMistralV7, kGemma };

// A part of a conversation that is tokenised apart from its neighbours.
struct Piece {
  bool is_special;  // the special token with this text; else ordinary text, whatever it says
  std::string text;
  bool counted;
};

// llama3, chatml, qwen2.5, mistral-v1, mistral-v3, mistral-v7, gemma.
std::vector<std::string> NamedTemplateNames();
// InvalidArgument: no such name; says which there are.
absl::StatusOr<NamedTemplate> FindNamedTemplate(const std::string& name);

// The special tokens that the format needs.
std::vector<std::string> SpecialsOf(NamedTemplate format);
// Whether one of the formats has a special token with this text.
bool IsSpecialOfAFormat(absl::string_view text);

// The pieces of a conversation; those of the answers in `learned` are counted, with the token that
// ends the turn. REQUIRES: learned has one value for each message.
// InvalidArgument: the format has no place for such a message (which, and why).
absl::StatusOr<std::vector<Piece>> PiecesOf(NamedTemplate format, const Conversation& conversation,
                                            const std::vector<bool>& learned);

}  // namespace convene::worker
