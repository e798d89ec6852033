#include "worker_runtime/data/chat/named_template.h"

#include <catch2/catch.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tools/base/testing/status_testing.h"

namespace convene::worker {
namespace {

constexpr char kTwoTurns[] =
    R"({"messages": [{"role": "system", "content": "S "}, {"role": "user", "content": " U1"}, )"
    R"({"role": "assistant", "content": " A1 "}, {"role": "user", "content": "U2\n"}, )"
    R"({"role": "assistant", "content": "A2"}]})";

// Special tokens in angle quotes, pieces parted by '|', counted ones with '+' before them.
absl::StatusOr<std::string> Drawn(const std::string& name, const std::string& record,
                                  TrainOn train_on = TrainOn::kAnswers) {
  const Conversation conversation = std::get<Conversation>(*ReadChatRecord(record));
  const auto pieces =
      PiecesOf(*FindNamedTemplate(name), conversation, AnswersToLearn(conversation, train_on));
  if (!pieces.ok()) return pieces.status();
  std::string drawn;
  for (const Piece& piece : *pieces) {
    absl::StrAppend(&drawn, drawn.empty() ? "" : "|", piece.counted ? "+" : "",
                    piece.is_special ? absl::StrCat("«", piece.text, "»") : piece.text);
  }
  return absl::StrReplaceAll(drawn, {{"\n", "\\n"}});
}

// The sequences are those of hf_families.md, section 5.
TEST_CASE("Llama 3: headers, trimmed contents, the end of a turn") {
  CHECK(*Drawn("llama3", kTwoTurns) ==
        "«<|begin_of_text|>»|"
        "«<|start_header_id|>»|system|«<|end_header_id|>»|\\n\\n|S|«<|eot_id|>»|"
        "«<|start_header_id|>»|user|«<|end_header_id|>»|\\n\\n|U1|«<|eot_id|>»|"
        "«<|start_header_id|>»|assistant|«<|end_header_id|>»|\\n\\n|+A1|+«<|eot_id|>»|"
        "«<|start_header_id|>»|user|«<|end_header_id|>»|\\n\\n|U2|«<|eot_id|>»|"
        "«<|start_header_id|>»|assistant|«<|end_header_id|>»|\\n\\n|+A2|+«<|eot_id|>»");
}

TEST_CASE("Llama 3: a tool call is JSON, its result is ipython's") {
  CHECK(
      *Drawn(
          "llama3",
          R"({"messages": [{"role": "user", "content": "U"}, )"
          R"({"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "f", )"
          R"("arguments": {"a": [1, "x"]}}}]}, {"role": "tool", "content": "R"}]})") ==
      "«<|begin_of_text|>»|"
      "«<|start_header_id|>»|user|«<|end_header_id|>»|\\n\\n|U|«<|eot_id|>»|"
      "«<|start_header_id|>»|assistant|«<|end_header_id|>»|\\n\\n|"
      "+{\"name\": \"f\", \"parameters\": {\"a\": [1, \"x\"]}}|+«<|eot_id|>»|"
      "«<|start_header_id|>»|ipython|«<|end_header_id|>»|\\n\\n|R|«<|eot_id|>»");
}

TEST_CASE("ChatML: contents as they are, the line's end behind a turn does not count") {
  CHECK(*Drawn("chatml", kTwoTurns) ==
        "«<|im_start|>»|system\\n|S |«<|im_end|>»|\\n|«<|im_start|>»|user\\n| U1|«<|im_end|>»|\\n|"
        "«<|im_start|>»|assistant\\n|+ A1 |+«<|im_end|>»|\\n|"
        "«<|im_start|>»|user\\n|U2\\n|«<|im_end|>»|\\n|"
        "«<|im_start|>»|assistant\\n|+A2|+«<|im_end|>»|\\n");
  CHECK(*Drawn("chatml", kTwoTurns, TrainOn::kLast) ==
        "«<|im_start|>»|system\\n|S |«<|im_end|>»|\\n|«<|im_start|>»|user\\n| U1|«<|im_end|>»|\\n|"
        "«<|im_start|>»|assistant\\n| A1 |«<|im_end|>»|\\n|"
        "«<|im_start|>»|user\\n|U2\\n|«<|im_end|>»|\\n|"
        "«<|im_start|>»|assistant\\n|+A2|+«<|im_end|>»|\\n");
}

TEST_CASE("Qwen 2.5: a system turn of its own, tool calls, results in one turn") {
  CHECK(
      *Drawn(
          "qwen2.5",
          R"({"messages": [{"role": "user", "content": "U"}, )"
          R"({"role": "assistant", "content": "A", "tool_calls": [{"name": "f", "arguments": {}}, )"
          R"({"name": "g", "arguments": "{\"a\":1}"}]}, {"role": "tool", "content": "R1"}, )"
          R"({"role": "tool", "content": "R2"}, {"role": "assistant", "content": "B"}]})") ==
      "«<|im_start|>»|system\\n|You are Qwen, created by Alibaba Cloud. You are a helpful "
      "assistant.|«<|im_end|>»|\\n|«<|im_start|>»|user\\n|U|«<|im_end|>»|\\n|"
      "«<|im_start|>»|assistant\\n|+A\\n<tool_call>\\n{\"name\": \"f\", \"arguments\": {}}\\n"
      "</tool_call>\\n<tool_call>\\n{\"name\": \"g\", \"arguments\": {\"a\":1}}\\n</tool_call>|"
      "+«<|im_end|>»|\\n|«<|im_start|>»|user\\n|<tool_response>\\nR1\\n</tool_response>\\n"
      "<tool_response>\\nR2\\n</tool_response>|«<|im_end|>»|\\n|"
      "«<|im_start|>»|assistant\\n|+B|+«<|im_end|>»|\\n");
}

