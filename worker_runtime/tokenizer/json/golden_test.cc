// Small tokenizers with random parts must give the ids and texts that Hugging Face's own library
// gave (golden/make_golden.py). CONVENE_GOLDEN=FILE in the environment checks another file of the
// script: bazel test --test_env=CONVENE_GOLDEN=/tmp/more.json
#include <rapidjson/stringbuffer.h>
#include <rapidjson/writer.h>
#include <catch2/catch.hpp>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/base/files.h"
#include "tools/base/testing/status_testing.h"
#include "worker_runtime/tokenizer/json/json_node.h"
#include "worker_runtime/tokenizer/json/tokenizer_json.h"

namespace convene::worker {
namespace {

using rapidjson::Value;
using Ids = std::vector<int32_t>;

JsonDocument ReadGolden() {
  const char* const other = std::getenv("CONVENE_GOLDEN");
  const auto text =
      ReadFile(other != nullptr ? other : "worker_runtime/tokenizer/json/golden/golden.json");
  REQUIRE_OK(text);
  auto document = JsonDocument::Parse(*text);
  REQUIRE_OK(document);
  return *std::move(document);
}

std::string Dump(const Value& value) {
  rapidjson::StringBuffer text;
  rapidjson::Writer<rapidjson::StringBuffer> writer(text);
  value.Accept(writer);
  return text.GetString();
}

// The case's parts, and one of the models, as a tokenizer.json.
std::string FileOf(const Value& golden_case, const Value& models) {
  std::string file = absl::StrCat("{\"model\":", Dump(models[golden_case["model"].GetUint()]));
  for (const char* key :
       {"version", "added_tokens", "normalizer", "pre_tokenizer", "decoder", "post_processor"}) {
    if (!golden_case.HasMember(key)) continue;
    absl::StrAppend(&file, ",\"", key, "\":", Dump(golden_case[key]));
  }
  return file + "}";
}

Ids IdsOf(const Value& list) {
  Ids ids;
  for (const Value& id : list.GetArray()) ids.push_back(id.GetInt());
  return ids;
}

Ids Encode(Encoder* encoder, absl::string_view text) {
  Ids ids;
  encoder->Encode(text, &ids);
  return ids;
}

// The original decodes to text, ours must be UTF-8, too, or the comparison fails.
void CheckCase(const Value& golden_case, const Tokenizer& tokenizer, const Value& texts) {
  Ids frame(tokenizer.prefix().begin(), tokenizer.prefix().end());
  frame.insert(frame.end(), tokenizer.suffix().begin(), tokenizer.suffix().end());
  CHECK(frame == IdsOf(golden_case["frame"]));
  CHECK(tokenizer.vocabulary_size() == golden_case["vocabulary_size"].GetInt());
  const auto with_tokens = tokenizer.NewEncoder(SpecialText::kAsTokens);
  const auto without_tokens = tokenizer.NewEncoder(SpecialText::kAsText);
  for (const Value& row : golden_case["results"].GetArray()) {
    const Value& text = texts[row[0].GetUint()];
    INFO("text: " << Dump(text));
    const Ids ids = IdsOf(row[1]);
    CHECK(Encode(with_tokens.get(), TextOf(text)) == ids);
    CHECK(Encode(without_tokens.get(), TextOf(text)) == IdsOf(row[2]));
    // A second time, from the cache of words.
    CHECK(Encode(with_tokens.get(), TextOf(text)) == ids);
    CHECK(tokenizer.Decode(ids, false) == TextOf(row[3]));
    CHECK(tokenizer.Decode(ids, true) == TextOf(row[4]));
  }
  CHECK(tokenizer.Decode(IdsOf(golden_case["loose_ids"]), false) ==
        TextOf(golden_case["loose_text"]));
}

TEST_CASE("small tokenizers of all kinds of parts give the original's ids and texts") {
  const JsonDocument document = ReadGolden();
  const Value& golden = document.root().value();
  REQUIRE(golden["cases"].Size() >= 100);
  for (const Value& golden_case : golden["cases"].GetArray()) {
    const std::string file = FileOf(golden_case, golden["models"]);
    INFO(file);
    const auto tokenizer = ReadTokenizerJson(file, "");
    INFO(tokenizer.status().ToString());
    CHECK(tokenizer.ok());
    if (tokenizer.ok()) CheckCase(golden_case, **tokenizer, golden["texts"]);
  }
}

}  // namespace
}  // namespace convene::worker
