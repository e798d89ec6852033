#include "worker_runtime/data/store/token_file.h"

#include <cerrno>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/base/files.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"
#include "worker_runtime/tokenizer/fingerprint.h"

namespace convene::worker {
namespace {

using convene::testing::TempDir;
using Tokens = std::vector<int32_t>;

struct Document {
  Tokens ids;
  std::vector<uint8_t> counted;  // empty: all
};

TokenFileInfo Info(int vocabulary_size, bool has_counted = false) {
  TokenFileInfo info;
  info.vocabulary_size = vocabulary_size;
  info.has_counted = has_counted;
  info.source_key = 42;
  return info;
}

void Write(const std::string& path, const TokenFileInfo& info,
           const std::vector<Document>& documents) {
  auto writer = TokenFileWriter::Create(path, info);
  REQUIRE_OK(writer);
  for (const Document& document : documents) {
    REQUIRE_OK(writer->Append(document.ids, document.counted));
    REQUIRE_OK(writer->EndDocument());
  }
  REQUIRE_OK(writer->Finish());
}

Tokens ReadAll(const TokenSource& file) {
  Tokens tokens(file.token_count());
  file.Read(0, file.token_count(), tokens.data());
  return tokens;
}

std::vector<int64_t> Ends(const TokenSource& file) {
  std::vector<int64_t> ends;
  for (int64_t i = 0; i < file.document_count(); ++i) ends.push_back(file.document_end(i));
  return ends;
}

std::vector<uint8_t> Counted(const TokenSource& file, int64_t first, int64_t count) {
  std::vector<uint8_t> counted(count, 7);
  file.ReadCounted(first, count, counted.data());
  return counted;
}

TEST_CASE("tokens of one, two and four bytes are read back, with their documents") {
  const TempDir dir;
  const std::string path = dir.File("t");
  for (const int vocabulary : {1, 256, 257, 65536, 65537, 200000}) {
    INFO("vocabulary " << vocabulary);
    Write(path, Info(vocabulary), {{{0, vocabulary - 1}, {}}, {{}, {}}, {{vocabulary / 2}, {}}});
    const auto file = TokenFile::Open(path);
    REQUIRE_OK(file);
    CHECK(ReadAll(**file) == Tokens{0, vocabulary - 1, vocabulary / 2});
    CHECK(Ends(**file) == std::vector<int64_t>{2, 2, 3});
    CHECK((*file)->vocabulary_size() == vocabulary);
    CHECK((*file)->source_key() == 42);
    CHECK_FALSE((*file)->has_counted());
    CHECK(Counted(**file, 1, 2) == std::vector<uint8_t>{1, 1});
    CHECK_OK((*file)->VerifyChecksums(nullptr));
  }
}

TEST_CASE("how the ids were made is read back") {
  const TempDir dir;
  TokenFileInfo info = Info(3);
  info.tokenizer = {"tiktoken", "/models/llama/tokenizer.model", 0xfeedface12345678, 2};
  info.token_bytes = {1, 65535, 0};
  Write(dir.File("t"), info, {{{1, 2}, {}}});
  const auto file = TokenFile::Open(dir.File("t"));
  REQUIRE_OK(file);
  CHECK((*file)->tokenizer().kind == "tiktoken");
  CHECK((*file)->tokenizer().path == "/models/llama/tokenizer.model");
  CHECK((*file)->tokenizer().fingerprint == 0xfeedface12345678);
  CHECK((*file)->tokenizer().end_of_document == 2);
  CHECK(std::vector<uint16_t>((*file)->token_bytes().begin(), (*file)->token_bytes().end()) ==
        info.token_bytes);
  info.token_bytes.pop_back();
  CHECK_STATUS(TokenFileWriter::Create(dir.File("t"), info), absl::StatusCode::kInvalidArgument,
               "a vocabulary of 3 ids, with the bytes of 2");
}

TEST_CASE("a compact vocabulary is read back, and a wrong one refused") {
  const TempDir dir;
  TokenFileInfo info = Info(3);
  info.tokenizer = {"tiktoken", "/llama", 0, 2};
  uint64_t fingerprint_off = 0;
  const auto open_with = [&](const Tokens& ids, int whole_size) {
    info.tokenizer.compact = CompactVocabulary{ids, whole_size, 6};
    info.tokenizer.fingerprint = CompactFingerprint(6, ids) + fingerprint_off;
    Write(dir.File("t"), info, {{{1, 2}, {}}});
    return TokenFile::Open(dir.File("t"));
  };
  const auto file = open_with({7, 8, 127}, 128);
  REQUIRE_OK(file);
  CHECK((*file)->tokenizer().path == "/llama");
  const std::optional<CompactVocabulary>& compact = (*file)->tokenizer().compact;
  REQUIRE(compact.has_value());
  CHECK(compact->original_ids == Tokens{7, 8, 127});
  CHECK(compact->whole_size == 128);
  CHECK(compact->whole_fingerprint == 6);
  CHECK_STATUS(open_with({7, 127}, 128), absl::StatusCode::kDataLoss, "which should be equal");
  CHECK_STATUS(open_with({}, 128), absl::StatusCode::kDataLoss, "another length than it says");
  for (const Tokens& ids :
       {Tokens{7, 8, 128}, Tokens{7, 7, 8}, Tokens{8, 7, 9}, Tokens{-1, 7, 8}}) {
    CHECK_STATUS(open_with(ids, 128), absl::StatusCode::kDataLoss, "no ascending part of 128 ids");
  }
  fingerprint_off = 1;
  CHECK_STATUS(open_with({7, 8, 127}, 128), absl::StatusCode::kDataLoss,
               "the fingerprint is not that of the compact vocabulary");
}

TEST_CASE("a compact vocabulary makes another format version, which older programs name") {
  const TempDir dir;
  TokenFileInfo info = Info(3);
  const auto version = [&] { return ReadFile(dir.File("t"))->at(8); };
  Write(dir.File("t"), info, {{{1, 2}, {}}});
  CHECK(version() == 3);
  info.tokenizer.compact = CompactVocabulary{{7, 8, 127}, 128, 6};
  info.tokenizer.fingerprint = CompactFingerprint(6, {7, 8, 127});
  Write(dir.File("t"), info, {{{1, 2}, {}}});
  CHECK(version() == 4);
  auto writer = TokenFileWriter::Create(dir.File("t"), info);
  REQUIRE_OK(writer);
  const auto state = writer->Sync();
  REQUIRE_OK(state);
  writer = TokenFileWriter::Resume(dir.File("t"), *state);
  REQUIRE_OK(writer);
  REQUIRE_OK(writer->Finish());
  CHECK(version() == 4);
  CHECK_OK(TokenFile::Open(dir.File("t")).status());
  std::string later = *ReadFile(dir.File("t"));
  later[8] = 5;
  REQUIRE_OK(WriteFileAtomic(dir.File("t"), later));
  CHECK_STATUS(TokenFile::Open(dir.File("t")), absl::StatusCode::kFailedPrecondition,
               "format version 5; this program reads 3 and 4");
}

TEST_CASE("the bits of what counts are read back from any place") {
  const TempDir dir;
  std::mt19937 random(5);
  std::vector<Document> documents;
  std::vector<uint8_t> expected;
  for (int i = 0; i < 40; ++i) {
    Document document;
    for (uint32_t k = random() % 12; k > 0; --k) {
      document.ids.push_back(static_cast<int32_t>(random() % 300));
      document.counted.push_back(random() % 2);
    }
    if (i % 5 == 4) document.counted.clear();  // all of its tokens count
    documents.push_back(document);
    for (size_t k = 0; k < document.ids.size(); ++k) {
      expected.push_back(document.counted.empty() ? 1 : document.counted[k]);
    }
  }
  Write(dir.File("t"), Info(300, /*has_counted=*/true), documents);
  const auto file = TokenFile::Open(dir.File("t"));
  REQUIRE_OK(file);
  REQUIRE((*file)->has_counted());
  const int64_t count = (*file)->token_count();
  for (int64_t first = 0; first <= count; first += 3) {
    CHECK(Counted(**file, first, count - first) ==
          std::vector<uint8_t>(expected.begin() + first, expected.end()));
  }
}

TEST_CASE("equal tokens have equal hashes; what counts belongs to them") {
  const TempDir dir;
  const auto hash_of = [&](const TokenFileInfo& info, const std::vector<Document>& documents) {
    Write(dir.File("t"), info, documents);
    return (*TokenFile::Open(dir.File("t")))->content_hash();
  };
  const uint64_t hash = hash_of(Info(256), {{{1, 2, 3}, {}}});
  CHECK(hash == hash_of(Info(256), {{{1}, {}}, {{2, 3}, {}}}));
  CHECK(hash != hash_of(Info(256), {{{1, 2, 4}, {}}}));
  // Checkpoints of this program's second version recognise the bytes 1, 2, 3 by this number.
  CHECK(hash == 0xebce9b7632ae733b);
  const uint64_t masked = hash_of(Info(256, true), {{{1, 2, 3}, {0, 1, 1}}});
  CHECK(masked != hash);
  CHECK(masked != hash_of(Info(256, true), {{{1, 2, 3}, {1, 0, 1}}}));
}

TEST_CASE("an id outside the vocabulary is refused with its document") {
  const TempDir dir;
  auto writer = TokenFileWriter::Create(dir.File("t"), Info(300));
  REQUIRE_OK(writer);
  REQUIRE_OK(writer->Append({299}, {}));
  REQUIRE_OK(writer->EndDocument());
  CHECK_STATUS(writer->Append({1, 300}, {}), absl::StatusCode::kInvalidArgument,
               "token 300 in document 1 is outside the vocabulary of 300");
  CHECK_STATUS(writer->Append({-1}, {}), absl::StatusCode::kInvalidArgument, "token -1");
}

TEST_CASE("a file that is not finished is no token file, and leaves nothing when discarded") {
  const TempDir dir;
  const std::string path = dir.File("t");
  auto writer = TokenFileWriter::Create(path, Info(300, true));
  REQUIRE_OK(writer);
  REQUIRE_OK(writer->Append({1, 2, 3}, {}));
  REQUIRE_OK(writer->Sync());
  CHECK_STATUS(TokenFile::Open(path), absl::StatusCode::kDataLoss, "never finished");
  TokenFileWriter::Discard(path);
  CHECK(ListDirectory(dir.path())->empty());
}

// 300,000 tokens in documents of any length, so that buffers are flushed on the way.
std::vector<Document> ManyDocuments() {
  std::mt19937 random(11);
  std::vector<Document> documents(1500);
  for (Document& document : documents) {
    document.ids.resize(random() % 400);
    document.counted.resize(document.ids.size());
    for (int32_t& id : document.ids) id = static_cast<int32_t>(random() % 100000);
    for (uint8_t& bit : document.counted) bit = random() % 2;
  }
  return documents;
}

TEST_CASE("killed anywhere and gone on from the last state, the bytes are the same") {
  const TempDir dir;
  const std::vector<Document> documents = ManyDocuments();
  TokenFileInfo info = Info(100000, true);
  info.tokenizer.kind = "byte";
  Write(dir.File("whole"), info, documents);
  const std::string whole = *ReadFile(dir.File("whole"));
  const std::string path = dir.File("t");
  std::mt19937 random(3);
  for (int run = 0; run < 3; ++run) {
    auto writer = TokenFileWriter::Create(path, info);
    REQUIRE_OK(writer);
    auto state = writer->Sync();
    REQUIRE_OK(state);
    size_t synced = 0;  // documents before the state
    size_t next = 0;
    int kills = 0;
    while (next < documents.size()) {
      const bool within = random() % 2 == 0;
      const Document& document = documents[next];
      const size_t half = within ? document.ids.size() / 2 : document.ids.size();
      const absl::Span<const int32_t> ids(document.ids);
      const absl::Span<const uint8_t> counted(document.counted);
      REQUIRE_OK(writer->Append(ids.subspan(0, half), counted.subspan(0, half)));
      if (kills < 10 && random() % 300 == 0) {  // what was not synced may be there or not
        ++kills;
        if (random() % 2 == 0) REQUIRE_OK(writer->Sync());
        if (random() % 4 == 0) {
          REQUIRE_OK(writer->Append({1, 2, 3}, {}));
          REQUIRE_OK(writer->Sync());
        }
        auto resumed = TokenFileWriter::Resume(path, *state);
        REQUIRE_OK(resumed);
        writer = *std::move(resumed);
        next = synced;
        continue;
      }
      REQUIRE_OK(writer->Append(ids.subspan(half), counted.subspan(half)));
      REQUIRE_OK(writer->EndDocument());
      ++next;
      if (random() % 200 == 0) {
        state = writer->Sync();
        REQUIRE_OK(state);
        synced = next;
      }
    }
    REQUIRE_OK(writer->Finish());
    CHECK(kills > 0);
    CHECK((*ReadFile(path) == whole));
    CHECK(ListDirectory(dir.path())->size() == 2);
  }
}

TEST_CASE("a state in the middle of a document goes on in it") {
  const TempDir dir;
  Write(dir.File("whole"), Info(300), {{{1, 2, 3, 4}, {}}});
  auto writer = TokenFileWriter::Create(dir.File("t"), Info(300));
  REQUIRE_OK(writer);
  REQUIRE_OK(writer->Append({1, 2}, {}));
  const auto state = writer->Sync();
  REQUIRE_OK(state);
  auto resumed = TokenFileWriter::Resume(dir.File("t"), *state);
  REQUIRE_OK(resumed);
  CHECK(resumed->token_count() == 2);
  REQUIRE_OK(resumed->Append({3, 4}, {}));
  REQUIRE_OK(resumed->Finish());  // ends the document
  CHECK(*ReadFile(dir.File("t")) == *ReadFile(dir.File("whole")));
}

TEST_CASE("a state of other files, of cut ones, or none at all is refused") {
  const TempDir dir;
  const std::string path = dir.File("t");
  auto writer = TokenFileWriter::Create(path, Info(256));
  REQUIRE_OK(writer);
  REQUIRE_OK(writer->Append({1, 2, 3}, {}));
  REQUIRE_OK(writer->EndDocument());
  const std::string state = *writer->Sync();
  const std::string whole = *ReadFile(path);
  const auto try_with = [&](const std::string& content) {
    REQUIRE_OK(WriteFileAtomic(path, content));
    return TokenFileWriter::Resume(path, state).status();
  };
  CHECK_OK(try_with(whole));
  CHECK_STATUS(try_with(whole.substr(0, whole.size() - 1)), absl::StatusCode::kDataLoss,
               "that were written: start again");
  std::string changed = whole;
  changed.back() ^= 1;
  CHECK_STATUS(try_with(changed), absl::StatusCode::kDataLoss, "no longer holds what was written");
  CHECK_STATUS(try_with(""), absl::StatusCode::kDataLoss, "start again");
  for (const std::string& bad : {std::string(), std::string("token-file-state-3"), state + " 1",
                                 "x" + state, std::string(1000, '9')}) {
    CHECK_STATUS(TokenFileWriter::Resume(path, bad), absl::StatusCode::kInvalidArgument,
                 "start again");
  }
  REQUIRE_OK(WriteFileAtomic(path, whole));
  REQUIRE_OK(WriteFileAtomic(path + ".documents", "short"));
  CHECK_STATUS(TokenFileWriter::Resume(path, state), absl::StatusCode::kDataLoss,
               ".documents has 5");
}

TEST_CASE("every bit of a finished file is guarded, its length too") {
  const TempDir dir;
  const std::string path = dir.File("t");
  TokenFileInfo info = Info(300, true);
  info.tokenizer.kind = "tiktoken";
  info.token_bytes.assign(300, 2);
  Write(path, info, {{{1, 2, 3}, {0, 1, 1}}, {{299}, {}}});
  const std::string whole = *ReadFile(path);
  const auto is_good = [&](const std::string& content) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
    const auto file = TokenFile::Open(path);
    return file.ok() && (*file)->VerifyChecksums(nullptr).ok();
  };
  REQUIRE(is_good(whole));
  size_t good = 0;
  for (size_t i = 0; i < whole.size(); ++i) {
    std::string flipped = whole;
    flipped[i] ^= 4;
    good += is_good(flipped);
  }
  // The zeros that bring the parts to a multiple of eight bytes: after the names, none after four
  // tokens of two bytes.
  CHECK(good < 8);
  for (const size_t size : {size_t{0}, size_t{1}, size_t{64}, size_t{127}, whole.size() - 1}) {
    CHECK_FALSE(is_good(whole.substr(0, size)));
  }
  CHECK_FALSE(is_good(whole + '\0'));
  CHECK_STATUS(TokenFile::Open(dir.File("none")), absl::StatusCode::kNotFound, "none");
  CHECK_STATUS(TokenFile::Open(dir.path()), absl::StatusCode::kInvalidArgument, "is not a file");
}

TEST_CASE("whichever operation fails, the error is told and nothing is taken for a token file") {
  const TempDir dir;
  const std::string path = dir.File("t");
  const auto write = [&]() -> absl::Status {
    auto writer = TokenFileWriter::Create(path, Info(300, true));
    if (!writer.ok()) return writer.status();
    if (absl::Status status = writer->Append({1, 2, 3}, {}); !status.ok()) return status;
    if (auto state = writer->Sync(); !state.ok()) return state.status();
    return writer->Finish();
  };
  for (int failing = 0;; ++failing) {
    INFO("operation " << failing);
    TokenFileWriter::Discard(path);
    int op = 0;
    absl::Status status;
    {
      ScopedFileFault fault(
          [&](FileOp, const std::string&) { return op++ == failing ? ENOSPC : 0; });
      status = write();
    }
    if (op <= failing) {
      CHECK_OK(status);
      CHECK(failing > 12);
      break;
    }
    CHECK(status.code() == absl::StatusCode::kResourceExhausted);
    // The very last sync may fail with all bytes in their place.
    if (op < 17) CHECK(!TokenFile::Open(path).ok());
  }
}

}  // namespace
}  // namespace convene::worker
