// Golden.json covers what the parts do to texts; here is the rest: errors, settings, single tokens.
#include "worker_runtime/tokenizer/json/tokenizer_json.h"

#include <sys/resource.h>
#include <catch2/catch.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "worker_runtime/tokenizer/fingerprint.h"
#include "worker_runtime/tokenizer/json/normalizer_steps.h"

namespace convene::worker {
namespace {

using Ids = std::vector<int32_t>;

constexpr char kModel[] = R"({"type":"BPE","vocab":{"a":0,"b":1,"ab":2,"Ġ":3,"Ã":4,"©":5,"Ġab":6},)"
                          R"("merges":["a b",["Ġ","ab"]]})";
constexpr char kAdded[] = R"([{"id":7,"content":"<s>","special":true,"normalized":false},)"
                          R"({"id":8,"content":"</s>","special":true,"normalized":false},)"
                          R"({"id":9,"content":"<tool>","special":false,"normalized":false}])";
constexpr char kByteLevel[] =
    R"({"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true})";

// A tokenizer.json with these members beside a byte level model.
std::string File(const std::string& members) {
  return absl::StrCat(R"({"version":"1.0","model":)", kModel, R"(,"added_tokens":)", kAdded,
                      R"(,"pre_tokenizer":)", kByteLevel, R"(,"decoder":{"type":"ByteLevel"})",
                      members.empty() ? "" : ",", members, "}");
}

std::unique_ptr<Tokenizer> Read(const std::string& json, const std::string& config = "") {
  auto tokenizer = ReadTokenizerJson(json, config);
  INFO(tokenizer.status().ToString());
  REQUIRE(tokenizer.ok());
  return *std::move(tokenizer);
}

absl::Status ErrorOf(const std::string& json, const std::string& config = "") {
  return ReadTokenizerJson(json, config).status();
}

Ids Encode(const Tokenizer& tokenizer, absl::string_view text,
           SpecialText special_text = SpecialText::kAsTokens) {
  Ids ids = {-7};  // Encode appends
  tokenizer.NewEncoder(special_text)->Encode(text, &ids);
  CHECK(ids[0] == -7);
  ids.erase(ids.begin());
  return ids;
}

// A file whose part `key` is `value`.
absl::Status ErrorOfPart(const std::string& key, const std::string& value) {
  return ErrorOf(absl::StrCat(R"({"model":)", kModel, ",\"", key, "\":", value, "}"));
}

TEST_CASE("a byte level file encodes, decodes and names its tokens") {
  const auto tokenizer = Read(File(""));
  CHECK(tokenizer->kind() == "tokenizer.json (BPE)");
  CHECK(tokenizer->vocabulary_size() == 10);
  CHECK(Encode(*tokenizer, "ab ab") == Ids{2, 6});
  CHECK(Encode(*tokenizer, "\xC3\xA9") == Ids{4, 5});
  CHECK(Encode(*tokenizer, "").empty());
  CHECK(tokenizer->Decode({7, 2, 6, 4, 5, 9, 8, 55, -1}, false) == "ab ab\xC3\xA9<tool>");
  CHECK(tokenizer->Decode({7, 2, 8}, true) == "<s>ab</s>");
  CHECK(tokenizer->Decode({4}, false) == "\xEF\xBF\xBD");
}

TEST_CASE("special tokens in a text count only where they are asked for") {
  const auto tokenizer = Read(File(""));
  CHECK(Encode(*tokenizer, "a<s>b", SpecialText::kAsTokens) == Ids{0, 7, 1});
  // The letters of <s> are not in the small vocabulary, and vanish.
  CHECK(Encode(*tokenizer, "a<s>b", SpecialText::kAsText) == Ids{0, 1});
  CHECK(Encode(*tokenizer, "a<tool>b", SpecialText::kAsText) == Ids{0, 9, 1});
  CHECK(tokenizer->SpecialId("<s>") == 7);
  CHECK(!tokenizer->SpecialId("<tool>").has_value());
  CHECK(!tokenizer->SpecialId("ab").has_value());
  CHECK(tokenizer->SpecialTextOf(8) == "</s>");
  CHECK(tokenizer->SpecialTextOf(9).empty());
  CHECK(tokenizer->AddedTextOf(8) == "</s>");
  CHECK(tokenizer->AddedTextOf(9) == "<tool>");
  CHECK(tokenizer->AddedTextOf(0).empty());
  CHECK(tokenizer->SpecialTextOf(-1).empty());
}

