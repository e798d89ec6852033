#include "worker_runtime/gguf/gguf_tokenizer.h"

#include <rapidjson/writer.h>

#include <cstdint>
#include <fstream>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tools/base/json_buffer.h"
#include "tools/base/status_macros.h"
#include "tools/base/text.h"
#include "worker_runtime/data/store/mapped_file.h"
#include "worker_runtime/gguf/sentencepiece_vocabulary.h"
#include "worker_runtime/tokenizer/scanners.h"

namespace convene::worker {
namespace {

using JsonWriter = rapidjson::Writer<JsonBuffer>;

// How a vocabulary's texts are cut into words.
struct WordCut {
  absl::string_view name;     // tokenizer.ggml.pre
  absl::string_view pattern;  // "": byte-level's own, GPT-2's
  bool single_digits = false;
  bool composes = false;       // to NFC, before all else
  bool ignore_merges = false;  // a word that is a token needs no merges
  bool adds_begin = false;     // a text's first token, where the file does not say, as in llama.cpp
};

std::vector<WordCut> WordCuts() {
  return {
      {"gpt-2", ""},
      {.name = "smollm", .single_digits = true},
      {.name = "llama-bpe", .pattern = kLlama3Pattern, .ignore_merges = true, .adds_begin = true},
      {.name = "qwen2", .pattern = kQwen2Pattern, .composes = true}};
}

void Write(JsonWriter& json, absl::string_view text) {
  json.String(text.data(), static_cast<rapidjson::SizeType>(text.size()));
}
void Write(JsonWriter& json, const char* key, absl::string_view text) {
  json.Key(key);
  Write(json, text);
}
void Write(JsonWriter& json, const char* key, bool value) {
  json.Key(key);
  json.Bool(value);
}

void WriteByteLevel(JsonWriter& json, bool uses_pattern) {
  json.StartObject();
  Write(json, "type", absl::string_view("ByteLevel"));
  Write(json, "add_prefix_space", false);
  Write(json, "trim_offsets", false);
  Write(json, "use_regex", uses_pattern);
  json.EndObject();
}

void WriteWordCut(JsonWriter& json, const WordCut& cut) {
  json.Key("normalizer");
  if (cut.composes) {
    json.StartObject();
    Write(json, "type", absl::string_view("NFC"));
    json.EndObject();
  } else {
    json.Null();
  }
  json.Key("pre_tokenizer");
  json.StartObject();
  Write(json, "type", absl::string_view("Sequence"));
  json.Key("pretokenizers");
  json.StartArray();
  if (cut.single_digits) {
    json.StartObject();
    Write(json, "type", absl::string_view("Digits"));
    Write(json, "individual_digits", true);
    json.EndObject();
  }
  if (!cut.pattern.empty()) {
    json.StartObject();
    Write(json, "type", absl::string_view("Split"));
    json.Key("pattern");
    json.StartObject();
    Write(json, "Regex", cut.pattern);
    json.EndObject();
    Write(json, "behavior", absl::string_view("Isolated"));
    Write(json, "invert", false);
    json.EndObject();
  }
  WriteByteLevel(json, cut.pattern.empty());
  json.EndArray();
  json.EndObject();
}

// tokenizer.ggml.token_type
constexpr int64_t kControl = 3;
constexpr int64_t kUserDefined = 4;

void WriteAddedTokens(JsonWriter& json, const std::vector<absl::string_view>& tokens,
                      const std::vector<int64_t>& types) {
  json.Key("added_tokens");
  json.StartArray();
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (types[id] != kControl && types[id] != kUserDefined) continue;
    json.StartObject();
    json.Key("id");
    json.Uint64(id);
    Write(json, "content", tokens[id]);
    for (const char* const key : {"single_word", "lstrip", "rstrip", "normalized"}) {
      Write(json, key, false);
    }
    Write(json, "special", types[id] == kControl);
    json.EndObject();
  }
  json.EndArray();
}

absl::StatusOr<std::string> VocabularyText(const GgufFile& file, const WordCut& cut) {
  CONVENE_ASSIGN_OR_RETURN(const auto* const tokens, file.Texts("tokenizer.ggml.tokens"));
  CONVENE_ASSIGN_OR_RETURN(const auto* const merges, file.Texts("tokenizer.ggml.merges"));
  CONVENE_ASSIGN_OR_RETURN(const auto* const types, file.Numbers("tokenizer.ggml.token_type"));
  if (types->size() != tokens->size()) {
    return absl::InvalidArgumentError(absl::StrCat("the GGUF file has ", tokens->size(),
                                                   " tokens, and the types of ", types->size(),
                                                   " in tokenizer.ggml.token_type"));
  }
  JsonBuffer buffer;
  JsonWriter json(buffer);
  json.StartObject();
  Write(json, "version", absl::string_view("1.0"));
  WriteAddedTokens(json, *tokens, *types);
  WriteWordCut(json, cut);
  json.Key("decoder");
  WriteByteLevel(json, true);
  json.Key("model");
  json.StartObject();
  Write(json, "type", absl::string_view("BPE"));
  Write(json, "ignore_merges", cut.ignore_merges);
  json.Key("vocab");
  json.StartObject();
  for (size_t id = 0; id < tokens->size(); ++id) {
    Write(json, (*tokens)[id]);
    json.Uint64(id);
  }
  json.EndObject();
  json.Key("merges");
  json.StartArray();
  for (const absl::string_view merge : *merges) Write(json, merge);
  json.EndArray();
  json.EndObject();
  json.EndObject();
  return std::string(buffer.GetString(), buffer.GetSize());
}

absl::StatusOr<std::string> ConfigText(const GgufFile& file, bool adds_begin) {
  struct SpecialToken {
    const char* key;
    const char* name;
  };
  constexpr SpecialToken kTokens[] = {{"tokenizer.ggml.bos_token_id", "bos_token"},
                                      {"tokenizer.ggml.eos_token_id", "eos_token"},
                                      {"tokenizer.ggml.unknown_token_id", "unk_token"},
                                      {"tokenizer.ggml.padding_token_id", "pad_token"}};
  CONVENE_ASSIGN_OR_RETURN(const auto* const tokens, file.Texts("tokenizer.ggml.tokens"));
  JsonBuffer buffer;
  JsonWriter json(buffer);
  json.StartObject();
  for (const auto& [key, name] : kTokens) {
    if (!file.Has(key)) continue;
    CONVENE_ASSIGN_OR_RETURN(const int id, file.Count(key));
    if (static_cast<size_t>(id) >= tokens->size()) {
      return absl::InvalidArgumentError(absl::StrCat("the GGUF file's '", key, "' is ", id,
                                                     ", and it has ", tokens->size(), " tokens"));
    }
    Write(json, name, (*tokens)[id]);
  }
  const bool adds_bos = adds_begin && file.Has("tokenizer.ggml.bos_token_id");
  for (auto [name, adds] : {std::pair{"add_bos_token", adds_bos}, {"add_eos_token", false}}) {
    const std::string key = absl::StrCat("tokenizer.ggml.", name);
    if (file.Has(key)) {
      CONVENE_ASSIGN_OR_RETURN(adds, file.Bool(key));
    } else if (!adds) {
      continue;
    }
    Write(json, name, adds);
  }
  if (file.Has("tokenizer.chat_template")) {
    CONVENE_ASSIGN_OR_RETURN(const absl::string_view text, file.Text("tokenizer.chat_template"));
    Write(json, "chat_template", text);
  }
  json.EndObject();
  return std::string(buffer.GetString(), buffer.GetSize());
}

}  // namespace

