#include "worker_runtime/inference/openai_wire.h"

#include <rapidjson/writer.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tools/base/json_buffer.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/tokenizer/json/json_node.h"
#include "worker_runtime/tokenizer/unicode.h"

namespace convene::worker {
namespace {

using JsonWriter = rapidjson::Writer<JsonBuffer>;

constexpr int kMostPrompts = 256;
constexpr int kMostChoices = 64;
constexpr int kMostStops = 16;
// Members that would change the answer, OpenAI's and vLLM's.
constexpr const char* kLacking[] = {
    "logit_bias", "presence_penalty", "frequency_penalty", "suffix", "functions", "response_format",
    // vLLM's
    "structured_outputs", "guided_json", "guided_choice", "guided_regex", "guided_grammar",
    "ignore_eos", "min_tokens", "stop_token_ids", "include_stop_str_in_output", "bad_words",
    "allowed_token_ids", "prompt_logprobs", "use_beam_search", "continue_final_message"};
constexpr int kMostLogprobs = 20;

absl::Status Wrong(absl::string_view name, absl::string_view wanted) {
  return absl::InvalidArgumentError(absl::StrCat("\"", name, "\" is not ", wanted));
}

// Whether the value says that the feature is off.
bool IsOff(const rapidjson::Value& value) {
  if (value.IsNull() || value.IsFalse()) return true;
  if (value.IsNumber()) return value.GetDouble() == 0;
  if (value.IsObject() && value.HasMember("type")) {  // response_format
    return value["type"].IsString() && TextOf(value["type"]) == "text";
  }
  return (value.IsObject() && value.ObjectEmpty()) || (value.IsArray() && value.Empty()) ||
         (value.IsString() && TextOf(value).empty());
}

// The members of a request.
class Members {
 public:
  explicit Members(const JsonNode& root) : root_(root) {}

  absl::Status Read(const char* name, double least, double most, double* number) const {
    const std::optional<JsonNode> node = root_.Find(name);
    if (!node.has_value()) return absl::OkStatus();
    const std::string wanted = absl::StrCat("a number from ", least, " to ", most);
    if (!node->value().IsNumber()) return Wrong(name, wanted);
    *number = node->value().GetDouble();
    return *number >= least && *number <= most ? absl::OkStatus() : Wrong(name, wanted);
  }
  absl::Status Read(const char* name, int least, int most, int* number) const {
    const std::optional<JsonNode> node = root_.Find(name);
    if (!node.has_value()) return absl::OkStatus();
    const std::string wanted = absl::StrCat("a whole number from ", least, " to ", most);
    if (!node->value().IsInt()) return Wrong(name, wanted);
    *number = node->value().GetInt();
    return *number >= least && *number <= most ? absl::OkStatus() : Wrong(name, wanted);
  }
  absl::Status Read(const char* name, bool* flag) const {
    const std::optional<JsonNode> node = root_.Find(name);
    if (!node.has_value()) return absl::OkStatus();
    if (!node->value().IsBool()) return Wrong(name, "true or false");
    *flag = node->value().GetBool();
    return absl::OkStatus();
  }
  std::optional<JsonNode> Find(const char* name) const { return root_.Find(name); }