TEST_CASE("the letters of a special token are not that token because the model has it too") {
  constexpr char kEnd[] = R"("added_tokens":[{"id":3,"content":"</s>","special":true}])";
  const auto unigram = Read(absl::StrCat(
      R"({"model":{"type":"Unigram","unk_id":0,"vocab":[["?",0],["<",-1],["a",-1],["</s>",-1],)",
      R"(["/",-1],["s",-1],[">",-1]]},)", kEnd, "}"));
  CHECK(Encode(*unigram, "a</s>", SpecialText::kAsText) == Ids{2, 1, 4, 5, 6});
  CHECK(Encode(*unigram, "a</s>", SpecialText::kAsTokens) == Ids{2, 3});
  for (const char* const byte_level : {"", R"(,"pre_tokenizer":{"type":"ByteLevel",)"
                                           R"("add_prefix_space":false,"use_regex":false})"}) {
    const auto bpe = Read(absl::StrCat(
        R"({"model":{"type":"BPE","ignore_merges":true,"merges":[],)",
        R"("vocab":{"<":1,"a":2,"</s>":3,"/":4,"s":5,">":6}},)", kEnd, byte_level, "}"));
    CHECK(Encode(*bpe, "</s>", SpecialText::kAsText) == Ids{1, 4, 5, 6});
    CHECK(Encode(*bpe, "</s>", SpecialText::kAsTokens) == Ids{3});
  }
}

TEST_CASE("added tokens of the config count behind the file's") {
  const auto with = [](const std::string& decoder) {
    return Read(File(""), absl::StrCat(R"({"added_tokens_decoder":{)", decoder, "}}"));
  };
  const std::string tool = R"("9":{"content":"<tool>","normalized":false)";
  const auto same = with(tool + "}");
  CHECK(Encode(*same, "a<tool> a") == Ids{0, 9, 3, 0});
  CHECK(Encode(*with(tool + R"(,"rstrip":true})"), "a<tool> a") == Ids{0, 9, 0});
  CHECK(Encode(*with(tool + R"(,"special":true})"), "a<tool>b", SpecialText::kAsText) == Ids{0, 1});
  // A new one has the next free id, whatever the config says; they are taken in order of ids.
  const auto more = with(R"("1000":{"content":"<y>","special":true},"300":{"content":"<x>"})");
  CHECK(Encode(*more, "a<x>b<y>", SpecialText::kAsTokens) == Ids{0, 10, 1, 11});
  CHECK(more->SpecialId("<y>") == 11);
  // A special one is looked for as the file says.
  const std::string bos = R"("7":{"content":"<s>","special":true,"normalized":true})";
  const auto plain = Read(File(""))->fingerprint();
  CHECK(same->fingerprint() == plain);
  CHECK(with(bos)->fingerprint() == plain);
  // "special" stays, whatever the config says.
  const auto not_special = with(R"("7":{"content":"<s>","special":false},"8":{"content":"</s>"})");
  CHECK(not_special->fingerprint() == plain);
  CHECK(Encode(*not_special, "a<s>b", SpecialText::kAsText) == Ids{0, 1});
  CHECK(not_special->SpecialId("<s>") == 7);
  CHECK(more->fingerprint() != plain);
  CHECK(with(tool + R"(,"rstrip":true})")->fingerprint() != plain);
  CHECK(with(tool + R"(,"lstrip":true})")->fingerprint() !=
        with(tool + R"(,"rstrip":true})")->fingerprint());
}

TEST_CASE("each token stands for its bytes, special ones for none") {
  const auto tokenizer = Read(File(""));
  const auto bytes_of = [&](int32_t id) {
    std::string bytes = "+";
    tokenizer->AppendTokenBytes(id, &bytes);
    return bytes.substr(1);
  };
  CHECK(bytes_of(6) == " ab");
  CHECK(bytes_of(4) == "\xC3");
  CHECK(bytes_of(7).empty());
  CHECK(bytes_of(9) == "<tool>");
  CHECK(bytes_of(10).empty());
  CHECK(bytes_of(-1).empty());
}

TEST_CASE("a document has no special tokens behind all others, but the one that ends it") {
  CHECK(Read(File(""))->document_vocabulary_size() == 10);  // <tool> is found in each text
  const std::string specials = absl::StrReplaceAll(
      File(""), {{R"("<tool>","special":false)", R"("<tool>","special":true)"}});
  CHECK(Read(specials)->vocabulary_size() == 10);
  CHECK(Read(specials, R"({"eos_token":"</s>"})")->document_vocabulary_size() == 9);
  CHECK(Read(specials, R"({"eos_token":"<s>","bos_token":"<tool>","add_bos_token":true})")
            ->document_vocabulary_size() == 10);
}

