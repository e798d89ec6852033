#include "worker_runtime/data/chat/conversation.h"

#include <catch2/catch.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tools/base/testing/status_testing.h"
#include "worker_runtime/data/chat/jinja/print.h"

namespace convene::worker {
namespace {

Conversation Read(const std::string& record) {
  absl::StatusOr<ChatRecord> read = ReadChatRecord(record);
  REQUIRE_OK(read.status());
  REQUIRE(std::holds_alternative<Conversation>(*read));
  return std::get<Conversation>(*read);
}

std::string Json(const jinja::Value& value) {
  jinja::Budget budget(1000000, 1000000);
  std::string text;
  REQUIRE_OK(AppendJson(value, jinja::JsonStyle(), &budget, &text));
  return text;
}

TEST_CASE("messages keep what they hold, and the assistant's are answers") {
  const Conversation read = Read(
      R"({"messages": [{"role": "user", "content": "q", "x": [1]}, {"role": "assistant", "content": "a"}]})");
  REQUIRE(read.messages.size() == 2);
  CHECK(Json(read.messages[0]) == R"({"role": "user", "content": "q", "x": [1]})");
  CHECK(read.is_answer == std::vector<bool>{false, true});
}

TEST_CASE("an answer's thoughts have all their names, as transformers gives them") {
  const auto message = [](const std::string& more) {
    const Conversation read =
        Read(absl::StrCat(R"({"messages": [{"role": "assistant", "content": "a", )", more, "}]}"));
    return Json(read.messages[0]);
  };
  CHECK(message(R"("reasoning": "r")") ==
        R"({"thinking": "r", "role": "assistant", "content": "a", "reasoning": "r", )"
        R"("reasoning_content": "r"})");
  CHECK(message(R"("reasoning_content": null, "thinking": "t", "reasoning": "r")") ==
        R"({"thinking": "t", "role": "assistant", "content": "a", "reasoning_content": "t", )"
        R"("reasoning": "r"})");
  CHECK(message(R"("reasoning_content": "c", "thinking": "t")") ==
        R"({"thinking": "t", "role": "assistant", "content": "a", "reasoning_content": "c"})");
  CHECK(message(R"("reasoning": null)") ==
        R"({"role": "assistant", "content": "a", "reasoning": null})");
  const Conversation other =
      Read(R"({"conversations": [{"from": "gpt", "value": "a", "reasoning": "r"}]})");
  CHECK(Json(other.messages[0]) ==
        R"({"thinking": "r", "role": "assistant", "content": "a", "reasoning": "r", )"
        R"("reasoning_content": "r"})");
}

TEST_CASE("ShareGPT's spelling is made into the other") {
  const Conversation read = Read(
      R"({"conversations": [{"from": "system", "value": "s"}, {"from": "human", "value": "q"}, )"
      R"({"from": "gpt", "value": "a", "weight": 1}, {"from": "observation", "value": "o"}]})");
  REQUIRE(read.messages.size() == 4);
  CHECK(Json(read.messages[0]) == R"({"role": "system", "content": "s"})");
  CHECK(Json(read.messages[1]) == R"({"role": "user", "content": "q"})");
  CHECK(Json(read.messages[2]) == R"({"role": "assistant", "content": "a", "weight": 1})");
  CHECK(Json(read.messages[3]) == R"({"role": "tool", "content": "o"})");
  CHECK(read.is_answer == std::vector<bool>{false, false, true, false});
}

TEST_CASE("an answer of weight 0 is not learned, and of a prompt and completion only the latter") {
  const Conversation weighed = Read(
      R"({"messages": [{"role": "assistant", "weight": 0}, {"role": "assistant", "weight": 1}, {"role": "assistant"}]})");
  CHECK(weighed.is_answer == std::vector<bool>{false, true, true});
  CHECK(AnswersToLearn(weighed, TrainOn::kAnswers) == std::vector<bool>{false, true, true});
  CHECK(AnswersToLearn(weighed, TrainOn::kLast) == std::vector<bool>{false, false, true});
  const Conversation completed = Read(
      R"({"prompt": [{"role": "user"}, {"role": "assistant"}, {"role": "user"}], "completion": [{"role": "assistant"}]})");
  CHECK(completed.is_answer == std::vector<bool>{false, false, false, true});
}

TEST_CASE("prompt and completion may be texts") {
  const absl::StatusOr<ChatRecord> read = ReadChatRecord(R"({"prompt": "p ", "completion": "c"})");
  REQUIRE_OK(read.status());
  CHECK(std::get<PromptAndCompletion>(*read).prompt == "p ");
  CHECK(std::get<PromptAndCompletion>(*read).completion == "c");
}

TEST_CASE("tools may be JSON within a string; an empty list is none") {
  const std::string messages = R"("messages": [{"role": "assistant"}])";
  const Conversation list = Read("{" + messages + R"(, "tools": [{"a": 1}]})");
  CHECK(Json(*list.variables.Find("tools")) == R"([{"a": 1}])");
  const Conversation text = Read("{" + messages + R"(, "tools": "[{\"a\": 1}]"})");
  CHECK(Json(*text.variables.Find("tools")) == R"([{"a": 1}])");
  CHECK(Read("{" + messages + R"(, "tools": []})").variables.Find("tools") == nullptr);
  CHECK(Read("{" + messages + R"(, "tools": null})").variables.Find("tools") == nullptr);
  const Conversation more =
      Read("{" + messages + R"(, "chat_template_kwargs": {"enable_thinking": false}})");
  CHECK(Json(*more.variables.Find("enable_thinking")) == "false");
}

TEST_CASE("a number beyond 64 bits is nobody's matter, unless it is the template's") {
  Read(R"({"messages": [{"role": "assistant"}], "id": 18446744073709551615})");
  CHECK_STATUS(
      ReadChatRecord(R"({"messages": [{"role": "assistant", "id": 18446744073709551615}]})"),
      absl::StatusCode::kInvalidArgument, "an integer beyond 64 bits with a sign");
}

TEST_CASE("a broken record says what is wrong, and with which message") {
  const auto refuses = [](const std::string& record, const std::string& why) {
    CHECK_STATUS(ReadChatRecord(record), absl::StatusCode::kInvalidArgument, why);
  };
  refuses("{", "broken JSON");
  refuses("[]", "no JSON object");
  refuses("{}", "neither 'messages'");
  refuses(R"({"prompt": "p"})", "neither 'messages'");
  refuses(R"({"prompt": "p", "completion": []})", "'prompt' is no list");
  refuses(R"({"messages": {}})", "'messages' is no list");
  refuses(R"({"messages": []})", "no messages");
  refuses(R"({"messages": [{"role": "user"}, 5]})", "message 2 of 'messages': it is no object");
  refuses(R"({"messages": [{"content": "x"}]})",
          "message 1 of 'messages': it has no string 'role'");
  refuses(R"({"messages": [{"role": 5}]})", "no string 'role'");
  refuses(R"({"conversations": [{"from": "ghost"}]})", "'from' is \"ghost\"");
  refuses(R"({"conversations": [{"from": 5}]})", "'from' is no string");
  refuses(R"({"messages": [{"role": "user"}], "tools": "x"})", "the string 'tools': broken JSON");
  refuses(R"({"messages": [{"role": "user"}], "tools": 5})", "'tools' is no list");
  refuses(R"({"messages": [{"role": "user"}], "chat_template_kwargs": {"messages": 1}})",
          "may not set 'messages'");
}

TEST_CASE("content is a text, parts of text, or nothing") {
  const Conversation read =
      Read(R"({"messages": [{"role": "a", "content": "t"}, )"
           R"({"role": "a", "content": [{"type": "text", "text": "x"}, )"
           R"({"type": "text", "text": "y"}]}, {"role": "a", "content": null}, )"
           R"({"role": "a", "content": [{"type": "image"}]}, {"role": "a", "content": 5}]})");
  CHECK(*ContentOf(read.messages[0]) == "t");
  CHECK(*ContentOf(read.messages[1]) == "xy");
  CHECK(ContentOf(read.messages[2])->empty());
  CHECK_STATUS(ContentOf(read.messages[3]), absl::StatusCode::kInvalidArgument, "no text");
  CHECK_STATUS(ContentOf(read.messages[4]), absl::StatusCode::kInvalidArgument, "no string");
}

TEST_CASE("a side of a pair of answers stands in the completion's place") {
  const auto read = [](const char* record, Side side) { return ReadChatRecord(record, side); };
  const char* const texts = R"({"prompt": "a", "chosen": "b", "rejected": "c"})";
  CHECK(std::get<PromptAndCompletion>(*read(texts, Side::kChosen)).completion == "b");
  CHECK(std::get<PromptAndCompletion>(*read(texts, Side::kRejected)).completion == "c");
  CHECK(std::get<PromptAndCompletion>(*read(R"({"chosen": "b"})", Side::kChosen)).prompt.empty());
  const auto messages = read(R"({"prompt": [{"role": "user", "content": "a"}],
                                 "rejected": [{"role": "assistant", "content": "c"}]})",
                             Side::kRejected);
  REQUIRE_OK(messages);
  const auto& conversation = std::get<Conversation>(*messages);
  CHECK(conversation.is_answer == std::vector<bool>{false, true});
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  CHECK_STATUS(read(R"({"prompt": "a", "chosen": "b"})", Side::kRejected), kInvalid,
               "the record has no 'rejected'");
  CHECK_STATUS(read(R"({"prompt": "a", "chosen": [{"role": "assistant"}]})", Side::kChosen),
               kInvalid, "'prompt' is no list");
  CHECK_STATUS(ReadChatRecord(texts), kInvalid, "neither 'messages'");
}

TEST_CASE("an empty answer of a pair is refused") {
  const auto read = [](absl::string_view rejected) {
    return ReadChatRecord(absl::StrCat(R"({"chosen": "b", "rejected": )", rejected, "}"),
                          Side::kRejected);
  };
  const char* const talk = R"({"role": "user", "content": "a"}, {"role": "assistant", "content": )";
  for (const std::string& empty :
       {std::string(R"("")"), std::string("[]"),
        std::string(R"([{"role": "user", "content": "a"}])"),
        absl::StrCat("[", talk, R"("b"}, )", talk, R"(""}])"), absl::StrCat("[", talk, "null}]"),
        std::string(R"([{"from": "human", "value": "a"}, {"from": "gpt", "value": ""}])")}) {
    INFO(empty);
    CHECK_STATUS(read(empty), absl::StatusCode::kInvalidArgument, "'rejected' has no answer");
  }
  CHECK_OK(read(R"(" ")").status());
  CHECK_OK(read(absl::StrCat("[", talk, R"("b"}])")).status());
  CHECK_OK(read(absl::StrCat("[", talk, R"(null, "tool_calls": [{"name": "f"}]}])")).status());
}

}  // namespace
}  // namespace convene::worker