 private:
  const JsonNode& root_;
};

// InvalidArgument: a member would change the answer in a way that is not served here.
absl::Status CheckServed(const Members& members, bool is_chat) {
  for (const char* const name : kLacking) {
    const std::optional<JsonNode> node = members.Find(name);
    if (!node.has_value() || IsOff(node->value())) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("\"", name, "\" is not served here: leave it out"));
  }
  if (!is_chat) return absl::OkStatus();
  bool begins_answer = true;
  CONVENE_RETURN_IF_ERROR(members.Read("add_generation_prompt", &begins_answer));
  if (!begins_answer) return Wrong("add_generation_prompt", "true, and nothing else is served");
  const std::optional<JsonNode> choice = members.Find("tool_choice");
  if (!choice.has_value() || IsOff(choice->value())) return absl::OkStatus();
  const absl::string_view word = choice->value().IsString() ? TextOf(choice->value()) : "";
  return word == "auto" || word == "none"
             ? absl::OkStatus()
             : Wrong("tool_choice", "\"auto\" or \"none\", and nothing else is served");
}

absl::StatusOr<std::vector<int32_t>> IdsOf(const rapidjson::Value& list) {
  std::vector<int32_t> ids;
  for (const auto& id : list.GetArray()) {
    if (!id.IsInt() || id.GetInt() < 0) return Wrong("prompt", "a text, ids, or a list of these");
    ids.push_back(id.GetInt());
  }
  return ids;
}

// One text, a list of ids, or a list of texts or of lists of ids.
absl::Status ReadPrompts(const Members& members, CompletionRequest* request) {
  const std::optional<JsonNode> node = members.Find("prompt");
  if (!node.has_value()) return absl::InvalidArgumentError("\"prompt\" is missing");
  const rapidjson::Value& value = node->value();
  if (value.IsString()) {
    request->prompts.emplace_back(std::string(TextOf(value)));
    return absl::OkStatus();
  }
  if (!value.IsArray() || value.Empty()) return Wrong("prompt", "a text, ids, or a list of these");
  if (value[0].IsNumber()) {
    CONVENE_ASSIGN_OR_RETURN(std::vector<int32_t> ids, IdsOf(value));
    request->prompts.emplace_back(std::move(ids));
    return absl::OkStatus();
  }
  if (value.Size() > kMostPrompts) {
    return Wrong("prompt", absl::StrCat("a list of at most ", kMostPrompts, " prompts"));
  }
  for (const auto& prompt : value.GetArray()) {
    if (prompt.IsString()) {
      request->prompts.emplace_back(std::string(TextOf(prompt)));
    } else if (prompt.IsArray()) {
      CONVENE_ASSIGN_OR_RETURN(std::vector<int32_t> ids, IdsOf(prompt));
      request->prompts.emplace_back(std::move(ids));
    } else {
      return Wrong("prompt", "a text, ids, or a list of these");
    }
  }
  return absl::OkStatus();
}

absl::Status ReadStops(const Members& members, std::vector<std::string>* stop) {
  const std::optional<JsonNode> node = members.Find("stop");
  if (!node.has_value()) return absl::OkStatus();
  const auto add = [stop](const rapidjson::Value& value) {
    if (!value.IsString() || value.GetStringLength() == 0 || stop->size() == kMostStops) {
      return Wrong("stop", absl::StrCat("a text, or a list of up to ", kMostStops, " texts"));
    }
    stop->emplace_back(TextOf(value));
    return absl::OkStatus();
  };
  if (!node->value().IsArray()) return add(node->value());
  for (const auto& text : node->value().GetArray()) CONVENE_RETURN_IF_ERROR(add(text));
  return absl::OkStatus();
}

absl::Status ReadSampling(const Members& members, SamplingOptions* sampling) {
  constexpr double kMost = 1e6;
  sampling->temperature = 1;  // as theirs
  CONVENE_RETURN_IF_ERROR(members.Read("temperature", 0.0, kMost, &sampling->temperature));
  CONVENE_RETURN_IF_ERROR(members.Read("top_p", 0.0, 1.0, &sampling->top_p));
  // Not OpenAI's; as vLLM and llama.cpp spell them.
  CONVENE_RETURN_IF_ERROR(
      members.Read("top_k", -1, std::numeric_limits<int>::max(), &sampling->top_k));
  sampling->top_k = std::max(0, sampling->top_k);
  CONVENE_RETURN_IF_ERROR(members.Read("min_p", 0.0, 1.0, &sampling->min_p));
  CONVENE_RETURN_IF_ERROR(
      members.Read("repetition_penalty", 0.0, kMost, &sampling->repetition_penalty));
  if (sampling->repetition_penalty == 0) {
    return Wrong("repetition_penalty", "above 0 (1: no penalty)");
  }
  const std::optional<JsonNode> seed = members.Find("seed");
  if (!seed.has_value()) return absl::OkStatus();
  if (!seed->value().IsInt64()) return Wrong("seed", "a whole number");
  sampling->seed = static_cast<uint64_t>(seed->value().GetInt64());
  return absl::OkStatus();
}

// A completion has the number of likeliest tokens in "logprobs", a chat in "top_logprobs".
absl::Status ReadLogprobs(const Members& members, CompletionRequest* request) {
  const std::optional<JsonNode> node = members.Find("logprobs");
  if (request->is_chat) {
    bool wants = false;
    int top = -1;
    CONVENE_RETURN_IF_ERROR(members.Read("logprobs", &wants));
    CONVENE_RETURN_IF_ERROR(members.Read("top_logprobs", 0, kMostLogprobs, &top));
    if (wants) request->top_logprobs = std::max(0, top);
    return wants || top < 0 ? absl::OkStatus() : Wrong("logprobs", "true beside \"top_logprobs\"");
  }
  if (node.has_value() && !node->value().IsFalse()) {
    CONVENE_RETURN_IF_ERROR(
        members.Read("logprobs", 0, kMostLogprobs, &request->top_logprobs.emplace()));
  }
  return members.Read("echo", &request->echoes);
}

void Write(JsonWriter& json, const char* key, absl::string_view text) {
  json.Key(key);
  json.String(text.data(), static_cast<rapidjson::SizeType>(text.size()));
}
void Write(JsonWriter& json, const char* key, int64_t number) {
  json.Key(key);
  json.Int64(number);
}

void WriteHead(JsonWriter& json, const AnswerHead& head, bool is_chunk) {
  Write(json, "id", head.id);
  const char* const chat = is_chunk ? "chat.completion.chunk" : "chat.completion";
  Write(json, "object", absl::string_view(head.is_chat ? chat : "text_completion"));
  Write(json, "created", head.created);
  Write(json, "model", head.model);
}

// As OpenAI has bytes that are no text.
std::string TextOfBytes(const std::string& bytes) {
  if (IsUtf8(bytes)) return bytes;
  std::string text = "bytes:";
  for (const unsigned char byte : bytes)
    absl::StrAppend(&text, "\\x", absl::Hex(byte, absl::kZeroPad2));
  return text;
}

void WriteChatScore(JsonWriter& json, const ScoredToken::Score& score) {
  Write(json, "token", TextOfBytes(score.bytes));
  json.Key("logprob");
  json.Double(score.log_probability);
  json.Key("bytes");
  json.StartArray();
  for (const unsigned char byte : score.bytes) json.Int(byte);
  json.EndArray();
}

void WriteChatScores(JsonWriter& json, const std::vector<ScoredToken>& tokens) {
  json.StartObject();
  json.Key("content");
  json.StartArray();
  for (const ScoredToken& token : tokens) {
    json.StartObject();
    WriteChatScore(json, token.scores.front());
    json.Key("top_logprobs");
    json.StartArray();
    for (size_t i = 1; i < token.scores.size(); ++i) {
      json.StartObject();
      WriteChatScore(json, token.scores[i]);
      json.EndObject();
    }
    json.EndArray();
    json.EndObject();
  }
  json.EndArray();
  json.EndObject();
}

// One object for each token; the likeliest first, and the token itself where it is not among them.
void WriteTop(JsonWriter& json, const std::vector<ScoredToken::Score>& scores) {
  if (scores.empty()) {
    json.Null();
    return;
  }
  std::vector<std::string> written;
  json.StartObject();
  for (size_t i = 1; i <= scores.size(); ++i) {
    const ScoredToken::Score& score = scores[i % scores.size()];
    const std::string text = TextOfBytes(score.bytes);
    // Of two tokens with one text the likelier is told.
    if (std::find(written.begin(), written.end(), text) != written.end()) continue;
    json.Key(text.c_str(), static_cast<rapidjson::SizeType>(text.size()));
    json.Double(score.log_probability);
    written.push_back(text);
  }
  json.EndObject();
}

void WriteScores(JsonWriter& json, const std::vector<ScoredToken>& tokens) {
  const auto list = [&](const char* key, const auto& write) {
    json.Key(key);
    json.StartArray();
    for (const ScoredToken& token : tokens) write(token);
    json.EndArray();
  };
  json.StartObject();
  list("tokens", [&](const ScoredToken& token) {
    const std::string text = TextOfBytes(token.bytes);
    json.String(text.c_str(), static_cast<rapidjson::SizeType>(text.size()));
  });
  list("token_logprobs", [&](const ScoredToken& token) {
    if (token.scores.empty()) {
      json.Null();
    } else {
      json.Double(token.scores.front().log_probability);
    }
  });
  list("top_logprobs", [&](const ScoredToken& token) { WriteTop(json, token.scores); });
  list("text_offset", [&](const ScoredToken& token) { json.Int64(token.offset); });
  json.EndObject();
}

// `holder`: of a chat's text.
void WriteChoice(JsonWriter& json, const AnswerHead& head, int index, const Choice& choice,
                 const char* holder, bool has_role) {
  json.StartObject();
  Write(json, "index", int64_t{index});
  if (head.is_chat) {
    json.Key(holder);
    json.StartObject();
    if (has_role) Write(json, "role", absl::string_view("assistant"));
    Write(json, "content", choice.text);
    json.EndObject();
  } else {
    Write(json, "text", choice.text);
  }
  json.Key("logprobs");
  if (choice.tokens.empty()) {
    json.Null();
  } else if (head.is_chat) {
    WriteChatScores(json, choice.tokens);
  } else {
    WriteScores(json, choice.tokens);
  }
  if (choice.finish_reason.empty()) {
    json.Key("finish_reason");
    json.Null();
  } else {
    Write(json, "finish_reason", choice.finish_reason);
  }
  json.EndObject();
}

void WriteUsage(JsonWriter& json, const Usage& usage) {
  json.Key("usage");
  json.StartObject();
  Write(json, "prompt_tokens", usage.prompt_tokens);
  Write(json, "completion_tokens", usage.completion_tokens);
  Write(json, "total_tokens", usage.prompt_tokens + usage.completion_tokens);
  json.EndObject();
}

std::string Event(const JsonBuffer& buffer) {
  return absl::StrCat("data: ", absl::string_view(buffer.GetString(), buffer.GetSize()), "\n\n");
}

}  // namespace