TEST_CASE("bytes that are no UTF-8 count as U+FFFD, one for each maximal subpart") {
  const std::string json = R"({"model":{"type":"BPE","vocab":{"a":0,"\ufffd":1},"merges":[]}})";
  const auto tokenizer = Read(json);
  CHECK(Encode(*tokenizer,
               "a\xF0\x9F\xA6"
               "a") == Ids{0, 1, 0});
  CHECK(Encode(*tokenizer, "\xFF\xC0\x80") == Ids{1, 1, 1});
}

TEST_CASE("the config and the post-processor say what stands around a document and ends it") {
  const std::string post =
      R"("post_processor":{"type":"Sequence","processors":[{"type":"ByteLevel"},)"
      R"({"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>","type_id":0}},)"
      R"({"Sequence":{"id":"A","type_id":0}}],"pair":[],)"
      R"("special_tokens":{"<s>":{"id":"<s>","ids":[7],"tokens":["<s>"]}}}]})";
  const std::string tokens = R"("bos_token":"<s>","eos_token":{"content":"</s>"})";
  const auto frame = [&](const std::string& members, const std::string& config) {
    const auto tokenizer = Read(File(members), config);
    Ids ids(tokenizer->prefix().begin(), tokenizer->prefix().end());
    ids.push_back(-1);
    ids.insert(ids.end(), tokenizer->suffix().begin(), tokenizer->suffix().end());
    return ids;
  };
  CHECK(frame("", "") == Ids{-1});
  CHECK(frame(post, "") == Ids{7, -1});
  CHECK(frame(post, "{" + tokens + R"(,"add_bos_token":true,"add_eos_token":true})") ==
        Ids{7, -1, 8});
  CHECK(frame("", "{" + tokens + R"(,"add_bos_token":true})") == Ids{7, -1});
  CHECK(frame(post, "{" + tokens + R"(,"add_bos_token":false})") == Ids{-1});
  // transformers heeds the settings for few classes.
  const std::string none = R"({"tokenizer_class":"PreTrainedTokenizerFast","bos_token":"<x>",)";
  CHECK(frame("", none + R"("add_bos_token":true,"eos_token":"</s>","add_eos_token":true})") ==
        Ids{-1});
  const std::string of = R"({"tokenizer_class":"LlamaTokenizerFast",)" + tokens;
  CHECK(frame(post, of + R"(,"add_bos_token":false,"add_eos_token":true})") == Ids{-1, 8});
  CHECK(
      frame(post, "{" + tokens + R"(,"tokenizer_class":"Qwen2Tokenizer","add_bos_token":false})") ==
      Ids{7, -1});
  // The usual name tells; without one, or with several, the config.
  CHECK(Read(File(""))->end_of_document() == 8);
  CHECK(Read(File(""), R"({"eos_token":"<s>"})")->end_of_document() == 8);
  const auto with_added = [](const std::string& added) {
    return absl::StrCat(R"({"model":)", kModel, R"(,"added_tokens":[)", added, "]}");
  };
  const std::string turn = R"({"id":7,"content":"<|im_end|>","special":true})";
  const std::string two = R"(,{"id":8,"content":"<eos>","special":true},)"
                          R"({"id":9,"content":"<|endoftext|>","special":true})";
  const std::string eos = R"({"eos_token":"<|im_end|>"})";
  CHECK(Read(with_added(turn), eos)->end_of_document() == 7);
  CHECK(Read(with_added(turn + two), eos)->end_of_document() == 7);
  CHECK(Read(with_added(turn + two))->end_of_document() == std::nullopt);
  CHECK(absl::IsInvalidArgument(ErrorOf(File(""), R"({"bos_token":"<x>","add_bos_token":true})")));
  CHECK(absl::IsInvalidArgument(ErrorOf(File(""), "[]")));
}

TEST_CASE("a post-processor may not put ids around a document that no token has") {
  const absl::Status named =
      ErrorOfPart("post_processor", R"({"type":"BertProcessing","sep":["a",0],"cls":["b",7]})");
  CHECK(absl::IsInvalidArgument(named));
  CHECK(absl::StrContains(named.message(), "post_processor.cls[1]"));
  CHECK(ErrorOfPart("post_processor", R"({"type":"BertProcessing","sep":["a",0],"cls":["b",6]})")
            .ok());
  const absl::Status frame = ErrorOfPart(
      "post_processor",
      R"({"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"x"}},{"Sequence":{"id":"A"}}],)"
      R"("special_tokens":{"x":{"ids":[70]}}})");
  CHECK(absl::IsInvalidArgument(frame));
  CHECK(absl::StrContains(frame.message(), "special_tokens.x.ids[0]"));
}

