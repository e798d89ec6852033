// The part that an ended call leaves, and the call that goes on from it.
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <functional>
#include <memory>
#include <sstream>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tools/base/files.h"
#include "tools/base/mutex.h"
#include "tools/base/testing/status_testing.h"
#include "worker_runtime/data/prepare/prepare.h"
#include "worker_runtime/data/prepare/testing/letter_files.h"
#include "worker_runtime/data/prepare/testing/packed_files.h"
#include "worker_runtime/data/store/token_file.h"

namespace convene::worker {
namespace {

using convene::testing::TempDir;
using worker::testing::CacheOf;
using worker::testing::FilesWith;
using worker::testing::LetterOptions;
using worker::testing::Made;
using worker::testing::Put;

TEST_CASE("a part is promised only where the next call can go on from it") {
  TempDir dir;
  // Calls `disturb` when the journal of a.jsonl stands and b.jsonl is to be opened, on the thread
  // that opens it.
  const auto make = [&](const std::function<absl::Status()>& disturb) {
    Put(dir.File("a.jsonl"), "{\"text\": \"one\"}\n");
    Put(dir.File("b.jsonl"), "{\"text\": \"two\"}\n");
    REQUIRE_OK(MakeDirectories(dir.File("out")));
    Mutex mutex;
    CondVar is_told;
    bool has_journal = false;
    absl::Status disturbed = absl::DeadlineExceededError("there was no journal within 30 s");
    std::atomic<bool> is_disturbed = false;
    ScopedFileFault fault([&](FileOp op, const std::string& path) {
      if (op == FileOp::kSync && path == dir.File("out") &&
          access(dir.File("out/a.bin.journal").c_str(), F_OK) == 0) {
        MutexLock lock(&mutex);
        has_journal = true;
        is_told.SignalAll();
      }
      if (op == FileOp::kOpen && path == dir.File("b.jsonl") && !is_disturbed.exchange(true)) {
        bool is_ready = false;
        {
          MutexLock lock(&mutex);
          while (!has_journal && is_told.WaitFor(&mutex, absl::Seconds(30))) continue;
          is_ready = has_journal;
        }
        if (is_ready) disturbed = disturb();
      }
      return 0;
    });
    const absl::Status made =
        PrepareOutput(LetterOptions(dir, {"?.jsonl"}), dir.File("out/a.bin"), nullptr).status();
    CHECK_OK(disturbed);
    return made;
  };
  absl::Status status =
      make([&] { return WriteFileAtomic(dir.File("b.jsonl"), "{\"text\": \"longer\"}\n"); });
  CHECK_STATUS(status, absl::StatusCode::kFailedPrecondition, "start again when it is whole");
  CHECK_FALSE(absl::StrContains(status.message(), "keeps what is done"));
  CHECK(ListDirectory(dir.File("out"))->empty());
  status = make([&] { return RemoveTree(dir.File("out")); });
  CHECK_STATUS(status, absl::StatusCode::kNotFound, dir.File("out"));
  CHECK_FALSE(absl::StrContains(status.message(), "keeps what is done"));
  status = make([&] { return RemoveTree(dir.File("b.jsonl")); });
  CHECK_STATUS(status, absl::StatusCode::kNotFound, "a.bin.partial keeps what is done");
}

TEST_CASE("wherever the making of an output ends, the same call goes on to the same file") {
  TempDir dir;
  for (int i = 0; i < 4; ++i) {
    std::string lines;
    for (int j = 0; j < 20; ++j) absl::StrAppend(&lines, "{\"text\": \"", i, " ", j % 13, "\"}\n");
    Put(dir.File(absl::StrCat(i, ".jsonl")), i % 2 == 0 ? lines : Zstd(lines + "{\n"));
  }
  PrepareOptions options = LetterOptions(dir, {"*.jsonl"});
  options.dedupe = true;
  options.input.max_bad_lines = 2;
  PrepareSummary undisturbed;
  Made(dir, options, &undisturbed);
  const std::string whole = *ReadFile(dir.File("a.bin"));
  const auto make = [&](int failing, std::atomic<int>* op) {
    ScopedFileFault fault(
        [&](FileOp, const std::string&) { return (*op)++ == failing ? ENOSPC : 0; });
    return PrepareOutput(options, dir.File("a.bin"), nullptr);
  };
  int resumed = 0;
  for (int failing = 0;; ++failing) {
    INFO("operation " << failing);
    unlink(dir.File("a.bin").c_str());
    std::atomic<int> op = 0;
    const auto made = make(failing, &op);
    if (op <= failing) {
      CHECK_OK(made);
      break;
    }
    REQUIRE(made.status().code() == absl::StatusCode::kResourceExhausted);
    const bool keeps = absl::StrContains(made.status().message(), "the same command goes on");
    CHECK((access(dir.File("a.bin.journal").c_str(), F_OK) == 0) == keeps);
    CHECK((access(dir.File("a.bin.partial").c_str(), F_OK) == 0) == keeps);
    // Only what was renamed already stands under the name.
    if (access(dir.File("a.bin").c_str(), F_OK) == 0) CHECK(*ReadFile(dir.File("a.bin")) == whole);
    PrepareSummary summary;
    Made(dir, options, &summary);
    CHECK(*ReadFile(dir.File("a.bin")) == whole);
    resumed += summary.resumed ? 1 : 0;
    summary.resumed = false;
    CHECK(summary == undisturbed);
    CHECK(FilesWith(dir.path(), "a.bin").size() == 1);
  }
  CHECK(resumed > 10);
}

TEST_CASE("a part of another input is of no use, nor is a damaged one") {
  TempDir dir;
  Put(dir.File("a.jsonl"), "{\"text\": \"one\"}\n");
  Put(dir.File("b.jsonl"), "{\n");
  PrepareOptions options = LetterOptions(dir, {"*.jsonl"});
  const auto fail = [&] {
    CHECK_STATUS(PrepareOutput(options, dir.File("a.bin"), nullptr),
                 absl::StatusCode::kInvalidArgument, "a.bin.partial keeps what is done");
  };
  PrepareSummary summary;
  fail();
  Put(dir.File("b.jsonl"), "{\"text\": \"two\"}\n");
  CHECK(Made(dir, options, &summary) == "one|two|");
  CHECK_FALSE(summary.resumed);
  Put(dir.File("b.jsonl"), "{\n");
  for (const std::string name : {"a.bin.journal", "a.bin.partial"}) {
    fail();
    REQUIRE(FilesWith(dir.path(), name).size() >= 1);
    Put(dir.File(name), "x");
    options.input.max_bad_lines = 1;
    CHECK(Made(dir, options, &summary) == "one|");
    CHECK_FALSE(summary.resumed);
    options.input.max_bad_lines = 0;
  }
  fail();
  options.input.max_bad_lines = 1;
  CHECK(Made(dir, options, &summary) == "one|");
  CHECK(summary.resumed);
}

TEST_CASE(
    "a part that goes for another input is told in one line, and a first call tells nothing") {
  TempDir dir;
  Put(dir.File("a.jsonl"), "{\"text\": \"one\"}\n");
  std::ostringstream log;
  const auto old_logger = spdlog::default_logger();
  spdlog::set_default_logger(std::make_shared<spdlog::logger>(
      "test", std::make_shared<spdlog::sinks::ostream_sink_mt>(log)));
  const absl::Cleanup restore = [&] { spdlog::set_default_logger(old_logger); };
  CHECK(Made(dir, LetterOptions(dir, {"a.jsonl"})) == "one|");
  CHECK(log.str().empty());
  Put(dir.File("b.jsonl"), "{\n");
  CHECK_STATUS(PrepareOutput(LetterOptions(dir, {"*.jsonl"}), dir.File("a.bin"), nullptr),
               absl::StatusCode::kInvalidArgument, "a.bin.partial keeps what is done");
  CHECK(Made(dir, LetterOptions(dir, {"a.jsonl"})) == "one|");
  CHECK_THAT(log.str(), Catch::Contains("a.bin.partial (") &&
                            Catch::Contains("made of another input or by other flags") &&
                            Catch::Contains("begun anew"));
  const std::string told = log.str();
  CHECK(std::count(told.begin(), told.end(), '\n') == 1);
}

TEST_CASE("a part that cannot be opened just now is kept for the next call") {
  TempDir dir;
  Put(dir.File("a.jsonl"), "{\"text\": \"one\"}\n");
  Put(dir.File("b.jsonl"), "{\n");
  PrepareOptions options = LetterOptions(dir, {"*.jsonl"});
  CHECK_STATUS(PrepareOutput(options, dir.File("a.bin"), nullptr),
               absl::StatusCode::kInvalidArgument, "a.bin.partial keeps what is done");
  options.input.max_bad_lines = 1;
  for (const std::string name : {"a.bin.journal", "a.bin.partial"}) {
    INFO(name);
    ScopedFileFault fault([&](FileOp op, const std::string& path) {
      return op == FileOp::kOpen && path == dir.File(name) ? EACCES : 0;
    });
    CHECK_STATUS(PrepareOutput(options, dir.File("a.bin"), nullptr),
                 absl::StatusCode::kPermissionDenied, name);
  }
  PrepareSummary summary;
  CHECK(Made(dir, options, &summary) == "one|");
  CHECK(summary.resumed);
}

TEST_CASE("a part with more broken lines than are allowed now is of no use") {
  TempDir dir;
  Put(dir.File("a.jsonl"), "{\"text\": \"one\"}\n{\n");
  Put(dir.File("b.jsonl"), "{\n");
  PrepareOptions options = LetterOptions(dir, {"*.jsonl"});
  options.input.max_bad_lines = 1;
  CHECK_STATUS(PrepareOutput(options, dir.File("a.bin"), nullptr),
               absl::StatusCode::kInvalidArgument, "a.bin.partial keeps what is done");
  options.input.max_bad_lines = 0;
  CHECK_STATUS(PrepareOutput(options, dir.File("a.bin"), nullptr),
               absl::StatusCode::kInvalidArgument, "a.jsonl, line 2");
}

TEST_CASE("a part that names another path of the tokenizer is of no use, a cached file is") {
  TempDir dir;
  Put(dir.File("a.jsonl"), "{\"text\": \"one\"}\n");
  PrepareOptions options = LetterOptions(dir, {"*.jsonl"});
  const auto path = PrepareTokenFile(options, CacheOf(dir), nullptr);
  REQUIRE_OK(path);
  Put(dir.File("b.jsonl"), "{\n");
  CHECK_STATUS(PrepareOutput(options, dir.File("a.bin"), nullptr),
               absl::StatusCode::kInvalidArgument, "a.bin.partial keeps what is done");
  options.tokenizer_path = "moved";
  options.input.max_bad_lines = 1;
  PrepareSummary summary;
  CHECK(Made(dir, options, &summary) == "one|");
  CHECK_FALSE(summary.resumed);
  CHECK((*TokenFile::Open(dir.File("a.bin")))->tokenizer().path == "moved");
  options.input.max_bad_lines = 0;
  unlink(dir.File("b.jsonl").c_str());
  CHECK(PrepareTokenFile(options, CacheOf(dir), nullptr)->path == path->path);
}

TEST_CASE("a whole part that only has no name yet is given it") {
  TempDir dir;
  Put(dir.File("a.jsonl"), "{\"text\": \"one\"}\n{\"text\": \"one\"}\n{\n");
  PrepareOptions options = LetterOptions(dir, {"a.jsonl"});
  options.journal_interval = absl::Hours(1);
  options.input.max_bad_lines = 1;
  options.dedupe = true;
  {
    ScopedFileFault fault([&](FileOp op, const std::string& path) {
      return op == FileOp::kRename && !absl::EndsWith(path, ".journal") &&
                     !absl::EndsWith(path, ".journal.new")
                 ? EIO
                 : 0;
    });
    REQUIRE_FALSE(PrepareOutput(options, dir.File("a.bin"), nullptr).ok());
  }
  PrepareSummary summary;
  bool was_read = false;
  {
    ScopedFileFault fault([&](FileOp op, const std::string& path) {
      was_read = was_read || (op == FileOp::kOpen && path == dir.File("a.jsonl"));
      return 0;
    });
    CHECK(Made(dir, options, &summary) == "one|");
  }
  CHECK_FALSE(was_read);
  CHECK(summary.resumed);
  CHECK(summary.duplicates == 1);
  CHECK(summary.bad_lines == 1);
  CHECK(FilesWith(dir.path(), "a.bin").size() == 1);
}

}  // namespace
}  // namespace convene::worker