absl::StatusOr<CompletionRequest> ParseCompletionRequest(absl::string_view body, bool is_chat,
                                                         uint64_t default_seed) {
  CONVENE_ASSIGN_OR_RETURN(const JsonDocument document, JsonDocument::Parse(body));
  const JsonNode root = document.root();
  if (!root.value().IsObject()) return absl::InvalidArgumentError("the request is no JSON object");
  const Members members(root);
  CONVENE_RETURN_IF_ERROR(CheckServed(members, is_chat));
  CompletionRequest request;
  request.is_chat = is_chat;
  if (is_chat) {
    if (!members.Find("messages").has_value()) {
      return absl::InvalidArgumentError("\"messages\" is missing");
    }
    request.prompts.emplace_back(std::string(body));
  } else {
    CONVENE_RETURN_IF_ERROR(ReadPrompts(members, &request));
    request.max_tokens = 16;  // as theirs
  }
  constexpr int kMostTokens = 1 << 24;
  CONVENE_RETURN_IF_ERROR(ReadLogprobs(members, &request));
  const int least = request.echoes ? 0 : 1;
  for (const char* const name : {"max_tokens", "max_completion_tokens"}) {
    CONVENE_RETURN_IF_ERROR(members.Read(name, least, kMostTokens, &request.max_tokens));
  }
  CONVENE_RETURN_IF_ERROR(members.Read("n", 1, kMostChoices, &request.choices));
  int best_of = request.choices;
  CONVENE_RETURN_IF_ERROR(members.Read("best_of", request.choices, request.choices, &best_of));
  request.sampling.seed = default_seed;
  CONVENE_RETURN_IF_ERROR(ReadSampling(members, &request.sampling));
  CONVENE_RETURN_IF_ERROR(ReadStops(members, &request.stop));
  CONVENE_RETURN_IF_ERROR(members.Read("stream", &request.streams));
  if (const std::optional<JsonNode> options = members.Find("stream_options")) {
    CONVENE_RETURN_IF_ERROR(Members(*options).Read("include_usage", &request.streams_usage));
  }
  return request;
}