TEST_CASE("marks that are newer than the library's Unicode are no marks, but to Python") {
  const auto form = [](UnicodeForm form, UnicodeMarks marks, const std::string& text) {
    const auto step = MakeUnicodeForm(form, marks);
    std::string result;
    if (step->Leaves(text)) return text;
    step->Apply(text, 0, &result);
    return result;
  };
  const auto theirs = [&](const std::string& text) {
    CHECK(form(UnicodeForm::kNfd, UnicodeMarks::kOfUnicode9, text) == text);
    return form(UnicodeForm::kNfc, UnicodeMarks::kOfUnicode9, text);
  };
  const auto python = [&](const std::string& text) {
    return form(UnicodeForm::kNfc, UnicodeMarks::kOfUnicode15, text);
  };
  // As tokenizers 0.23.3 has them.
  for (const char* const text : {"e\u1df7\u0301", "\u0639\u089b\u0650", "\u0c15\u0c4d\u0c3c"}) {
    INFO(text);
    CHECK(theirs(text) == text);
    CHECK(python(text) != text);
  }
  CHECK(theirs("e\u0301\u1df7") == "\u00e9\u1df7");
  CHECK(python("e\u1df7\u0301") == "\u00e9\u1df7");
  CHECK(theirs("e\u0327\u0301") == "\u0229\u0301");
}

TEST_CASE("fingerprints differ where ids may") {
  const std::string config = R"({"bos_token":"<s>","add_bos_token":true})";
  const auto plain = Read(File(""))->fingerprint();
  CHECK(plain == Read(File(""))->fingerprint());
  CHECK(plain != Read(File(""), config)->fingerprint());
  CHECK(plain != Read(File(R"("normalizer":{"type":"NFC"})"))->fingerprint());
}

TEST_CASE("a fingerprint is the file's and the frame's alone, so that prepared data stay of use") {
  // A repetition of the file's tokens is what save_pretrained writes into the config.
  const std::string repetition =
      R"({"added_tokens_decoder":{"7":{"content":"<s>","special":true,"normalized":false},)"
      R"("8":{"content":"</s>","special":true,"normalized":false},)"
      R"("9":{"content":"<tool>","special":false,"normalized":false}}})";
  const std::string files[] = {
      File(""), File(R"("normalizer":{"type":"NFC"})"), File(R"("normalizer":{"type":"NFKC"})"),
      File(R"("normalizer":{"type":"Sequence","normalizers":[{"type":"NFD"}]})"),
      File(R"("normalizer":{"type":"BertNormalizer"})")};
  for (const std::string& file : files) {
    INFO(file);
    Fingerprint expected;
    expected.Add("tokenizer.json");
    expected.Add(int64_t{2});
    expected.Add(file);
    for (const int64_t number : {0, 0, 8}) expected.Add(number);  // prefix, suffix, end
    CHECK(Read(file)->fingerprint() == expected.value());
    CHECK(Read(file, repetition)->fingerprint() == expected.value());
  }
}

TEST_CASE("a split pattern is in Oniguruma's words") {
  const auto ids = [](const std::string& regex, absl::string_view text) {
    return Encode(*Read(absl::StrCat(
                      R"({"model":{"type":"BPE","vocab":{"a":0,"\u00bd":1,"b":2},"merges":[]},)",
                      R"("pre_tokenizer":{"type":"Split","pattern":{"Regex":")", regex,
                      R"("},"behavior":"Removed","invert":true}})")),
                  text);
  };
  CHECK(ids(R"(\\w+)", "a\u00bdb") == Ids{0, 1, 2});
  CHECK(ids(R"([\\w]+)", "a\u00bdb") == Ids{0, 2});
  CHECK(ids("a$", "a\nba") == Ids{0, 0});
}

