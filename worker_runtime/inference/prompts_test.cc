#include "worker_runtime/inference/prompts.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "tools/base/files.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"
#include "worker_runtime/data/chat/testing/fake_tokenizer.h"

namespace convene::worker {
namespace {

using convene::testing::TempDir;

constexpr char kTemplate[] =
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}";

const FakeTokenizer& Tokens() {
  static const FakeTokenizer tokenizer(
      {.specials = {"<|system|>", "<|user|>", "<|assistant|>", "<|end|>", "<s>"},
       .before_document = "<s>"});
  return tokenizer;
}

std::string TextOf(const absl::StatusOr<std::vector<int32_t>>& ids) {
  REQUIRE_OK(ids.status());
  return Tokens().Decode(*ids, /*show_specials=*/true);
}

TEST_CASE("A text is a prompt with the tokens before a document, and may have special tokens") {
  auto reader = PromptReader::Make(Tokens(), "", "");
  REQUIRE_OK(reader.status());
  const auto ids = reader->Text("a<s>");
  CHECK(TextOf(ids) == "<s>a<s>");
  CHECK(ids->size() == 3);
  CHECK(reader->Line(R"({"prompt": "a<s>"})").value() == *ids);
  CHECK_STATUS(reader->Line(R"({"messages": []})"), absl::StatusCode::kInvalidArgument,
               "needs --chat");
  CHECK_STATUS(reader->Line(R"({"prompt": 3})"), absl::StatusCode::kInvalidArgument, "\"prompt\"");
  CHECK_STATUS(reader->Line("prompt"), absl::StatusCode::kInvalidArgument, "");
}

TEST_CASE("A chat goes through the folder's template up to the answer") {
  const TempDir folder;
  REQUIRE_OK(WriteFileAtomic(folder.File("chat_template.jinja"), kTemplate));
  auto reader = PromptReader::Make(Tokens(), folder.path(), "be brief");
  REQUIRE_OK(reader.status());
  const auto ids = reader->Text("hi");
  CHECK(TextOf(ids) == "<|system|>be brief<|end|><|user|>hi<|end|><|assistant|>");
  CHECK(ids->size() == 8 + 2 + 5);
  CHECK(TextOf(reader->Line(R"({"messages": [{"role": "user", "content": "a"},
      {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]})")) ==
        "<|user|>a<|end|><|assistant|>b<|end|><|user|>c<|end|><|assistant|>");
  CHECK(TextOf(reader->Line(R"({"messages": [{"role": "user", "content": [
            {"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]})")) ==
        "<|user|>ab<|end|><|assistant|>");
  CHECK_STATUS(reader->Line(R"({"messages": [{"role": "user", "content": [
                   {"type": "image_url", "image_url": {"url": "x"}}]}]})"),
               absl::StatusCode::kInvalidArgument, "there are no images or sounds here");
  CHECK_STATUS(reader->Line(R"({"messages": 3})"), absl::StatusCode::kInvalidArgument,
               "'messages' is no list");

  Conversation chat = reader->NewChat();
  AddMessage("user", "x\xFF", &chat);
  CHECK(TextOf(reader->Chat(chat)) ==
        "<|system|>be brief<|end|><|user|>x\xEF\xBF\xBD<|end|><|assistant|>");
  REQUIRE_OK(WriteFileAtomic(folder.File("tokenizer.json"), "{{ 'no template' }}"));
  reader = PromptReader::Make(Tokens(), folder.File("tokenizer.json"), "");
  REQUIRE_OK(reader.status());
  CHECK(TextOf(reader->Text("hi")) == "<|user|>hi<|end|><|assistant|>");
  CHECK_STATUS(PromptReader::Make(Tokens(), "byte", ""), absl::StatusCode::kInvalidArgument,
               "byte has none");
}

TEST_CASE("Messages are read beside a prompt, and beside a number that is no integer of 64 bits") {
  const TempDir folder;
  REQUIRE_OK(WriteFileAtomic(folder.File("chat_template.jinja"), kTemplate));
  auto reader = PromptReader::Make(Tokens(), folder.path(), "");
  REQUIRE_OK(reader.status());
  const std::string both =
      R"({"id": 18446744073709551616, "prompt": "no", "messages": [{"role": "user", "content": "a"}]})";
  CHECK(TextOf(reader->Messages(both)) == "<|user|>a<|end|><|assistant|>");
  CHECK(TextOf(reader->Line(both)) == "<|user|>no<|end|><|assistant|>");
}