std::string CompletionJson(const AnswerHead& head, const std::vector<Choice>& choices,
                           const Usage& usage) {
  JsonBuffer buffer;
  JsonWriter json(buffer);
  json.StartObject();
  WriteHead(json, head, /*is_chunk=*/false);
  json.Key("choices");
  json.StartArray();
  for (size_t i = 0; i < choices.size(); ++i) {
    WriteChoice(json, head, static_cast<int>(i), choices[i], "message", /*has_role=*/true);
  }
  json.EndArray();
  WriteUsage(json, usage);
  json.EndObject();
  return {buffer.GetString(), buffer.GetSize()};
}

std::string ChunkEvent(const AnswerHead& head, int index, const Choice& part, bool is_first) {
  JsonBuffer buffer;
  JsonWriter json(buffer);
  json.StartObject();
  WriteHead(json, head, /*is_chunk=*/true);
  json.Key("choices");
  json.StartArray();
  WriteChoice(json, head, index, part, "delta", is_first);
  json.EndArray();
  json.EndObject();
  return Event(buffer);
}

std::string UsageEvent(const AnswerHead& head, const Usage& usage) {
  JsonBuffer buffer;
  JsonWriter json(buffer);
  json.StartObject();
  WriteHead(json, head, /*is_chunk=*/true);
  json.Key("choices");
  json.StartArray();
  json.EndArray();
  WriteUsage(json, usage);
  json.EndObject();
  return Event(buffer);
}

