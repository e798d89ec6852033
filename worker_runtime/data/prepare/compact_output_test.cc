// Token files with a compact vocabulary, made by PrepareOutput.
#include "worker_runtime/data/prepare/compact_output.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tools/base/files.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"
#include "worker_runtime/data/prepare/prepare.h"
#include "worker_runtime/data/store/convert.h"
#include "worker_runtime/data/store/token_file.h"
#include "worker_runtime/data/testing/token_files.h"
#include "worker_runtime/tokenizer/byte_bpe_tokenizer.h"
#include "worker_runtime/tokenizer/compact_tokenizer.h"
#include "worker_runtime/tokenizer/load_tokenizer.h"
#include "worker_runtime/tokenizer/testing/small_vocabulary.h"

namespace convene::worker {
namespace {

using convene::testing::TempDir;
using Ids = std::vector<int32_t>;

// Bytes, "he" 256, "ll" 257, "hell" 258, "o " 259, and two special tokens.
std::unique_ptr<Tokenizer> Words() {
  ByteBpeParts parts;
  parts.kind = "tiktoken";
  parts.tokens = testing::TokensOf({"he", "ll", "hell", "o "});
  parts.pattern = "[\\s\\S]+";
  parts.special_tokens = {{"<turn>", 300}, {"<end>", 301}};
  parts.end_of_document = 301;
  auto tokenizer = MakeByteBpeTokenizer(std::move(parts));
  REQUIRE_OK(tokenizer);
  return *std::move(tokenizer);
}

PrepareOptions Options(const TempDir& dir, const Tokenizer* tokenizer, const std::string& pattern) {
  PrepareOptions options;
  options.input.patterns = {dir.File(pattern)};
  options.tokenizer = tokenizer;
  options.tokenizer_path = "words";
  options.threads = 2;
  options.journal_interval = absl::ZeroDuration();
  options.compact_vocabulary = true;
  return options;
}

std::unique_ptr<TokenFile> Made(const TempDir& dir, const std::string& name,
                                const PrepareOptions& options) {
  REQUIRE_OK(PrepareOutput(options, dir.File(name), nullptr));
  auto file = TokenFile::Open(dir.File(name));
  REQUIRE_OK(file);
  return *std::move(file);
}

Ids IdsOf(const TokenSource& source) {
  Ids ids(source.token_count());
  source.Read(0, source.token_count(), ids.data());
  return ids;
}

TEST_CASE("a compact file has the tokens of its texts, numbered without gaps") {
  const TempDir dir;
  const auto words = Words();
  REQUIRE_OK(WriteFileAtomic(dir.File("a.jsonl"), "{\"text\":\"hello hell\"}\n{\"text\":\"x\"}\n"));
  const auto file = Made(dir, "a.bin", Options(dir, words.get(), "a.jsonl"));
  // 256 and 257, of which "hell" is made, stand nowhere themselves.
  CHECK(IdsOf(*file) == Ids{256, 257, 256, 258, 'x', 258});
  CHECK(file->vocabulary_size() == 259);
  CHECK(file->document_end(0) == 4);
  CHECK(file->token_bytes()[256] == 4);
  CHECK(file->token_bytes()[258] == 0);
  const TokenizerIdentity& identity = file->tokenizer();
  CHECK(identity.kind == "tiktoken");
  CHECK(identity.end_of_document == 258);
  REQUIRE(identity.compact.has_value());
  CHECK(identity.compact->whole_size == 302);
  CHECK(identity.compact->whole_fingerprint == words->fingerprint());
  CHECK(Ids(identity.compact->original_ids.begin() + 255, identity.compact->original_ids.end()) ==
        Ids{255, 258, 259, 301});
  const auto compact = MakeCompactTokenizer(Words(), identity.compact->original_ids);
  REQUIRE_OK(compact);
  CHECK((*compact)->fingerprint() == identity.fingerprint);
  CHECK((*compact)->Decode(IdsOf(*file), true) == "hello hell<end>x<end>");
  CHECK_OK(file->VerifyChecksums(nullptr));
}

TEST_CASE("converted, a compact file is the file that was made without") {
  const TempDir dir;
  const auto words = Words();
  REQUIRE_OK(WriteFileAtomic(dir.File("a.txt"), "hello llama, hell"));
  PrepareOptions options = Options(dir, words.get(), "a.txt");
  const auto compact = Made(dir, "a.bin", options);
  options.compact_vocabulary = false;
  const auto whole = Made(dir, "whole.bin", options);
  REQUIRE_OK(ConvertTokens(*compact, dir.File("b.bin"), {}));
  const auto back = TokenFile::Open(dir.File("b.bin"));
  REQUIRE_OK(back);
  CHECK((*back)->content_hash() == whole->content_hash());
  CHECK((*back)->content_hash() != compact->content_hash());
  CHECK((*back)->vocabulary_size() == 302);
  CHECK((*back)->tokenizer().fingerprint == words->fingerprint());
  CHECK((*back)->tokenizer().end_of_document == 301);
  CHECK_FALSE((*back)->tokenizer().compact.has_value());
  CHECK((*back)->token_bytes()[258] == 4);
}

TEST_CASE("another corpus takes the vocabulary of a file, and writes in it what that lacks") {
  const TempDir dir;
  const auto words = Words();
  REQUIRE_OK(WriteFileAtomic(dir.File("a.txt"), "hell"));
  REQUIRE_OK(WriteFileAtomic(dir.File("b.txt"), "hello"));
  const auto first = Made(dir, "a.bin", Options(dir, words.get(), "a.txt"));
  const auto compact = MakeCompactTokenizer(Words(), first->tokenizer().compact->original_ids);
  REQUIRE_OK(compact);
  PrepareOptions options = Options(dir, compact->get(), "b.txt");
  options.compact_vocabulary = false;
  options.compact = first->tokenizer().compact;
  const auto second = Made(dir, "b.bin", options);
  CHECK(IdsOf(*second) == Ids{256, 'o', 257});
  CHECK(second->tokenizer().fingerprint == first->tokenizer().fingerprint);
  CHECK(second->tokenizer().compact->original_ids == first->tokenizer().compact->original_ids);
  CHECK_OK(CheckSameVocabulary({first.get(), second.get()}));
  const auto other = Made(dir, "c.bin", Options(dir, words.get(), "b.txt"));
  CHECK_OK(CheckSameVocabulary({other.get()}));
  REQUIRE_OK(WriteFileAtomic(dir.File("d.txt"), "hehe"));
  const auto last = Made(dir, "d.bin", Options(dir, words.get(), "d.txt"));
  CHECK_STATUS(CheckSameVocabulary({first.get(), last.get()}),
               absl::StatusCode::kFailedPrecondition, "--vocabulary-of " + dir.File("a.bin"));
}

TEST_CASE("wherever the making of a compact file ends, the same call goes on to the same file") {
  const TempDir dir;
  const auto words = Words();
  std::string lines;
  for (int i = 0; i < 30; ++i) absl::StrAppend(&lines, "{\"text\": \"hello ", i % 7, "\"}\n");
  REQUIRE_OK(WriteFileAtomic(dir.File("a.jsonl"), lines));
  PrepareOptions options = Options(dir, words.get(), "a.jsonl");
  options.threads = 1;
  Made(dir, "a.bin", options);
  const std::string undisturbed = *ReadFile(dir.File("a.bin"));
  options.threads = 5;
  int rewrites = 0;
  for (int failing = 0;; ++failing) {
    INFO("operation " << failing);
    unlink(dir.File("a.bin").c_str());
    std::atomic<int> op = 0;
    bool failed_while_rewritten = false;
    absl::Status status;
    {
      ScopedFileFault fault([&](FileOp, const std::string& path) {
        if (op++ != failing) return 0;
        failed_while_rewritten = absl::StrContains(path, ".rewritten");
        return ENOSPC;
      });
      status = PrepareOutput(options, dir.File("a.bin"), nullptr).status();
    }
    if (op <= failing) {
      CHECK_OK(status);
      break;
    }
    REQUIRE(status.code() == absl::StatusCode::kResourceExhausted);
    rewrites += failed_while_rewritten ? 1 : 0;
    Made(dir, "a.bin", options);
    CHECK(*ReadFile(dir.File("a.bin")) == undisturbed);
    const auto names = ListDirectory(dir.path());
    REQUIRE_OK(names);
    CHECK(names->size() == 2);
  }
  CHECK(rewrites > 5);
}

TEST_CASE("the cutting is told as the last tenth of the work, and the end once") {
  const TempDir dir;
  const auto words = Words();
  REQUIRE_OK(WriteFileAtomic(dir.File("a.txt"), std::string(400'000, 'a')));
  std::vector<int64_t> told;
  REQUIRE_OK(PrepareOutput(Options(dir, words.get(), "a.txt"), dir.File("a.bin"),
                           [&](int64_t done, int64_t total) {
                             CHECK(total == 400'000);
                             told.push_back(done);
                           }));
  CHECK(std::is_sorted(told.begin(), told.end()));
  // 400,001 tokens are seven blocks.
  CHECK(std::count_if(told.begin(), told.end(),
                      [](int64_t done) { return done >= 360'000 && done < 400'000; }) >= 14);
  CHECK(std::count(told.begin(), told.end(), 400'000) == 1);
  CHECK(told.back() == 400'000);
}

TEST_CASE("what counts in the loss stays with its token") {
  const TempDir dir;
  const auto words = Words();
  testing::WriteTokenFile(dir.File("a.bin"), {.vocabulary_size = 302, .has_counted = true},
                          {{{300, 258, 301}, {0, 1, 1}}, {}, {{257}, {0}}});
  const auto whole = TokenFile::Open(dir.File("a.bin"));
  REQUIRE_OK(whole);
  TokenFileInfo info = {
      .vocabulary_size = 302, .token_bytes = std::vector<uint16_t>(302, 1), .has_counted = true};
  REQUIRE_OK(WriteCompact(**whole, *words, info, dir.File("b.bin"), nullptr));
  const auto compact = TokenFile::Open(dir.File("b.bin"));
  REQUIRE_OK(compact);
  CHECK(testing::DocumentsOf(**compact) ==
        std::vector<testing::TestDocument>{{{258, 257, 259}, {0, 1, 1}}, {}, {{256}, {0}}});
}

TEST_CASE("what cannot be cut is refused before work begins") {
  const TempDir dir;
  REQUIRE_OK(WriteFileAtomic(dir.File("a.txt"), "ab"));
  REQUIRE_OK(WriteFileAtomic(dir.File("tokenizer.json"), R"({
      "version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": null,
      "post_processor": null, "decoder": null,
      "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "\u00e9": 2}, "merges": []}})"));
  const auto tokenizer = LoadTokenizer(dir.path());
  REQUIRE_OK(tokenizer);
  PrepareOptions options = Options(dir, tokenizer->get(), "a.txt");
  options.append_end_of_document = false;
  CHECK_STATUS(PrepareOutput(options, dir.File("a.bin"), nullptr), absl::StatusCode::kUnimplemented,
               "cannot have a compact vocabulary");
  testing::WriteTokenFile(dir.File("b.bin"), 400, {399});
  const auto other = TokenFile::Open(dir.File("b.bin"));
  REQUIRE_OK(other);
  CHECK_STATUS(
      WriteCompact(**other, *Words(), {.vocabulary_size = 302}, dir.File("c.bin"), nullptr),
      absl::StatusCode::kDataLoss, "token 399 behind token 0 is outside");
  CHECK(access(dir.File("c.bin").c_str(), F_OK) != 0);
}

}  // namespace
}  // namespace convene::worker