TEST_CASE("a feature that we lack is refused by the name that it has in the file") {
  struct Lack {
    const char *key, *value, *name;
  };
  const Lack lacks[] = {
      {"model", R"({"type":"WordPiece","vocab":{}})", "\"WordPiece\""},
      {"model", R"({"type":"WordLevel","vocab":{}})", "\"WordLevel\""},
      {"model", R"({"type":"BPE","dropout":0.1,"vocab":{},"merges":[]})", "\"dropout\""},
      {"model", R"({"type":"Unigram","vocab":[["a",0]]})", "\"unk_id\""},
      {"normalizer", R"({"type":"Sequence","normalizers":[{"type":"Soup"}]})", "\"Soup\""},
      {"normalizer", R"x({"type":"Replace","pattern":{"Regex":"(a)"},"content":"$1"})x", "$"},
      {"pre_tokenizer", R"({"type":"UnicodeScripts"})", "\"UnicodeScripts\""},
      {"pre_tokenizer", R"({"type":"Split","pattern":{"String":""},"behavior":"Removed"})",
       "empty text"},
      {"decoder", R"({"type":"WordPiece"})", "\"WordPiece\""},
      {"decoder", R"({"type":"BPEDecoder"})", "\"BPEDecoder\""},
      {"post_processor", R"({"type":"Stew"})", "\"Stew\""},
  };
  for (const Lack& lack : lacks) {
    INFO(lack.key << ": " << lack.value);
    const std::string json =
        std::string(lack.key) == "model"
            ? absl::StrCat(R"({"model":)", lack.value, "}")
            : absl::StrCat(R"({"model":)", kModel, ",\"", lack.key, "\":", lack.value, "}");
    const absl::Status error = ErrorOf(json);
    INFO(error.ToString());
    CHECK(absl::IsUnimplemented(error));
    CHECK(absl::StrContains(error.message(), lack.name));
  }
}

