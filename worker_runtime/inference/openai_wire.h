// PURE. The requests and answers of OpenAI's completions and chat/completions, as their clients
// write and read them (platform.openai.com/docs/api-reference, `openai` 1.x and 2.x).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker_runtime/inference/sampler.h"

namespace convene::worker {

struct CompletionRequest {
  bool is_chat = false;
  // Of a completion: texts, or ids. One of a chat is the whole request, for its "messages" (and
  // "tools").
  std::vector<std::variant<std::string, std::vector<int32_t>>> prompts;
  int choices = 1;      // answers to each prompt
  int max_tokens = -1;  // negative: as many as the context has room for
  bool echoes = false;  // the answer begins with the prompt; only then max_tokens may be 0
  // Each token comes with its log-probability and those of so many likeliest ones.
  std::optional<int> top_logprobs;
  SamplingOptions sampling;
  std::vector<std::string> stop;
  bool streams = false;
  bool streams_usage = false;  // a last chunk tells the numbers of tokens
};

// `default_seed`: for a request that names none. InvalidArgument: no JSON object, a member of
// another kind or out of range, or a member that would change the answer in a way that we lack
// ("logit_bias", "suffix", ...); by the member's name. Members that
// change nothing, and unknown ones, are passed over.
absl::StatusOr<CompletionRequest> ParseCompletionRequest(absl::string_view body, bool is_chat,
                                                         uint64_t default_seed);

// The members that all parts of one answer have.
struct AnswerHead {
  bool is_chat = false;
  std::string id;
  int64_t created = 0;  // seconds since 1970
  std::string model;
};

struct ScoredToken {
  struct Score {
    std::string bytes;  // that the token stands for; a special token's text
    double log_probability = 0;
  };
  // The token's own, then those of the likeliest ones. Empty but for its bytes where nothing comes
  // before it.
  std::string bytes;
  std::vector<Score> scores;
  // Characters of the choice's text before it; a token that begins within a character has that
  // one's place.
  int64_t offset = 0;
};

struct Choice {
  std::string text;
  std::string finish_reason;             // "stop" or "length"; "": not yet
  std::vector<ScoredToken> tokens = {};  // where the request wants log-probabilities
};

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
};

// The whole answer.
std::string CompletionJson(const AnswerHead& head, const std::vector<Choice>& choices,
                           const Usage& usage);
// A part of a streamed one: text of the choice `index`. `is_first` of this choice. With an event's
// frame ("data: ...").
std::string ChunkEvent(const AnswerHead& head, int index, const Choice& part, bool is_first);
std::string UsageEvent(const AnswerHead& head, const Usage& usage);
inline constexpr char kLastEvent[] = "data: [DONE]\n\n";

// {"error": ...}, and the HTTP status that goes with it.
std::string ErrorJson(const absl::Status& error);
int HttpStatusOf(const absl::Status& error);

std::string ModelsJson(const std::string& model, int64_t created);

}  // namespace convene::worker