absl::StatusOr<GgufTokenizer> TokenizerOf(const GgufFile& file) {
  CONVENE_ASSIGN_OR_RETURN(const absl::string_view model, file.Text("tokenizer.ggml.model"));
  GgufTokenizer made;
  if (model == "llama") {
    made.file_name = "tokenizer.model";
    CONVENE_ASSIGN_OR_RETURN(made.content, SentencePieceModelOf(file));
    // Its reader adds the token where the config says nothing.
    CONVENE_ASSIGN_OR_RETURN(made.config_json, ConfigText(file, /*adds_begin=*/false));
    return made;
  }
  if (model != "gpt2") {
    return absl::UnimplementedError(absl::StrCat("a GGUF vocabulary of the kind '", Utf8(model, 50),
                                                 "' (tokenizer.ggml.model)", kTokenizerInstead));
  }
  if (!file.Has("tokenizer.ggml.pre")) {
    return absl::UnimplementedError(
        absl::StrCat("a GGUF vocabulary that does not say how it cuts words (tokenizer.ggml.pre; "
                     "files of before May 2024 lack it)",
                     kTokenizerInstead));
  }
  CONVENE_ASSIGN_OR_RETURN(const absl::string_view name, file.Text("tokenizer.ggml.pre"));
  for (const WordCut& cut : WordCuts()) {
    if (cut.name != name) continue;
    made.file_name = "tokenizer.json";
    CONVENE_ASSIGN_OR_RETURN(made.content, VocabularyText(file, cut));
    CONVENE_ASSIGN_OR_RETURN(made.config_json, ConfigText(file, cut.adds_begin));
    return made;
  }
  return absl::UnimplementedError(absl::StrCat("a GGUF vocabulary that cuts words as '",
                                               Utf8(name, 50), "' (tokenizer.ggml.pre)",
                                               kTokenizerInstead));
}

bool IsGgufFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  char start[4] = {};
  return file.read(start, sizeof(start)) &&
         GgufFile::LooksLikeOne(absl::string_view(start, sizeof(start)));
}

absl::StatusOr<GgufTokenizer> ReadGgufTokenizer(const std::string& path) {
  CONVENE_ASSIGN_OR_RETURN(const MappedFile mapped, MappedFile::Open(path));
  const absl::StatusOr<GgufFile> file = GgufFile::Parse(mapped.bytes());
  if (!file.ok()) return Annotate(file.status(), path);
  absl::StatusOr<GgufTokenizer> made = TokenizerOf(*file);
  if (!made.ok()) return Annotate(made.status(), path);
  return made;
}

}  // namespace convene::worker
