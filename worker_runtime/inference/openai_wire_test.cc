#include "worker_runtime/inference/openai_wire.h"

#include <catch2/catch.hpp>
#include <string>
#include <variant>
#include <vector>

#include "tools/base/testing/status_testing.h"

namespace convene::worker {
namespace {

CompletionRequest Parse(const std::string& body, bool is_chat = false) {
  const auto request = ParseCompletionRequest(body, is_chat, 7);
  REQUIRE_OK(request.status());
  return *request;
}

TEST_CASE("a prompt is a text, ids, or a list of these") {
  using Ids = std::vector<int32_t>;
  CHECK(std::get<std::string>(Parse(R"({"prompt": "a"})").prompts.at(0)) == "a");
  CHECK(std::get<Ids>(Parse(R"({"prompt": [3, 4]})").prompts.at(0)) == Ids{3, 4});
  const CompletionRequest texts = Parse(R"({"prompt": ["a", "b"]})");
  REQUIRE(texts.prompts.size() == 2);
  CHECK(std::get<std::string>(texts.prompts[1]) == "b");
  const CompletionRequest lists = Parse(R"({"prompt": [[1], [2, 3]]})");
  REQUIRE(lists.prompts.size() == 2);
  CHECK(std::get<Ids>(lists.prompts[1]) == Ids{2, 3});
}

TEST_CASE("what a request leaves out is as OpenAI has it") {
  const CompletionRequest text = Parse(R"({"prompt": "a", "model": "any", "unknown": {}})");
  CHECK(text.max_tokens == 16);
  CHECK(text.sampling.temperature == 1);
  CHECK(text.sampling.top_p == 1);
  CHECK(text.sampling.top_k == 0);
  CHECK(text.sampling.seed == 7);
  CHECK(text.choices == 1);
  CHECK_FALSE(text.streams);
  const CompletionRequest chat = Parse(R"({"messages": []})", true);
  CHECK(chat.max_tokens < 0);
  CHECK(std::get<std::string>(chat.prompts.at(0)) == R"({"messages": []})");
}

TEST_CASE("log-probabilities and the prompt's echo are asked for in two spellings") {
  CHECK_FALSE(Parse(R"({"prompt": "a", "logprobs": false})").top_logprobs.has_value());
  CHECK(Parse(R"({"prompt": "a", "logprobs": 0})").top_logprobs == 0);
  const CompletionRequest scored =
      Parse(R"({"prompt": "a", "logprobs": 5, "echo": true, "max_tokens": 0})");
  CHECK(scored.top_logprobs == 5);
  CHECK(scored.echoes);
  CHECK(scored.max_tokens == 0);
  CHECK(Parse(R"({"messages": [], "logprobs": true})", true).top_logprobs == 0);
  CHECK(Parse(R"({"messages": [], "logprobs": true, "top_logprobs": 3})", true).top_logprobs == 3);
  const auto refuse = [](const std::string& body, const char* why, bool is_chat = false) {
    CHECK_STATUS(ParseCompletionRequest(body, is_chat, 0), absl::StatusCode::kInvalidArgument, why);
  };
  refuse(R"({"prompt": "a", "max_tokens": 0})", "\"max_tokens\" is not a whole number from 1");
  refuse(R"({"prompt": "a", "echo": 1})", "\"echo\" is not true or false");
  refuse(R"({"messages": [], "top_logprobs": 3})", "\"logprobs\" is not true beside", true);
  refuse(R"({"messages": [], "logprobs": 3})", "\"logprobs\" is not true or false", true);
}

TEST_CASE("log-probabilities are told as clients read them") {
  const Choice choice = {"aé",
                         "stop",
                         {{"a", {}, 0},
                          {"\xC3", {{"\xC3", -2}, {"b", -0.5}, {"b", -1}}, 1},
                          {"\xA9", {{"\xA9", -0.25}, {"\xA9", -0.25}}, 1}}};
  const std::string text = CompletionJson({}, {choice}, {});
  CHECK_THAT(text, Catch::Contains(R"("tokens":["a","bytes:\\xc3","bytes:\\xa9"],)"
                                   R"("token_logprobs":[null,-2.0,-0.25],)"
                                   R"("top_logprobs":[null,{"b":-0.5,"bytes:\\xc3":-2.0},)"
                                   R"({"bytes:\\xa9":-0.25}],"text_offset":[0,1,1]})"));
  const Choice said = {"é", "stop", {{"é", {{"é", -1}, {"b", -0.5}}, 0}}};
  CHECK_THAT(
      CompletionJson({.is_chat = true}, {said}, {}),
      Catch::Contains(R"("logprobs":{"content":[{"token":"é","logprob":-1.0,"bytes":[195,169],)"
                      R"("top_logprobs":[{"token":"b","logprob":-0.5,"bytes":[98]}]}]})"));
}

TEST_CASE("what a request says is taken") {
  const CompletionRequest request = Parse(
      R"({"prompt": "a", "max_tokens": 3, "n": 2, "temperature": 0, "top_p": 0.5, "top_k": 4, "min_p": 0.1,
          "repetition_penalty": 1.5, "seed": -1, "stop": ["x", "y"], "stream": true, "logprobs": null, "echo": false,
          "presence_penalty": 0, "logit_bias": {}, "response_format": {"type": "text"}, "best_of": 2,
          "stream_options": {"include_usage": true}})");
  CHECK(request.max_tokens == 3);
  CHECK(request.choices == 2);
  CHECK(request.sampling.temperature == 0);
  CHECK(request.sampling.top_p == 0.5);
  CHECK(request.sampling.top_k == 4);
  CHECK(request.sampling.min_p == 0.1);
  CHECK(request.sampling.repetition_penalty == 1.5);
  CHECK(request.sampling.seed == ~uint64_t{0});
  CHECK(request.stop == std::vector<std::string>{"x", "y"});
  CHECK(request.streams);
  CHECK(request.streams_usage);
  CHECK(Parse(R"({"messages": [], "max_completion_tokens": 5, "stop": "z"})", true).max_tokens ==
        5);
  CHECK(Parse(R"({"prompt": "a", "stop": null, "seed": null, "top_k": -1})").sampling.seed == 7);
}

TEST_CASE("a request that cannot be answered as it is meant is refused by the member's name") {
  const auto refuse = [](const std::string& body, const char* why, bool is_chat = false) {
    CHECK_STATUS(ParseCompletionRequest(body, is_chat, 0), absl::StatusCode::kInvalidArgument, why);
  };
  refuse("", "");
  refuse("[]", "no JSON object");
  refuse("{}", "\"prompt\" is missing");
  refuse("{}", "\"messages\" is missing", true);
  for (const char* const prompt : {"5", "[]", "[1.5]", "[-1]", "[\"a\", 5]", "[[\"a\"]]", "{}"}) {
    refuse(std::string("{\"prompt\": ") + prompt + "}", "\"prompt\" is not a text, ids");
  }
  refuse(R"({"prompt": "a", "n": 0})", "\"n\" is not a whole number from 1 to 64");
  refuse(R"({"prompt": "a", "n": 2, "best_of": 3})",
         "\"best_of\" is not a whole number from 2 to 2");
  refuse(R"({"prompt": "a", "temperature": -1})", "\"temperature\" is not a number from 0");
  refuse(R"({"prompt": "a", "stop": [""]})", "\"stop\" is not a text");
  refuse(R"({"prompt": "a", "stream": 1})", "\"stream\" is not true or false");
  refuse(R"({"prompt": "a", "seed": 1.5})", "\"seed\" is not a whole number");
  refuse(R"({"prompt": "a", "logprobs": 21})", "\"logprobs\" is not a whole number from 0 to 20");
  refuse(R"({"prompt": "a", "logit_bias": {"5": 1}})", "\"logit_bias\" is not served here");
  refuse(R"({"messages": [], "response_format": {"type": "json_object"}})",
         "\"response_format\" is not served here", true);
}

TEST_CASE("a member that would change the answer is refused, and passes where it is off") {
  for (const std::string name :
       {"structured_outputs", "guided_json", "guided_choice", "guided_regex", "guided_grammar",
        "ignore_eos", "min_tokens", "stop_token_ids", "include_stop_str_in_output", "bad_words",
        "allowed_token_ids", "prompt_logprobs", "use_beam_search", "continue_final_message"}) {
    INFO(name);
    for (const char* const on : {"true", "4", "[5]", "\"x\"", R"({"choice": ["a"]})"}) {
      CHECK_STATUS(
          ParseCompletionRequest(R"({"messages": [], ")" + name + "\": " + on + "}", true, 0),
          absl::StatusCode::kInvalidArgument, "\"" + name + "\" is not served here");
    }
    for (const char* const off : {"false", "0", "[]", "\"\"", "{}", "null"}) {
      Parse(R"({"messages": [], ")" + name + "\": " + off + "}", true);
    }
  }
  const auto chat = [](const std::string& member) {
    return ParseCompletionRequest(R"({"messages": [], )" + member + "}", true, 0).status();
  };
  CHECK_STATUS(chat(R"("add_generation_prompt": false)"), absl::StatusCode::kInvalidArgument,
               "\"add_generation_prompt\" is not true");
  CHECK_OK(chat(R"("add_generation_prompt": true)"));
  for (const std::string choice : {R"("required")", R"({"type": "function", "function": {}})"}) {
    CHECK_STATUS(chat(R"("tool_choice": )" + choice), absl::StatusCode::kInvalidArgument,
                 "\"tool_choice\" is not \"auto\" or \"none\"");
  }
  for (const std::string choice : {R"("auto")", R"("none")", "null"}) {
    CHECK_OK(chat(R"("tool_choice": )" + choice));
  }
  CHECK(Parse(R"({"prompt": "a", "top_p": 0})").sampling.top_p == 0);
  CHECK_STATUS(ParseCompletionRequest(R"({"prompt": "a", "repetition_penalty": 0})", false, 0),
               absl::StatusCode::kInvalidArgument, "\"repetition_penalty\" is not above 0");
}