TEST_CASE("Mistral: the system's text at the first user, the last user, or its own place") {
  CHECK(*Drawn("mistral-v1", kTwoTurns) ==
        "«<s>»|[INST] S \\n\\n U1 [/INST]|+ A1 |+«</s>»|[INST] U2\\n [/INST]|+A2|+«</s>»");
  CHECK(*Drawn("mistral-v3", kTwoTurns) ==
        "«<s>»|«[INST]»| U1|«[/INST]»|+ A1|+«</s>»|«[INST]»|S \\n\\nU2\\n|«[/INST]»|+A2|+«</s>»");
  CHECK(*Drawn("mistral-v7", kTwoTurns) ==
        "«<s>»|«[SYSTEM_PROMPT]»|S |«[/SYSTEM_PROMPT]»|«[INST]»| U1|«[/INST]»|+ A1|+«</s>»|"
        "«[INST]»|U2\\n|«[/INST]»|+A2|+«</s>»");
}

TEST_CASE("Gemma: the model's turns, the system's text before the first user's") {
  CHECK(*Drawn("gemma", kTwoTurns) ==
        "«<bos>»|«<start_of_turn>»|user\\n|S \\n\\nU1|«<end_of_turn>»|\\n|"
        "«<start_of_turn>»|model\\n|+A1|+«<end_of_turn>»|\\n|"
        "«<start_of_turn>»|user\\n|U2|«<end_of_turn>»|\\n|"
        "«<start_of_turn>»|model\\n|+A2|+«<end_of_turn>»|\\n");
}

TEST_CASE("a message with no tool calls may say so") {
  for (const char* const none : {"null", "[]"}) {
    for (const std::string& name : NamedTemplateNames()) {
      const std::string record =
          absl::StrCat(R"({"messages": [{"role": "user", "content": "U", "tool_calls": )", none,
                       R"(}, {"role": "assistant", "content": "A", "tool_calls": )", none, "}]}");
      CHECK_OK(Drawn(name, record).status());
    }
  }
}

TEST_CASE("what a format has no place for is refused, with the message") {
  const auto refuses = [](const std::string& name, const std::string& messages,
                          const std::string& why) {
    CHECK_STATUS(Drawn(name, R"({"messages": [)" + messages + "]}"),
                 absl::StatusCode::kInvalidArgument, why);
  };
  const std::string user = R"({"role": "user", "content": "U"})";
  const std::string system = R"({"role": "system", "content": "S"})";
  refuses("llama3", user + R"(, {"role": "critic"})", "message 2: the role is \"critic\"");
  refuses("gemma", user + ", " + user, "take turns");
  refuses("gemma", user + ", " + system, "system message at the start alone");
  refuses("mistral-v3", system, "without a user's");
  refuses("mistral-v1", R"({"role": "assistant", "content": "A"})", "beginning with the user");
  refuses("mistral-v7", user + R"(, {"role": "tool", "content": "A"})", "without tool calls");
  refuses("llama3", R"({"role": "assistant", "tool_calls": [{"a": 1}]})", "without 'name'");
  CHECK_STATUS(Drawn("chatml", R"({"messages": [{"role": "user"}], "tools": [1]})"),
               absl::StatusCode::kInvalidArgument, "the model folder's own chat template");
  CHECK_STATUS(FindNamedTemplate("llama"), absl::StatusCode::kInvalidArgument, "there are llama3");
}

}  // namespace
}  // namespace convene::worker