TEST_CASE("what is no tokenizer is refused with its place") {
  CHECK(absl::IsInvalidArgument(ErrorOf("")));
  CHECK(absl::IsInvalidArgument(ErrorOf("{\"model\":")));
  CHECK(absl::IsInvalidArgument(ErrorOf("[]")));
  CHECK(absl::IsInvalidArgument(ErrorOf("{}")));
  const char* const models[] = {
      "3",
      R"({"type":3})",
      R"({"type":"BPE","vocab":{"a":-1},"merges":[]})",
      R"({"type":"BPE","vocab":{"a":4000000000},"merges":[]})",
      R"({"type":"BPE","vocab":{"a":2000000000},"merges":[]})",
      R"({"type":"BPE","vocab":[],"merges":[]})",
      R"({"type":"BPE","vocab":{"a":0,"b":0},"merges":[]})",
      R"({"type":"BPE","vocab":{"a":0},"merges":["a b"]})",
      R"({"type":"BPE","vocab":{"a":0},"merges":["a"]})",
      R"({"type":"BPE","vocab":{"a":0},"merges":[["a"]]})",
      R"({"type":"BPE","vocab":{"a":0},"merges":{}})",
      R"({"type":"Unigram","unk_id":0,"vocab":[]})",
      R"({"type":"Unigram","unk_id":1,"vocab":[["a",0]]})",
      R"({"type":"Unigram","unk_id":0,"vocab":[["a"]]})",
  };
  for (const char* model : models) {
    INFO(model);
    CHECK(absl::IsInvalidArgument(ErrorOf(absl::StrCat(R"({"model":)", model, "}"))));
  }
  const absl::Status misspelt = ErrorOfPart(
      "pre_tokenizer",
      R"({"type":"Sequence","pretokenizers":[{"type":"Digits","individual_digits":"yes"}]})");
  CHECK(absl::IsInvalidArgument(misspelt));
  CHECK(absl::StrContains(misspelt.message(), "pre_tokenizer.pretokenizers[0].individual_digits"));
  CHECK(absl::IsInvalidArgument(
      ErrorOfPart("normalizer", R"({"type":"Precompiled","precompiled_charsmap":"////"})")));
  CHECK(absl::IsInvalidArgument(ErrorOfPart(
      "pre_tokenizer", R"x({"type":"Split","pattern":{"Regex":"("},"behavior":"Removed"})x")));
}

TEST_CASE("what is no JSON is refused with the line, and of equal keys the last counts") {
  const absl::Status broken = ErrorOf("{\n\"model\": {,}}");
  CHECK(absl::StrContains(broken.message(), "broken JSON at byte"));
  CHECK(absl::StrContains(broken.message(), "(line 2)"));
  CHECK(absl::StrContains(ErrorOf("[\"\xFF\"]").message(), "byte 3: not UTF-8"));
  CHECK(absl::StrContains(ErrorOf(R"(["\udc00"])").message(), "half a surrogate pair"));
  const auto tokenizer =
      Read(R"({"model":3,"model":{"type":"BPE","vocab":{"a":7,"b":1,"a":0,"b":1},"merges":[]}})");
  CHECK(tokenizer->vocabulary_size() == 8);
  CHECK(Encode(*tokenizer, "ab") == Ids{0, 1});
  CHECK(tokenizer->Decode({0, 7, 1}, false) == "a b");
}

#ifndef CONVENE_SANITIZER
// Of this process at its largest.
int64_t PeakKilobytes() {
  rusage usage{};
  REQUIRE(getrusage(RUSAGE_SELF, &usage) == 0);
  return usage.ru_maxrss;
}

TEST_CASE("the pieces of a long document never lie in memory together") {
  // The vocabulary has none of the letters, so that no ids take memory.
  const auto tokenizer = Read(File(
      R"("pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Digits"},)"
      R"({"type":"Split","pattern":{"Regex":"\\s+|\\S+"},"behavior":"Isolated"},{"type":"ByteLevel",)"
      R"("add_prefix_space":false,"use_regex":false}]})"));
  const std::string text(size_t{4} << 20, '#');
  std::string words = text;
  for (size_t i = 0; i < words.size(); i += 2) words[i] = '\n';
  CHECK(Encode(*tokenizer, text).empty());
  const int64_t before = PeakKilobytes();
  CHECK(Encode(*tokenizer, words).empty());
  CHECK(PeakKilobytes() - before < 8'000);
}
#endif

TEST_CASE("deep nesting is refused, not followed") {
  std::string normalizer = R"({"type":"NFC"})";
  for (int i = 0; i < 40; ++i) {
    normalizer = absl::StrCat(R"({"type":"Sequence","normalizers":[)", normalizer, "]}");
  }
  CHECK(absl::IsInvalidArgument(ErrorOfPart("normalizer", normalizer)));
  CHECK(!ErrorOf(std::string(1'000'000, '[')).ok());
}

TEST_CASE("a chain of pre-tokenizers that would fill the stack is refused") {
  const auto chain_of = [](int steps) {
    const std::vector<std::string> digits(steps, R"({"type":"Digits"})");
    return absl::StrCat(R"({"type":"Sequence","pretokenizers":[)", absl::StrJoin(digits, ","),
                        "]}");
  };
  CHECK(Encode(*Read(File(absl::StrCat(R"("pre_tokenizer":)", chain_of(64)))), "#").empty());
  const absl::Status longer = ErrorOfPart("pre_tokenizer", chain_of(10'000));
  CHECK(absl::IsUnimplemented(longer));
  CHECK(absl::StrContains(longer.message(),
                          "pretokenizers[64]: Convene does not have the feature "
                          "\"Sequence\" of more than 64 steps"));
}

TEST_CASE("a chain of replacements that would fill the memory is refused") {
  const std::string grow =
      R"({"type":"Replace","pattern":{"String":"a"},"content":"aaaaaaaaaaaaaaaaaaaa"})";
  const std::string four = absl::StrCat("[", grow, ",", grow, ",", grow, ",", grow, "]");
  CHECK(absl::IsUnimplemented(
      ErrorOfPart("normalizer", absl::StrCat(R"({"type":"Sequence","normalizers":)", four, "}"))));
  CHECK(absl::IsUnimplemented(
      ErrorOfPart("decoder", absl::StrCat(R"({"type":"Sequence","decoders":)", four, "}"))));
}

TEST_CASE("no text takes more than n log n") {
  const std::string llama =
      R"({"normalizer":{"type":"Sequence","normalizers":[{"type":"NFKC"},{"type":"Replace",)"
      R"("pattern":{"String":" "},"content":"▁"}]},"added_tokens":[{"id":0,"content":" ",)"
      R"("lstrip":true,"rstrip":true,"normalized":false}],)"
      R"("model":{"type":"BPE","vocab":{"a":0,"aa":1,"aaaa":2,"▁":3},)"
      R"("merges":["a a","aa aa"]}})";
  const auto tokenizer = Read(llama);
  const size_t length = 300'000;
  CHECK(Encode(*tokenizer, std::string(length, 'a')).size() == length / 4);
  CHECK(Encode(*tokenizer, std::string(length, ' ')).size() == 1);
  std::string marks = "▁";  // each two of them in the wrong order
  for (size_t i = 0; i < length; ++i) marks += "\xCC\x81\xCC\xA3";
  CHECK(Encode(*tokenizer, marks) == Ids{3});
}

}  // namespace
}  // namespace convene::worker
