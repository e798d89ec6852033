#include "worker_runtime/data/prepare/prepare.h"

#include <fcntl.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <memory>
#include <set>
#include <sstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tools/base/files.h"
#include "tools/base/testing/manual_clock.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"
#include "tools/base/unique_fd.h"
#include "worker_runtime/data/prepare/testing/letter_files.h"
#include "worker_runtime/data/prepare/testing/letter_tokenizer.h"
#include "worker_runtime/data/prepare/testing/packed_files.h"
#include "worker_runtime/data/store/file_lock.h"
#include "worker_runtime/data/store/token_file.h"

namespace convene::worker {
namespace {

using convene::testing::TempDir;
using worker::testing::Cached;
using worker::testing::CacheOf;
using worker::testing::FilesWith;
using worker::testing::LetterOptions;
using worker::testing::Made;
using worker::testing::Put;
using worker::testing::TextOf;

TEST_CASE("documents stand in pattern order, then sorted, each once, and have an end") {
  TempDir dir;
  Put(dir.File("b.txt"), "bb");
  Put(dir.File("a.txt"), "a\xc3\xa9");
  Put(dir.File("empty.txt"), "");
  Put(dir.File("z.md"), "zz");
  Put(dir.File("[1].txt"), "a name, no pattern");
  const auto path = Cached(dir, {"z.md", "?.txt", "a*", "[1].txt"});
  REQUIRE_OK(path);
  CHECK(TextOf(*path) == "zz|a\xc3\xa9|bb|a name, no pattern|");
  const auto file = TokenFile::Open(*path);
  CHECK((*file)->document_count() == 4);
  CHECK((*file)->document_end(1) == 7);
  CHECK((*file)->vocabulary_size() == 259);
  CHECK((*file)->tokenizer().kind == "letters");
  CHECK((*file)->tokenizer().fingerprint == 71);
  CHECK((*file)->tokenizer().end_of_document == LetterTokenizer::kEnd);
  CHECK((*file)->token_bytes()[7] == 1);
  CHECK((*file)->token_bytes()[256] == 0);
  CHECK_FALSE((*file)->has_counted());
}

TEST_CASE("each option makes the documents that it says") {
  TempDir dir;
  Put(dir.File("a.jsonl"),
      "{\"text\": \"one\", \"m\": {\"t\": \"uno\"}}\n{\"text\": \"\", \"m\": {\"t\": \"due\"}}\n"
      "{\"text\": \"one\", \"m\": {\"t\": \"tre\"}}\n");
  Put(dir.File("b.txt"), "x--y----x");
  PrepareSummary summary;
  PrepareOptions options = LetterOptions(dir, {"a.jsonl", "b.txt"});
  CHECK(Made(dir, options, &summary) == "one|one|x--y----x|");
  CHECK(summary == PrepareSummary{.documents = 3,
                                  .tokens = 18,
                                  .counted_tokens = 18,
                                  .text_bytes = 15,
                                  .empty_documents = 1});
  options.input.document_separator = "--";
  options.dedupe = true;
  CHECK(Made(dir, options, &summary) == "one|x|y|");
  CHECK(summary.duplicates == 2);
  CHECK(summary.empty_documents == 2);
  options.dedupe = false;
  options.add_special_tokens = true;
  options.append_end_of_document = false;
  options.input.field = "m.t";
  CHECK(Made(dir, options) == "<uno><due><tre><x><y><x>");
  options.input.format = InputFormat::kText;
  options.input.document_separator.clear();
  CHECK(absl::StartsWith(Made(dir, options), "<{\"text\": \"one\","));
}

TEST_CASE("the file is the same from any number of threads") {
  TempDir dir;
  std::string lines;
  for (int i = 0; i < 12'000; ++i)
    absl::StrAppend(&lines, "{\"text\": \"line ", i % 10'000, "\"}\n");
  Put(dir.File("a.jsonl"), Gzip(lines));
  Put(dir.File("b.jsonl"), lines);
  PrepareOptions options = LetterOptions(dir, {"*.jsonl"});
  options.dedupe = true;
  options.threads = 1;
  PrepareSummary summary;
  Made(dir, options, &summary);
  CHECK(summary.documents == 10'000);
  CHECK(summary.duplicates == 14'000);
  const std::string whole = *ReadFile(dir.File("a.bin"));
  for (const int threads : {2, 5}) {
    options.threads = threads;
    Made(dir, options);
    CHECK(*ReadFile(dir.File("a.bin")) == whole);
  }
}

TEST_CASE("broken lines are left out up to a number, and the first is named") {
  TempDir dir;
  Put(dir.File("a.jsonl"), "{\"text\": \"a\"}\n{\"text\": 5}\n{\"text\": \"b\"}\n{\n");
  PrepareOptions options = LetterOptions(dir, {"a.jsonl"});
  const auto make = [&] { return PrepareOutput(options, dir.File("a.bin"), nullptr).status(); };
  const std::string first = dir.File("a.jsonl") + ", line 2: the field 'text' is not a text";
  CHECK_STATUS(make(), absl::StatusCode::kInvalidArgument, first);
  CHECK_STATUS(make(), absl::StatusCode::kInvalidArgument, "--max-bad-lines N");
  Put(dir.File("array.json"), "[\n{\"text\": \"a\"}]\n");
  Put(dir.File("one.jsonl"), "{\"text\": 5}\n");
  const auto words = [&](const std::string& name) {
    return std::string(Cached(dir, {name}).status().message());
  };
  CHECK_THAT(words("array.json"), Catch::Contains("jq -c '.[]'"));
  CHECK_THAT(words("one.jsonl"), !Catch::Contains("jq"));
  CHECK_THAT(words("one.jsonl"), !Catch::Contains("pairs"));
  Put(dir.File("pretty.json"), "{\n  \"text\": \"a\"\n}\n");
  CHECK_THAT(words("pretty.json"), Catch::Contains("`jq -c .`"));
  options.input.max_bad_lines = 1;
  CHECK_STATUS(make(), absl::StatusCode::kInvalidArgument,
               "line 4: broken JSON at byte 2: the text ends too early; this is broken line 2, and "
               "--max-bad-lines allows 1. The first one: data: " +
                   first);
  CHECK(FilesWith(dir.path(), "a.bin").empty());
  options.input.max_bad_lines = 2;
  PrepareSummary summary;
  CHECK(Made(dir, options, &summary) == "a|b|");
  CHECK(summary.bad_lines == 2);
  CHECK(absl::StrContains(summary.first_bad_line, first));
  options.input.max_document_bytes = 12;
  options.input.max_bad_lines = 4;
  CHECK_STATUS(make(), absl::StatusCode::kInvalidArgument,
               "no document in the input (4 broken lines");
}

TEST_CASE("the same files are prepared once, changed ones or other options again") {
  TempDir dir;
  Put(dir.File("a.txt"), "first");
  int64_t done_bytes = 0, total_bytes = 0;
  const PrepareProgress progress = [&](int64_t done, int64_t total) {
    done_bytes = done;
    total_bytes = total;
  };
  PrepareOptions options = LetterOptions(dir, {"a.txt"});
  const auto first = PrepareTokenFile(options, CacheOf(dir), progress);
  REQUIRE_OK(first);
  CHECK(done_bytes == 5);
  CHECK(total_bytes == 5);
  done_bytes = 0;
  options.threads = 1;
  CHECK(PrepareTokenFile(options, CacheOf(dir), progress)->path == first->path);
  CHECK(done_bytes == 0);
  Put(dir.File("a.txt"), "later");
  std::set<std::string> paths = {first->path};
  const auto is_new = [&] {
    return paths.insert(PrepareTokenFile(options, CacheOf(dir), nullptr)->path).second;
  };
  CHECK(is_new());
  options.input.field = "other";
  CHECK(is_new());
  options.input.document_separator = "--";
  CHECK(is_new());
  options.dedupe = true;
  CHECK(is_new());
  options.add_special_tokens = true;
  CHECK(is_new());
  options.append_end_of_document = false;
  CHECK(is_new());
  const LetterTokenizer other(false);
  options.tokenizer = &other;
  CHECK(is_new());
  CHECK_FALSE(is_new());
  options.append_end_of_document = true;
  CHECK_STATUS(PrepareTokenFile(options, CacheOf(dir), nullptr),
               absl::StatusCode::kFailedPrecondition, "names no token that ends a document");
}

TEST_CASE("bad sources are named") {
  TempDir dir;
  Put(dir.File("empty.txt"), "");
  Put(dir.File("cut.gz"), Gzip("text").substr(0, 12));
  REQUIRE_OK(MakeDirectories(dir.File("sub")));
  CHECK_STATUS(Cached(dir, {}), absl::StatusCode::kInvalidArgument, "no pattern");
  CHECK_STATUS(Cached(dir, {"none*.txt"}), absl::StatusCode::kNotFound,
               "no file matches '" + dir.File("none*.txt"));
  CHECK_STATUS(Cached(dir, {"empty.txt"}), absl::StatusCode::kInvalidArgument, "all 1 files of");
  CHECK_STATUS(Cached(dir, {"sub/"}), absl::StatusCode::kInvalidArgument,
               "is a directory; to take all of its files, write " + dir.File("sub/*"));
  CHECK_STATUS(Cached(dir, {"cut.gz"}), absl::StatusCode::kDataLoss, "cut.gz");
  Put(dir.File("page.parquet"), "<html>404</html>");
  CHECK_STATUS(Cached(dir, {"page.parquet"}), absl::StatusCode::kInvalidArgument,
               "page.parquet does not begin as a Parquet file does");
  {
    ScopedFileFault fault([&](FileOp op, const std::string& path) {
      return op == FileOp::kOpen && path == dir.File("page.parquet") ? EACCES : 0;
    });
    CHECK_STATUS(Cached(dir, {"page.parquet"}), absl::StatusCode::kPermissionDenied,
                 "page.parquet");
  }
  PrepareOptions options = LetterOptions(dir, {"cut.gz"});
  options.input.patterns = {"/dev/zero"};
  CHECK_STATUS(PrepareTokenFile(options, CacheOf(dir), nullptr), absl::StatusCode::kInvalidArgument,
               "(by '/dev/zero') is neither a file nor a directory");
  options.input.field = "a..b";
  CHECK_STATUS(PrepareTokenFile(options, CacheOf(dir), nullptr), absl::StatusCode::kInvalidArgument,
               "'a..b' has an empty key");
}

TEST_CASE("a file of objects without the text is refused before the files in front are read") {
  TempDir dir;
  Put(dir.File("a.txt"), "text");
  Put(dir.File("b.log"), "{\"id\": 1}\n{\"id\": 2}\n");
  PrepareOptions options = LetterOptions(dir, {"a.txt", "b.log"});
  int told = 0;
  const auto progress = [&](int64_t, int64_t) { ++told; };
  CHECK_STATUS(PrepareOutput(options, dir.File("out.bin"), progress),
               absl::StatusCode::kInvalidArgument,
               dir.File("b.log") + " has JSON objects as lines");
  CHECK(told == 0);
  options.input.format = InputFormat::kText;
  CHECK(Made(dir, options) == "text|{\"id\": 1}\n{\"id\": 2}\n|");
}

TEST_CASE("an output never replaces an input") {
  TempDir dir;
  Put(dir.File("a.txt"), "text");
  CHECK_STATUS(PrepareOutput(LetterOptions(dir, {"a.txt"}), dir.path() + "/./a.txt", nullptr),
               absl::StatusCode::kInvalidArgument, "is an input");
  CHECK(*ReadFile(dir.File("a.txt")) == "text");
}

TEST_CASE("an output that can get no file is refused before any work") {
  TempDir dir;
  Put(dir.File("a.txt"), "text");
  const auto refused = [&](const std::string& output, absl::StatusCode code, const char* words) {
    std::atomic<int> opened = 0;
    ScopedFileFault fault([&](FileOp, const std::string&) { return ++opened, 0; });
    CHECK_STATUS(PrepareOutput(LetterOptions(dir, {"a.txt"}), output, nullptr), code, words);
    CHECK(opened == 0);
  };
  REQUIRE_OK(MakeDirectories(dir.File("sub")));
  refused(dir.File("sub"), absl::StatusCode::kInvalidArgument, "and is not a file; name a file");
  refused(dir.File("sub/"), absl::StatusCode::kInvalidArgument, "and is not a file; name a file");
  refused("/dev/null", absl::StatusCode::kInvalidArgument, "/dev/null is there already");
  refused(dir.File("none/a.bin"), absl::StatusCode::kNotFound, "make it, or name another output");
}

TEST_CASE("an output that is a link is written where the link leads") {
  TempDir dir;
  Put(dir.File("a.txt"), "text");
  REQUIRE_OK(MakeDirectories(dir.File("disk")));
  Put(dir.File("disk/old"), "old");
  for (const char* const target : {"disk/old", "disk/new"}) {
    REQUIRE(symlink(target, dir.File("a.bin").c_str()) == 0);
    CHECK(Made(dir, LetterOptions(dir, {"a.txt"})) == "text|");
    CHECK(TextOf(dir.File(target)) == "text|");
    CHECK(unlink(dir.File("a.bin").c_str()) == 0);
  }
  CHECK(ListDirectory(dir.File("disk"))->size() == 2);
  REQUIRE(symlink("a.txt", dir.File("a.bin").c_str()) == 0);
  CHECK_STATUS(PrepareOutput(LetterOptions(dir, {"a.txt"}), dir.File("a.bin"), nullptr),
               absl::StatusCode::kInvalidArgument, "is an input");
}

TEST_CASE("a folder that may not be written and a full cache are told with what to do") {
  TempDir dir;
  Put(dir.File("a.txt"), "text");
  const PrepareOptions options = LetterOptions(dir, {"a.txt"});
  {
    ScopedFileFault fault([&](FileOp op, const std::string& path) {
      return op == FileOp::kOpen && path == dir.File("a.bin.lock") ? EACCES : 0;
    });
    CHECK_STATUS(PrepareOutput(options, dir.File("a.bin"), nullptr),
                 absl::StatusCode::kPermissionDenied, "or name another output");
  }
  ScopedFileFault fault([&](FileOp op, const std::string& path) {
    return op == FileOp::kWrite && absl::StrContains(path, ".partial") ? ENOSPC : 0;
  });
  const absl::Status full = PrepareTokenFile(options, CacheOf(dir), nullptr).status();
  CHECK(absl::IsResourceExhausted(full));
  CHECK_THAT(std::string(full.message()), Catch::Contains("`convene data cache --prune`") &&
                                              Catch::Contains("--token-cache-dir"));
  CHECK_THAT(std::string(PrepareOutput(options, dir.File("a.bin"), nullptr).status().message()),
             !Catch::Contains("--token-cache-dir"));
}

TEST_CASE("an output's own part is no input where a pattern matches it") {
  TempDir dir;
  Put(dir.File("a.jsonl"), "{\"text\": \"one\"}\n");
  Put(dir.File("b.jsonl"), "{\n");
  PrepareOptions options = LetterOptions(dir, {"*"});
  options.input.format = InputFormat::kJsonLines;
  CHECK_STATUS(PrepareOutput(options, dir.File("a.bin"), nullptr),
               absl::StatusCode::kInvalidArgument, "a.bin.partial keeps what is done");
  options.input.max_bad_lines = 1;
  PrepareSummary summary;
  CHECK(Made(dir, options, &summary) == "one|");
  CHECK(summary.resumed);
  CHECK(summary.bad_lines == 1);
}

TEST_CASE("whichever operation fails, the error is told and nothing half-made is left") {
  TempDir dir;
  Put(dir.File("a.txt"), "text");
  Put(dir.File("b.txt"), "text");
  for (const int error : {ENOSPC, EACCES}) {
    for (int failing = 0;; ++failing) {
      INFO("operation " << failing);
      REQUIRE_OK(RemoveTree(dir.File("cache")));
      std::atomic<int> op = 0;
      absl::StatusOr<std::string> path;
      {
        ScopedFileFault fault([&](FileOp kind, const std::string& file) {
          // A file in the cache that cannot be read is made anew.
          if (kind == FileOp::kOpen && absl::EndsWith(file, ".bin")) return 0;
          // A note of its source is of no importance.
          if (absl::StrContains(file, ".source")) return 0;
          return op++ == failing ? error : 0;
        });
        path = Cached(dir, {"?.txt"});
      }
      if (op <= failing) {
        REQUIRE_OK(path);
        CHECK(failing > 20);
        break;
      }
      REQUIRE(path.status().code() == (error == ENOSPC ? absl::StatusCode::kResourceExhausted
                                                       : absl::StatusCode::kPermissionDenied));
      CHECK(FilesWith(dir.File("cache"), ".partial").empty());
      CHECK(FilesWith(dir.File("cache"), ".journal").empty());
      const auto again = Cached(dir, {"?.txt"});
      REQUIRE_OK(again);
      CHECK(TextOf(*again) == "text|text|");
    }
  }
}

TEST_CASE("broken lines are told, and counted against the limit of each call") {
  TempDir dir;
  Put(dir.File("a.jsonl"), "{\"text\": \"one\"}\n{\n");
  PrepareOptions options = LetterOptions(dir, {"*.jsonl"});
  options.input.max_bad_lines = 1;
  std::ostringstream log;
  const auto old_logger = spdlog::default_logger();
  spdlog::set_default_logger(std::make_shared<spdlog::logger>(
      "test", std::make_shared<spdlog::sinks::ostream_sink_mt>(log)));
  const auto path = PrepareTokenFile(options, CacheOf(dir), nullptr);
  spdlog::set_default_logger(old_logger);
  REQUIRE_OK(path);
  CHECK(TextOf(path->path) == "one|");
  CHECK(absl::StrContains(log.str(), "1 broken lines are left out"));
  CHECK(absl::StrContains(log.str(), "a.jsonl, line 2"));
  CHECK(PrepareTokenFile(options, CacheOf(dir), nullptr)->path == path->path);
  options.input.max_bad_lines = 0;
  CHECK_STATUS(PrepareTokenFile(options, CacheOf(dir), nullptr), absl::StatusCode::kInvalidArgument,
               "line 2");
}

TEST_CASE("a file that changes while it is read is refused") {
  TempDir dir;
  Put(dir.File("a.jsonl"), "{\"text\": \"text\"}\n");
  std::atomic<bool> changed = false;
  std::atomic<int64_t> written = 0;
  ScopedFileFault fault([&](FileOp op, const std::string& path) {
    if (op == FileOp::kOpen && path == dir.File("a.jsonl") && !changed.exchange(true)) {
      UniqueFd fd(open(path.c_str(), O_WRONLY | O_APPEND));
      written = write(fd.get(), "!", 1);
    }
    return 0;
  });
  CHECK_STATUS(Cached(dir, {"a.jsonl"}), absl::StatusCode::kFailedPrecondition,
               "a.jsonl changed while it was read");
  CHECK(written == 1);
  CHECK(FilesWith(dir.File("cache"), ".bin").size() == 1);  // the lock
}

TEST_CASE("of many processes exactly one makes the file, and all get it") {
  TempDir dir;
  Put(dir.File("a.txt"), std::string(3 << 20, 'x'));
  std::vector<pid_t> children;
  for (int i = 0; i < 6; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      bool made = false;
      ScopedFileFault fault([&](FileOp op, const std::string&) {
        made = made || op == FileOp::kRename;
        return 0;
      });
      const auto path = Cached(dir, {"a.txt"});
      if (!path.ok()) _exit(2);
      const auto file = TokenFile::Open(*path);
      _exit(!file.ok() || (*file)->token_count() != (3 << 20) + 1 ? 2 : made);
    }
    children.push_back(child);
  }
  int makers = 0;
  for (const pid_t child : children) {
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    REQUIRE(WIFEXITED(status));
    REQUIRE(WEXITSTATUS(status) < 2);
    makers += WEXITSTATUS(status);
  }
  CHECK(makers == 1);
}

TEST_CASE("the end is told once, also of packed files that are read long before") {
  TempDir dir;
  std::string lines;
  for (int i = 0; i < 100'000; ++i) absl::StrAppend(&lines, "{\"text\": \"line ", i % 10, "\"}\n");
  Put(dir.File("a.jsonl"), Gzip(lines));
  std::vector<int64_t> told;
  int64_t all = 0;
  const auto progress = [&](int64_t done, int64_t total) {
    told.push_back(done);
    all = total;
  };
  PrepareOptions options = LetterOptions(dir, {"a.jsonl"});
  REQUIRE_OK(PrepareOutput(options, dir.File("a.bin"), progress));
  CHECK(std::count(told.begin(), told.end(), all) == 1);
  CHECK(told.back() == all);
}

TEST_CASE("the wait for another process has an end") {
  TempDir dir;
  Put(dir.File("a.txt"), "text");
  ManualClock clock;
  TokenCache cache = CacheOf(dir);
  cache.clock = &clock;
  const PrepareOptions options = LetterOptions(dir, {"a.txt"});
  const auto path = PrepareTokenFile(options, cache, nullptr);
  REQUIRE_OK(path);
  REQUIRE_OK(RemoveTree(path->path));
  const FileLock::Wait wait = {.silence_max = absl::ZeroDuration()};
  const auto holder = FileLock::Take(path->path + ".lock", wait);
  CHECK_STATUS(PrepareTokenFile(options, cache, nullptr), absl::StatusCode::kDeadlineExceeded,
               ".bin.lock is held by process");
  const auto other = FileLock::Take(dir.File("a.bin.lock"), wait);
  CHECK_STATUS(PrepareOutput(options, dir.File("a.bin"), nullptr),
               absl::StatusCode::kFailedPrecondition,
               "which has read 0 of 0 bytes; wait for its end, or name another output");
}

TEST_CASE("a cache that cannot be written is told with the flag that names another") {
  TempDir dir;
  Put(dir.File("a.txt"), "text");
  TokenCache cache = CacheOf(dir);
  cache.directory = dir.File("a.txt/cache");
  const absl::Status refused =
      PrepareTokenFile(LetterOptions(dir, {"a.txt"}), cache, nullptr).status();
  CHECK_THAT(std::string(refused.message()),
             Catch::Contains("--token-cache-dir") && Catch::Contains("a.txt/cache"));
}

TEST_CASE("a token file that was damaged in the cache is made again") {
  TempDir dir;
  Put(dir.File("a.txt"), "text");
  const auto path = Cached(dir, {"a.txt"});
  REQUIRE_OK(path);
  Put(*path, ReadFile(*path)->substr(0, 66));
  CHECK_STATUS(TokenFile::Open(*path), absl::StatusCode::kDataLoss, *path);
  CHECK(*Cached(dir, {"a.txt"}) == *path);
  CHECK(TextOf(*path) == "text|");
}

TEST_CASE("documents of another format come from their own encoder, with their counts") {
  class Pairs : public DocumentEncoder {
   public:
    absl::Status Encode(absl::string_view record, EncodedDocument* document) override {
      document->Clear();
      if (record == "bad") return absl::InvalidArgumentError("no pair");
      document->ids = {'q', 'a'};
      document->counted = {0, 1};
      document->text_bytes = 2;
      return absl::OkStatus();
    }
  };
  TempDir dir;
  Put(dir.File("a.txt"), "one\nbad\ntwo\n");
  PrepareOptions options = LetterOptions(dir, {"a.txt"});
  options.format = DocumentFormat{
      .key = "pairs", .new_encoder = [] { return std::unique_ptr<DocumentEncoder>(new Pairs()); }};
  options.input.max_bad_lines = 1;
  PrepareSummary summary;
  CHECK(Made(dir, options, &summary) == "qa|qa|");
  CHECK(summary.counted_tokens == 2);
  CHECK(absl::StrContains(summary.first_bad_line, "a.txt, line 2: no pair"));
  const auto file = TokenFile::Open(dir.File("a.bin"));
  REQUIRE((*file)->has_counted());
  std::vector<uint8_t> counted(6);
  (*file)->ReadCounted(0, 6, counted.data());
  CHECK(counted == std::vector<uint8_t>{0, 1, 0, 0, 1, 0});
}

}  // namespace
}  // namespace convene::worker