TEST_CASE("A call's arguments that are a text with an object are the object for a template") {
  const TempDir folder;
  REQUIRE_OK(
      WriteFileAtomic(folder.File("chat_template.jinja"),
                      "{% for m in messages %}{% for c in m.tool_calls %}{{ c.function.name }}"
                      "{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}"));
  auto reader = PromptReader::Make(Tokens(), folder.path(), "");
  REQUIRE_OK(reader.status());
  const auto rendered = [&](const std::string& arguments) {
    return TextOf(reader->Messages(
        R"({"messages": [{"role": "assistant", "content": null, "tool_calls": [{"type": "function",
            "function": {"name": "f", "arguments": )" +
        arguments + "}}]}]}"));
  };
  CHECK(rendered(R"("{\"city\": \"Rome\"}")") == R"(f{"city": "Rome"})");
  CHECK(rendered(R"({"city": "Rome"})") == R"(f{"city": "Rome"})");
  CHECK(rendered(R"("Rome")") == R"(f"Rome")");
}

TEST_CASE("What a message says is letters, whatever special tokens it names") {
  const TempDir folder;
  REQUIRE_OK(WriteFileAtomic(folder.File("chat_template.jinja"), kTemplate));
  auto reader = PromptReader::Make(Tokens(), folder.path(), "x<|end|>");
  REQUIRE_OK(reader.status());
  auto ids = reader->Text("<|user|>");
  CHECK(TextOf(ids) == "<|system|>x<|end|><|end|><|user|><|user|><|end|><|assistant|>");
  CHECK(ids->size() == 5 + 8 + 8);
  ids = reader->Line(R"({"messages": [{"role": "user", "content": [
      {"type": "text", "text": "<|e"}, {"type": "text", "text": "nd|>"}]}]})");
  CHECK(TextOf(ids) == "<|user|><|end|><|end|><|assistant|>");
  CHECK(ids->size() == 3 + 7);
  CHECK_STATUS(reader->Line(R"({"messages": [{"role": "user", "content": "\ue0f2<|end|>"}]})"),
               absl::StatusCode::kInvalidArgument, "U+E0F2");
}

TEST_CASE("A chat's answer ends with the special token that the template writes behind it") {
  const TempDir folder;
  const auto end = [&](const std::string& source) {
    REQUIRE_OK(WriteFileAtomic(folder.File("chat_template.jinja"), source));
    auto reader = PromptReader::Make(Tokens(), folder.path(), "");
    REQUIRE_OK(reader.status());
    return reader->EndOfAnswer();
  };
  CHECK(end(kTemplate) == *Tokens().SpecialId("<|end|>"));
  CHECK(!end("{% for m in messages %}{{ m.content }}\n<|end|>{% endfor %}").has_value());
  CHECK(!end("{% for m in messages %}<|end|>{{ m.content }}{% endfor %}").has_value());
  CHECK(!end("{{ messages[0].content }}<|end|>").has_value());
  CHECK(!end("{{ raise_exception('no') }}").has_value());
  CHECK(!PromptReader::Make(Tokens(), "", "")->EndOfAnswer().has_value());
}

TEST_CASE("A template has tools and documents, which are none where a conversation has none") {
  const TempDir folder;
  REQUIRE_OK(
      WriteFileAtomic(folder.File("chat_template.jinja"),
                      "{% if tools is none %}no tools{% else %}{{ tools | length }}{% endif %}"
                      "{% if documents is none %}, no documents{% endif %}"));
  auto reader = PromptReader::Make(Tokens(), folder.path(), "");
  REQUIRE_OK(reader.status());
  CHECK(TextOf(reader->Text("hi")) == "no tools, no documents");
  CHECK(TextOf(reader->Line(R"({"messages": [{"role": "user", "content": "hi"}],
                                "tools": [{"type": "function"}, {"type": "function"}]})")) ==
        "2, no documents");
}

TEST_CASE("A folder's end tokens are those of its generation, else of its configuration") {
  const TempDir folder;
  CHECK(EndTokensOf(folder.path()).value().empty());
  REQUIRE_OK(WriteFileAtomic(folder.File("config.json"), R"({"eos_token_id": 7})"));
  CHECK(EndTokensOf(folder.path()).value() == std::vector<int32_t>{7});
  REQUIRE_OK(WriteFileAtomic(folder.File("generation_config.json"), R"({"eos_token_id": null})"));
  CHECK(EndTokensOf(folder.path()).value() == std::vector<int32_t>{7});
  REQUIRE_OK(WriteFileAtomic(folder.File("generation_config.json"), R"({"eos_token_id": [4, 5]})"));
  CHECK(EndTokensOf(folder.path()).value() == std::vector<int32_t>{4, 5});
  REQUIRE_OK(WriteFileAtomic(folder.File("generation_config.json"), R"({"eos_token_id": "x"})"));
  CHECK_STATUS(EndTokensOf(folder.path()), absl::StatusCode::kInvalidArgument,
               "neither a number nor a list");
}

TEST_CASE("an end token is added to those that a generation has") {
  CHECK(WithEndToken("", 7, 9).value() == "{\n  \"eos_token_id\": [\n    7,\n    9\n  ]\n}\n");
  CHECK(WithEndToken("", std::nullopt, 9).value() == "{\n  \"eos_token_id\": [\n    9\n  ]\n}\n");
  CHECK(WithEndToken("", 9, 9)->empty());
  const std::string has_both = R"({"eos_token_id": [4, 9]})";
  CHECK(WithEndToken(has_both, 7, 9).value() == has_both);
  CHECK(WithEndToken(R"({"temperature": 0.6, "eos_token_id": 4, "top_k": 20})", 7, 9).value() ==
        "{\n  \"temperature\": 0.6,\n  \"eos_token_id\": [\n    4,\n    9\n  ],\n"
        "  \"top_k\": 20\n}\n");
  CHECK_STATUS(WithEndToken(R"({"eos_token_id": "x"})", 7, 9), absl::StatusCode::kInvalidArgument,
               "generation_config.json: \"eos_token_id\" is neither");
}

}  // namespace
}  // namespace convene::worker
