#include "worker_runtime/data/store/convert.h"

#include <unistd.h>

#include <cerrno>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/base/files.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"
#include "worker_runtime/data/store/describe.h"
#include "worker_runtime/data/store/token_file.h"
#include "worker_runtime/data/testing/token_files.h"
#include "worker_runtime/tokenizer/fingerprint.h"

namespace convene::worker {
namespace {

using convene::testing::TempDir;
using testing::DocumentsOf;
using testing::TestDocument;
using testing::WriteTokenFile;
using Documents = std::vector<TestDocument>;

Documents RandomDocuments(int vocabulary_size, bool masked) {
  std::mt19937 random(vocabulary_size);
  Documents documents(300);
  for (TestDocument& document : documents) {
    document.ids.resize(random() % 900);
    for (int32_t& id : document.ids) id = static_cast<int32_t>(random() % vocabulary_size);
    if (masked) {
      for (size_t i = 0; i < document.ids.size(); ++i) document.counted.push_back(random() % 2);
    }
  }
  documents.back().ids.push_back(vocabulary_size - 1);
  if (masked) documents.back().counted.push_back(1);
  return documents;
}

std::unique_ptr<TokenSource> Open(const std::string& path) {
  auto source = OpenTokenSource(path);
  REQUIRE_OK(source);
  return *std::move(source);
}

// A file of ours with these documents.
std::unique_ptr<TokenSource> Ours(const std::string& path, int vocabulary_size,
                                  const Documents& documents, bool masked = false) {
  TokenFileInfo info;
  info.vocabulary_size = vocabulary_size;
  info.has_counted = masked;
  info.tokenizer.path = "model|x";
  WriteTokenFile(path, info, documents);
  return Open(path);
}

std::vector<int32_t> Flat(const TokenSource& source) {
  std::vector<int32_t> ids(source.token_count());
  source.Read(0, source.token_count(), ids.data());
  return ids;
}

TEST_CASE("tokens go to each format and back, with their documents") {
  const TempDir dir;
  for (const int vocabulary : {200, 50257, 65536, 65537, 128256}) {
    INFO("vocabulary " << vocabulary);
    const Documents documents = RandomDocuments(vocabulary, /*masked=*/false);
    const auto ours = Ours(dir.File("ours"), vocabulary, documents);
    REQUIRE_OK(ConvertTokens(*ours, dir.File("m"), {.format = TokenFormat::kMegatron}));
    REQUIRE_OK(ConvertTokens(*ours, dir.File("n.ds"), {.format = TokenFormat::kNanotron}));
    REQUIRE_OK(ConvertTokens(*ours, dir.File("l.bin"), {.format = TokenFormat::kLlmc}));
    CHECK(DocumentsOf(*Open(dir.File("m.bin"))) == documents);
    CHECK(DocumentsOf(*Open(dir.File("n.ds"))) == documents);
    CHECK(Open(dir.File("n.ds"))->tokenizer().path == "model|x");
    CHECK(Flat(*Open(dir.File("l.bin"))) == Flat(*ours));
    CHECK(Open(dir.File("l.bin"))->kind() ==
          (vocabulary <= 65536 ? "llm.c .bin (GPT-2)" : "llm.c .bin (Llama 3)"));
    const int64_t width = vocabulary < 65500 ? 2 : 4;
    CHECK(static_cast<int64_t>(ReadFile(dir.File("m.bin"))->size()) == width * ours->token_count());
    for (const char* name : {"m", "n.ds", "l.bin"}) {
      REQUIRE_OK(ConvertTokens(*Open(dir.File(name)), dir.File("back"), {}));
      const auto back = Open(dir.File("back"));
      CHECK(Flat(*back) == Flat(*ours));
      CHECK(back->vocabulary_size() == vocabulary);  // the largest id is there
      CHECK(back->content_hash() == ours->content_hash());
      if (name[0] != 'l') CHECK(DocumentsOf(*back) == documents);
      CHECK_OK(VerifyTokens(*back, nullptr));
    }
  }
}

TEST_CASE("the bytes are those that the other programs write") {
  const TempDir dir;
  const std::string golden = "worker_runtime/data/store/golden/";  // make_foreign_files.py
  for (const std::string bits : {"16", "32"}) {
    const auto nanotron = Open(absl::StrCat(golden, "nanotron", bits, ".ds"));
    REQUIRE_OK(ConvertTokens(*nanotron, dir.File("n.ds"), {.format = TokenFormat::kNanotron}));
    for (const char* suffix : {"", ".index", ".loss"}) {
      CHECK(*ReadFile(absl::StrCat(dir.File("n.ds"), suffix)) ==
            *ReadFile(absl::StrCat(golden, "nanotron", bits, ".ds", suffix)));
    }
    CHECK_THAT(*ReadFile(dir.File("n.ds.metadata")),
               Catch::StartsWith(absl::StrCat("gpt2|", bits == "16" ? 2 : 4, "\n6\n")));
    REQUIRE_OK(ConvertTokens(*nanotron, dir.File("m"),
                             {.format = TokenFormat::kMegatron, .drop_counted = true}));
    for (const char* suffix : {".bin", ".idx"}) {
      CHECK(*ReadFile(absl::StrCat(dir.File("m"), suffix)) ==
            *ReadFile(absl::StrCat(golden, "megatron", bits, suffix)));
    }
  }
}

TEST_CASE("what counts is kept where the format can say it, and not lost in silence") {
  const TempDir dir;
  const Documents documents = RandomDocuments(1000, /*masked=*/true);
  const auto ours = Ours(dir.File("ours"), 1000, documents, /*masked=*/true);
  REQUIRE_OK(ConvertTokens(*ours, dir.File("n.ds"), {.format = TokenFormat::kNanotron}));
  CHECK(DocumentsOf(*Open(dir.File("n.ds"))) == documents);
  REQUIRE_OK(ConvertTokens(*Open(dir.File("n.ds")), dir.File("back"), {}));
  CHECK(DocumentsOf(*Open(dir.File("back"))) == documents);
  for (const TokenFormat format : {TokenFormat::kMegatron, TokenFormat::kLlmc}) {
    CHECK_STATUS(ConvertTokens(*ours, dir.File("x"), {.format = format}),
                 absl::StatusCode::kInvalidArgument, "says which tokens count in the loss");
    CHECK_OK(ConvertTokens(*ours, dir.File("x"), {.format = format, .drop_counted = true}));
  }
  // An old mask must not stay beside new tokens.
  const auto plain = Ours(dir.File("plain"), 1000, {{{1, 2, 3}, {}}});
  REQUIRE_OK(ConvertTokens(*plain, dir.File("n.ds"), {.format = TokenFormat::kNanotron}));
  CHECK_FALSE(Open(dir.File("n.ds"))->has_counted());
}

TEST_CASE("of a compact vocabulary each format gets the tokenizer's own ids") {
  const TempDir dir;
  TokenFileInfo info = {.vocabulary_size = 3, .token_bytes = {1, 5, 0}};
  info.tokenizer = {"tiktoken", "/llama", CompactFingerprint(6, {7, 8, 70000}), 2,
                    CompactVocabulary{{7, 8, 70000}, 128256, 6}};
  WriteTokenFile(dir.File("compact"), info, {{{1, 0, 2}, {}}, {{1, 2}, {}}});
  const auto compact = Open(dir.File("compact"));
  const Documents documents = {{{8, 7, 70000}, {}}, {{8, 70000}, {}}};
  REQUIRE_OK(ConvertTokens(*compact, dir.File("m"), {.format = TokenFormat::kMegatron}));
  REQUIRE_OK(ConvertTokens(*compact, dir.File("n.ds"), {.format = TokenFormat::kNanotron}));
  REQUIRE_OK(ConvertTokens(*compact, dir.File("l.bin"), {.format = TokenFormat::kLlmc}));
  REQUIRE_OK(ConvertTokens(*compact, dir.File("c"), {.format = TokenFormat::kConvene}));
  CHECK(DocumentsOf(*Open(dir.File("m.bin"))) == documents);
  CHECK(DocumentsOf(*Open(dir.File("n.ds"))) == documents);
  CHECK(Flat(*Open(dir.File("l.bin"))) == std::vector<int32_t>{8, 7, 70000, 8, 70000});
  const auto whole = Open(dir.File("c"));
  CHECK(DocumentsOf(*whole) == documents);
  CHECK(whole->vocabulary_size() == 128256);
  CHECK(whole->tokenizer().fingerprint == 6);
  CHECK(whole->tokenizer().end_of_document == 70000);
  CHECK(whole->token_bytes()[8] == 5);
}

TEST_CASE("ids that the vocabulary does not have are refused") {
  const TempDir dir;
  const auto ours = Ours(dir.File("ours"), 1000, {{{1, 999}, {}}});
  REQUIRE_OK(ConvertTokens(*ours, dir.File("m"), {.format = TokenFormat::kMegatron}));
  CHECK_STATUS(ConvertTokens(*Open(dir.File("m")), dir.File("x"), {.vocabulary_size = 999}),
               absl::StatusCode::kInvalidArgument, "has the id 999, outside the vocabulary of 999");
  REQUIRE_OK(ConvertTokens(*Open(dir.File("m")), dir.File("x"), {.vocabulary_size = 50257}));
  CHECK(Open(dir.File("x"))->vocabulary_size() == 50257);
  CHECK_STATUS(ConvertTokens(*ours, dir.File("n"), {.format = TokenFormat::kNanotron}),
               absl::StatusCode::kInvalidArgument, "must end in .ds");
}

TEST_CASE("whichever operation fails, nothing new has a name, and temporary files are gone") {
  const TempDir dir;
  const auto ours = Ours(dir.File("ours"), 1000, {{{1, 999}, {}}});
  for (const TokenFormat format : {TokenFormat::kConvene, TokenFormat::kMegatron,
                                   TokenFormat::kLlmc, TokenFormat::kNanotron}) {
    for (int failing = 0;; ++failing) {
      INFO("format " << static_cast<int>(format) << ", operation " << failing);
      const std::string name = "new" + std::string(format == TokenFormat::kNanotron ? ".ds" : "");
      int op = 0;
      std::string failed_on;
      absl::Status status;
      {
        ScopedFileFault fault([&](FileOp, const std::string& path) {
          if (op++ != failing) return 0;
          failed_on = path;
          return ENOSPC;
        });
        status = ConvertTokens(*ours, dir.File(name), {.format = format});
      }
      if (op <= failing) {
        CHECK_OK(status);
        CHECK(failing > 3);
        break;
      }
      CHECK(status.code() == absl::StatusCode::kResourceExhausted);
      // Only the sync of the folder comes after the last name is given. Of several files none is
      // left with a name before.
      if (failed_on != dir.path()) CHECK(ListDirectory(dir.path())->size() == 1);
      CHECK(TokenFormatOf(dir.File(name)).has_value() == (failed_on == dir.path()));
      const std::vector<std::string> names = *ListDirectory(dir.path());
      for (const std::string& left : names) {
        CHECK(left.find(".partial") == std::string::npos);
        if (left != "ours") REQUIRE_OK(RemoveTree(dir.File(left)));
      }
    }
    const std::vector<std::string> names = *ListDirectory(dir.path());
    for (const std::string& left : names) {
      if (left != "ours") REQUIRE_OK(RemoveTree(dir.File(left)));
    }
  }
}

TEST_CASE("a folder of the output's name is left alone") {
  const TempDir dir;
  const auto ours = Ours(dir.File("ours"), 1000, {{{1, 999}, {}}});
  REQUIRE_OK(MakeDirectories(dir.File("n.ds/within")));
  REQUIRE_OK(MakeDirectories(dir.File("o/within")));
  CHECK(!ConvertTokens(*ours, dir.File("n.ds"), {.format = TokenFormat::kNanotron}).ok());
  CHECK(!ConvertTokens(*ours, dir.File("o"), {}).ok());
  CHECK(*ListDirectory(dir.path()) == std::vector<std::string>{"n.ds", "o", "ours"});
  CHECK(ListDirectory(dir.File("n.ds"))->size() == 1);
}

TEST_CASE("llm.c's tokens get no name by which they would be taken for nanotron's") {
  const TempDir dir;
  const auto ours = Ours(dir.File("ours"), 1000, {{{1, 999}, {}}});
  CHECK_STATUS(ConvertTokens(*ours, dir.File("n.ds"), {.format = TokenFormat::kLlmc}),
               absl::StatusCode::kInvalidArgument, "n.ds");
  CHECK(*ListDirectory(dir.path()) == std::vector<std::string>{"ours"});
}

TEST_CASE("llm.c's tokens get no name by which they would be taken for Megatron's") {
  const TempDir dir;
  const auto ours = Ours(dir.File("ours"), 1000, {{{1, 999}, {}}});
  const auto other = Ours(dir.File("other"), 1000, {{{1, 2, 3}, {}}});
  REQUIRE_OK(ConvertTokens(*other, dir.File("web"), {.format = TokenFormat::kMegatron}));
  const std::string tokens = *ReadFile(dir.File("web.bin"));
  const std::string index = *ReadFile(dir.File("web.idx"));
  for (const std::string name : {"web.bin", "web.idx"}) {
    CHECK_STATUS(ConvertTokens(*ours, dir.File(name), {.format = TokenFormat::kLlmc}),
                 absl::StatusCode::kInvalidArgument, dir.File("web.idx") + " is Megatron's");
  }
  CHECK(*ReadFile(dir.File("web.bin")) == tokens);
  CHECK(*ReadFile(dir.File("web.idx")) == index);
  // The index may wait for its tokens.
  REQUIRE_OK(RemoveTree(dir.File("web.bin")));
  CHECK_STATUS(ConvertTokens(*ours, dir.File("web.bin"), {.format = TokenFormat::kLlmc}),
               absl::StatusCode::kInvalidArgument, dir.File("web.idx") + " is Megatron's");
  CHECK(*ListDirectory(dir.path()) == std::vector<std::string>{"other", "ours", "web.idx"});
}

TEST_CASE("a file is described and its bytes are checked") {
  const TempDir dir;
  TokenFileInfo info;
  info.vocabulary_size = 10;
  info.has_counted = true;
  info.token_bytes = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  WriteTokenFile(dir.File("t"), info, {{{1, 2, 3}, {0, 1, 1}}, {{9}, {1}}});
  const auto source = Open(dir.File("t"));
  const TokenDescription description = Describe(*source);
  CHECK(description.kind == "Convene token file");
  CHECK(description.tokens == 4);
  CHECK(description.documents == 2);
  CHECK(description.longest_document == 3);
  CHECK(description.shortest_document == 1);
  CHECK(description.vocabulary_size == 10);
  CHECK(description.has_counted);
  CHECK(description.file_bytes == static_cast<int64_t>(ReadFile(dir.File("t"))->size()));
  const DocumentSample sample = SampleOf(*source, 0, 2);
  CHECK(sample.document_tokens == 3);
  CHECK(sample.ids == std::vector<int32_t>{1, 2});
  CHECK(sample.counted == std::vector<uint8_t>{0, 1});
  std::vector<int64_t> done;  // the checksums first, then the ids
  const auto report = VerifyTokens(*source, [&](int64_t tokens, int64_t total) {
    done.push_back(tokens);
    CHECK(total == 8);
  });
  REQUIRE_OK(report);
  CHECK(report->largest_id == 9);
  CHECK(report->counted == 3);
  CHECK(report->text_bytes == 2 + 3 + 4 + 10);
  CHECK(done == std::vector<int64_t>{4, 8});
}

TEST_CASE("a conversion never replaces its own input") {
  const TempDir dir;
  const auto ours = Ours(dir.File("a.bin"), 1000, {{{1, 2, 3}, {}}});
  const std::string bytes = *ReadFile(dir.File("a.bin"));
  const auto refused = [&](const TokenSource& source, const std::string& path, TokenFormat format) {
    CHECK_STATUS(ConvertTokens(source, path, {.format = format}),
                 absl::StatusCode::kInvalidArgument, "is a file of the input");
  };
  refused(*ours, dir.File("a"), TokenFormat::kMegatron);
  refused(*ours, dir.path() + "/./a.bin", TokenFormat::kLlmc);
  refused(*ours, dir.File("a.bin"), TokenFormat::kConvene);
  CHECK(*ReadFile(dir.File("a.bin")) == bytes);
  CHECK(ListDirectory(dir.path())->size() == 1);

  REQUIRE_OK(ConvertTokens(*ours, dir.File("m"), {.format = TokenFormat::kMegatron}));
  refused(*Open(dir.File("m")), dir.File("m.idx"), TokenFormat::kLlmc);
  REQUIRE_OK(ConvertTokens(*ours, dir.File("n.ds"), {.format = TokenFormat::kNanotron}));
  refused(*Open(dir.File("n.ds")), dir.File("n.ds.index"), TokenFormat::kConvene);
}

// Sets the byte behind the first of the tokens 1, 2, 3.
void Damage(const std::string& path, char value) {
  std::string bytes = *ReadFile(path);
  const size_t tokens = bytes.find(std::string("\1\0\2\0\3\0", 6));
  REQUIRE(tokens != std::string::npos);
  bytes[tokens + 1] = value;
  REQUIRE_OK(WriteFileAtomic(path, bytes));
}

TEST_CASE("verify names the first thing that is wrong") {
  const TempDir dir;
  Ours(dir.File("t"), 1000, {{{1, 2, 3}, {}}});
  Damage(dir.File("t"), 5);  // 1281, which is outside the vocabulary too
  CHECK_STATUS(VerifyTokens(*Open(dir.File("t")), nullptr), absl::StatusCode::kDataLoss,
               "the tokens differ from their checksum");
}

TEST_CASE("a damaged file becomes no whole one") {
  const TempDir dir;
  Ours(dir.File("t"), 1000, {{{1, 2, 3}, {}}});
  Damage(dir.File("t"), 2);  // 513, an id like any other
  for (const TokenFormat format : {TokenFormat::kConvene, TokenFormat::kLlmc}) {
    CHECK_STATUS(ConvertTokens(*Open(dir.File("t")), dir.File("new"), {.format = format}),
                 absl::StatusCode::kDataLoss, "the tokens differ from their checksum");
  }
  CHECK(*ListDirectory(dir.path()) == std::vector<std::string>{"t"});
}

TEST_CASE("a conversion tells how far it has come, with its comparing of checksums") {
  const TempDir dir;
  const auto ours = Ours(dir.File("ours"), 1000, {{{1, 2, 3, 4}, {}}});
  std::vector<int64_t> done;
  const auto convert = [&](const TokenSource& source, int64_t all) {
    done.clear();
    ConvertOptions options = {.format = TokenFormat::kLlmc};
    options.progress = [&](int64_t tokens, int64_t total) {
      done.push_back(tokens);
      CHECK(total == all);
    };
    REQUIRE_OK(ConvertTokens(source, dir.File("new.bin"), options));
  };
  convert(*ours, 12);
  CHECK(done == std::vector<int64_t>{4, 8, 12});
  REQUIRE_OK(ConvertTokens(*ours, dir.File("l.bin"), {.format = TokenFormat::kLlmc}));
  convert(*Open(dir.File("l.bin")), 8);  // has no checksums
  CHECK(done == std::vector<int64_t>{4, 8});
}

TEST_CASE("the remains of a killed conversion go with the next one, and one at a time is at work") {
  const TempDir dir;
  const auto ours = Ours(dir.File("ours"), 1000, {{{1, 2, 3}, {}}});
  for (const TokenFormat format : {TokenFormat::kConvene, TokenFormat::kNanotron}) {
    const auto convert = [&] {
      return ConvertTokens(*ours, dir.File("new.ds"), {.format = format});
    };
    std::vector<std::string> at_work;  // the names when all is written
    {
      ScopedFileFault fault([&](FileOp op, const std::string&) {
        if (op != FileOp::kRename || !at_work.empty()) return 0;
        at_work = *ListDirectory(dir.path());
        CHECK_STATUS(convert(), absl::StatusCode::kFailedPrecondition, "another process is making");
        CHECK(*ListDirectory(dir.path()) == at_work);
        return EIO;
      });
      CHECK_FALSE(convert().ok());
    }
    CHECK(at_work.size() > 2);
    CHECK(*ListDirectory(dir.path()) == std::vector<std::string>{"ours"});
    for (const std::string& name : at_work) {
      if (name != "ours") REQUIRE_OK(WriteFileAtomic(dir.File(name), "left by a kill"));
    }
    REQUIRE_OK(convert());
    const std::vector<std::string> names = *ListDirectory(dir.path());
    for (const std::string& name : names) {
      if (name == "ours") continue;
      CHECK(*ReadFile(dir.File(name)) != "left by a kill");
      REQUIRE_OK(RemoveTree(dir.File(name)));
    }
  }
}

TEST_CASE("an output that is a link is written where the link leads") {
  const TempDir dir;
  const auto ours = Ours(dir.File("ours"), 1000, {{{1, 2, 3}, {}}});
  REQUIRE_OK(MakeDirectories(dir.File("disk")));
  REQUIRE_OK(WriteFileAtomic(dir.File("disk/old"), "old"));
  for (const char* const target : {"disk/old", "disk/new"}) {
    REQUIRE(symlink(target, dir.File("link").c_str()) == 0);
    REQUIRE_OK(ConvertTokens(*ours, dir.File("link"), {}));
    CHECK(Flat(*Open(dir.File(target))) == Flat(*ours));
    CHECK(unlink(dir.File("link").c_str()) == 0);
    CHECK(ListDirectory(dir.path())->size() == 2);
  }
  CHECK(ListDirectory(dir.File("disk"))->size() == 2);
}

}  // namespace
}  // namespace convene::worker