TEST_CASE("answers have the members that clients read") {
  const AnswerHead text = {.id = "cmpl-1", .created = 5, .model = "m\""};
  CHECK(CompletionJson(text, {{"a\n", "stop"}, {"b", "length"}}, {3, 4}) ==
        R"({"id":"cmpl-1","object":"text_completion","created":5,"model":"m\"","choices":[)"
        R"({"index":0,"text":"a\n","logprobs":null,"finish_reason":"stop"},)"
        R"({"index":1,"text":"b","logprobs":null,"finish_reason":"length"}],)"
        R"("usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7}})");
  const AnswerHead chat = {.is_chat = true, .id = "c", .created = 5, .model = "m"};
  CHECK(CompletionJson(chat, {{"a", "stop"}}, {}) ==
        R"({"id":"c","object":"chat.completion","created":5,"model":"m","choices":[)"
        R"({"index":0,"message":{"role":"assistant","content":"a"},"logprobs":null,)"
        R"("finish_reason":"stop"}],)"
        R"("usage":{"prompt_tokens":0,"completion_tokens":0,"total_tokens":0}})");
  CHECK(ChunkEvent(chat, 1, {"a", ""}, true) ==
        "data: "
        R"({"id":"c","object":"chat.completion.chunk","created":5,"model":"m","choices":[)"
        R"({"index":1,"delta":{"role":"assistant","content":"a"},"logprobs":null,)"
        R"("finish_reason":null}]})"
        "\n\n");
  CHECK(ErrorJson(absl::InvalidArgumentError("no")) ==
        R"({"error":{"message":"no","type":"invalid_request_error","param":null,"code":null}})");
  CHECK(HttpStatusOf(absl::InternalError("x")) == 500);
  CHECK(HttpStatusOf(absl::CancelledError("x")) == 503);
}

}  // namespace
}  // namespace convene::worker
