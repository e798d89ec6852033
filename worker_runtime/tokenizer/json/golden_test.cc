// Small tokenizers with random parts must give the ids and texts that Hugging Face's own library
// gave (golden/make_golden.py). CONVENE_GOLDEN=FILE in the environment checks another file of the
// script: bazel test --test_env=CONVENE_GOLDEN=/tmp/more.json
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "worker_runtime/tokenizer/json/tokenizer_json.h"

namespace convene::worker {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<int32_t>;

Json ReadGolden() {
  const char* const other = std::getenv("CONVENE_GOLDEN");
  std::ifstream file(other != nullptr ? other : "worker_runtime/tokenizer/json/golden/golden.json");
  return Json::parse(file);
}

std::string Describe(const Json& golden_case) {
  Json shown = golden_case;
  for (const char* key : {"results", "loose_ids", "loose_text", "frame"}) shown.erase(key);
  return shown.dump();
}

Ids Encode(Encoder* encoder, const std::string& text) {
  Ids ids;
  encoder->Encode(text, &ids);
  return ids;
}

// The original decodes to text, ours must be UTF-8, too, or the comparison fails.
void CheckCase(const Json& golden_case, const Tokenizer& tokenizer, const Json& texts) {
  Ids frame(tokenizer.prefix().begin(), tokenizer.prefix().end());
  frame.insert(frame.end(), tokenizer.suffix().begin(), tokenizer.suffix().end());
  CHECK(frame == golden_case["frame"].get<Ids>());
  CHECK(tokenizer.vocabulary_size() == golden_case["vocabulary_size"].get<int>());
  const auto with_tokens = tokenizer.NewEncoder(SpecialText::kAsTokens);
  const auto without_tokens = tokenizer.NewEncoder(SpecialText::kAsText);
  for (const Json& row : golden_case["results"]) {
    const auto text = texts[row[0].get<size_t>()].get<std::string>();
    INFO("text: " << Json(text).dump());
    const auto ids = row[1].get<Ids>();
    CHECK(Encode(with_tokens.get(), text) == ids);
    CHECK(Encode(without_tokens.get(), text) == row[2].get<Ids>());
    // A second time, from the cache of words.
    CHECK(Encode(with_tokens.get(), text) == ids);
    CHECK(tokenizer.Decode(ids, false) == row[3].get<std::string>());
    CHECK(tokenizer.Decode(ids, true) == row[4].get<std::string>());
  }
  CHECK(tokenizer.Decode(golden_case["loose_ids"].get<Ids>(), false) ==
        golden_case["loose_text"].get<std::string>());
}

TEST_CASE("small tokenizers of all kinds of parts give the original's ids and texts") {
  const Json golden = ReadGolden();
  REQUIRE(golden["cases"].size() >= 100);
  for (const Json& golden_case : golden["cases"]) {
    INFO(Describe(golden_case));
    Json file = golden_case;
    file["model"] = golden["models"][golden_case["model"].get<size_t>()];
    const auto tokenizer = ReadTokenizerJson(file.dump(), "golden.json", "");
    INFO(tokenizer.status().ToString());
    CHECK(tokenizer.ok());
    if (tokenizer.ok()) CheckCase(golden_case, **tokenizer, golden["texts"]);
  }
}

}  // namespace
}  // namespace convene::worker