int HttpStatusOf(const absl::Status& error) {
  switch (error.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kOutOfRange:
      return 400;
    case absl::StatusCode::kNotFound:
      return 404;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kCancelled:
      return 503;
    default:
      return 500;
  }
}

std::string ErrorJson(const absl::Status& error) {
  JsonBuffer buffer;
  JsonWriter json(buffer);
  json.StartObject();
  json.Key("error");
  json.StartObject();
  Write(json, "message", error.message());
  Write(json, "type",
        absl::string_view(HttpStatusOf(error) < 500 ? "invalid_request_error" : "server_error"));
  for (const char* const name : {"param", "code"}) {
    json.Key(name);
    json.Null();
  }
  json.EndObject();
  json.EndObject();
  return {buffer.GetString(), buffer.GetSize()};
}

std::string ModelsJson(const std::string& model, int64_t created) {
  JsonBuffer buffer;
  JsonWriter json(buffer);
  json.StartObject();
  Write(json, "object", absl::string_view("list"));
  json.Key("data");
  json.StartArray();
  json.StartObject();
  Write(json, "id", model);
  Write(json, "object", absl::string_view("model"));
  Write(json, "created", created);
  Write(json, "owned_by", absl::string_view("convene"));
  json.EndObject();
  json.EndArray();
  json.EndObject();
  return {buffer.GetString(), buffer.GetSize()};
}

}  // namespace convene::worker
