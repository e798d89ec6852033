#include <fcntl.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tools/base/clock.h"
#include "tools/base/files.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"
#include "tools/base/unique_fd.h"
#include "worker_runtime/data/dataset.h"
#include "worker_runtime/data/prepare.h"
#include "worker_runtime/data/sample_order.h"
#include "worker_runtime/data/token_file.h"

namespace convene::worker {
namespace {

using convene::testing::TempDir;

void Put(const std::string& path, const std::string& text) {
  REQUIRE_OK(WriteFileAtomic(path, text));
}

PrepareOptions Options(const TempDir& dir, const std::vector<std::string>& patterns) {
  PrepareOptions options;
  for (const std::string& pattern : patterns) options.patterns.push_back(dir.File(pattern));
  options.cache_directory = dir.File("cache");
  return options;
}

// The text of a byte token file, "|" for the separator.
std::string TextOf(const std::string& path) {
  const auto file = TokenFile::Open(path);
  REQUIRE_OK(file);
  std::vector<int32_t> tokens(file->token_count());
  file->Read(0, file->token_count(), tokens.data());
  std::string text;
  for (const int32_t token : tokens) text += token == 0 ? '|' : static_cast<char>(token);
  return text;
}

std::vector<std::string> CacheFilesEndingIn(const TempDir& dir, const std::string& suffix) {
  std::vector<std::string> found;
  const std::vector<std::string> names = *ListDirectory(dir.File("cache"));
  for (const std::string& name : names) {
    if (absl::EndsWith(name, suffix)) found.push_back(name);
  }
  return found;
}

TEST_CASE("documents stand in pattern order, then sorted, each once, with a separator between") {
  TempDir dir;
  Put(dir.File("b.txt"), "bb");
  Put(dir.File("a.txt"), "a\xc3\xa9");
  Put(dir.File("empty.txt"), "");
  Put(dir.File("z.md"), "zz");
  const auto path = PrepareTokenFile(Options(dir, {"z.md", "*.txt", "a*"}));
  REQUIRE_OK(path);
  CHECK(TextOf(*path) == "zz|a\xc3\xa9|bb");
  CHECK(TokenFile::Open(*path)->vocabulary_size() == 256);
}

TEST_CASE("a file's own name is no pattern") {
  TempDir dir;
  Put(dir.File("[1].txt"), "one");
  const auto path = PrepareTokenFile(Options(dir, {"[1].txt"}));
  REQUIRE_OK(path);
  CHECK(TextOf(*path) == "one");
}

TEST_CASE("the same files are prepared once, a changed one again") {
  TempDir dir;
  Put(dir.File("a.txt"), "first");
  int64_t done_bytes = 0, total_bytes = 0;
  PrepareOptions options = Options(dir, {"a.txt"});
  options.progress = [&](int64_t done, int64_t total) {
    done_bytes = done;
    total_bytes = total;
  };
  const auto first = PrepareTokenFile(options);
  REQUIRE_OK(first);
  CHECK(done_bytes == 5);
  CHECK(total_bytes == 5);
  done_bytes = 0;
  CHECK(*PrepareTokenFile(options) == *first);
  CHECK(done_bytes == 0);
  Put(dir.File("a.txt"), "later");
  const auto later = PrepareTokenFile(options);
  REQUIRE_OK(later);
  CHECK(*later != *first);
  CHECK(TextOf(*later) == "later");
}

TEST_CASE("bad sources are named") {
  TempDir dir;
  Put(dir.File("empty.txt"), "");
  REQUIRE_OK(MakeDirectories(dir.File("sub")));
  CHECK_STATUS(PrepareTokenFile(Options(dir, {})), absl::StatusCode::kInvalidArgument,
               "no pattern");
  CHECK_STATUS(PrepareTokenFile(Options(dir, {"none*.txt"})), absl::StatusCode::kNotFound,
               "no file matches '" + dir.File("none*.txt"));
  CHECK_STATUS(PrepareTokenFile(Options(dir, {"empty.txt"})), absl::StatusCode::kInvalidArgument,
               "all 1 files of");
  CHECK_STATUS(PrepareTokenFile(Options(dir, {"sub"})), absl::StatusCode::kInvalidArgument,
               "is not a file");
}

TEST_CASE("whichever operation fails, the error is told and nothing half-made is left") {
  TempDir dir;
  Put(dir.File("a.txt"), "text");
  Put(dir.File("b.txt"), "text");
  for (const int error : {ENOSPC, EACCES}) {
    for (int failing = 0;; ++failing) {
      INFO("operation " << failing);
      REQUIRE_OK(RemoveTree(dir.File("cache")));
      int op = 0;
      absl::StatusOr<std::string> path;
      {
        ScopedFileFault fault(
            [&](FileOp, const std::string&) { return op++ == failing ? error : 0; });
        path = PrepareTokenFile(Options(dir, {"?.txt"}));
      }
      if (op <= failing) {
        REQUIRE_OK(path);
        CHECK(failing > 8);
        break;
      }
      REQUIRE(path.status().code() == (error == ENOSPC ? absl::StatusCode::kResourceExhausted
                                                       : absl::StatusCode::kPermissionDenied));
      CHECK(CacheFilesEndingIn(dir, ".tmp").empty());
      const auto again = PrepareTokenFile(Options(dir, {"?.txt"}));
      REQUIRE_OK(again);
      CHECK(TextOf(*again) == "text|text");
    }
  }
}

TEST_CASE("a file that changes while it is read is refused") {
  TempDir dir;
  Put(dir.File("a.txt"), "text");
  bool changed = false;
  ScopedFileFault fault([&](FileOp op, const std::string& path) {
    if (op == FileOp::kOpen && path == dir.File("a.txt") && !std::exchange(changed, true)) {
      UniqueFd fd(open(path.c_str(), O_WRONLY | O_APPEND));
      CHECK(write(fd.get(), "!", 1) == 1);
    }
    return 0;
  });
  CHECK_STATUS(PrepareTokenFile(Options(dir, {"a.txt"})), absl::StatusCode::kFailedPrecondition,
               "a.txt changed while it was read");
  CHECK(CacheFilesEndingIn(dir, ".bin").empty());
}

TEST_CASE("of many processes exactly one makes the file, and all get it") {
  TempDir dir;
  Put(dir.File("a.txt"), std::string(3 << 20, 'x'));
  std::vector<pid_t> children;
  for (int i = 0; i < 6; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      PrepareOptions options = Options(dir, {"a.txt"});
      bool made = false;
      options.progress = [&](int64_t, int64_t) { made = true; };
      const auto path = PrepareTokenFile(options);
      const auto file = path.ok() ? TokenFile::Open(*path) : path.status();
      _exit(!file.ok() || file->token_count() != 3 << 20 ? 2 : made);
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

TEST_CASE("the wait for another process has an end") {
  TempDir dir;
  Put(dir.File("a.txt"), "text");
  PrepareOptions options = Options(dir, {"a.txt"});
  ManualClock clock;
  options.clock = &clock;
  const auto path = PrepareTokenFile(options);
  REQUIRE_OK(path);
  REQUIRE_OK(RemoveTree(*path));
  UniqueFd holder(open(absl::StrCat(*path, ".lock").c_str(), O_RDWR));
  REQUIRE(flock(holder.get(), LOCK_EX) == 0);
  CHECK_STATUS(PrepareTokenFile(options), absl::StatusCode::kDeadlineExceeded, ".bin.lock");
  holder.Reset();
  CHECK(*PrepareTokenFile(options) == *path);
}

TEST_CASE("a token file that was damaged in the cache is made again") {
  TempDir dir;
  Put(dir.File("a.txt"), "text");
  const auto path = PrepareTokenFile(Options(dir, {"a.txt"}));
  REQUIRE_OK(path);
  Put(*path, ReadFile(*path)->substr(0, 66));
  CHECK_STATUS(TokenFile::Open(*path), absl::StatusCode::kDataLoss, "66 bytes instead of 68");
  CHECK(*PrepareTokenFile(Options(dir, {"a.txt"})) == *path);
  CHECK(TextOf(*path) == "text");
}

template <typename T>
void WriteTokens(const std::string& path, int vocabulary_size, const std::vector<T>& tokens) {
  auto writer = TokenFileWriter::Create(path, sizeof(T), vocabulary_size, 42);
  REQUIRE_OK(writer);
  REQUIRE_OK(writer->Append(absl::MakeConstSpan(reinterpret_cast<const char*>(tokens.data()),
                                                tokens.size() * sizeof(T))));
  REQUIRE_OK(writer->Finish());
}

TEST_CASE("tokens of one, two and four bytes are read back") {
  TempDir dir;
  const auto read_two = [&](int64_t first) {
    const auto file = TokenFile::Open(dir.File("t"));
    REQUIRE_OK(file);
    std::vector<int32_t> tokens(2);
    file->Read(first, 2, tokens.data());
    return tokens;
  };
  using Tokens = std::vector<int32_t>;
  WriteTokens<uint8_t>(dir.File("t"), 256, {1, 255, 3});
  CHECK(read_two(1) == Tokens{255, 3});
  WriteTokens<uint16_t>(dir.File("t"), 50257, {1, 50256, 40000});
  CHECK(read_two(1) == Tokens{50256, 40000});
  WriteTokens<uint32_t>(dir.File("t"), 128256, {7, 128255, 3});
  CHECK(read_two(0) == Tokens{7, 128255});
  CHECK(TokenFile::Open(dir.File("t"))->source_key() == 42);
  CHECK_STATUS(TokenFileWriter::Create(dir.File("t"), 2, 128256, 0),
               absl::StatusCode::kInvalidArgument, "128256 tokens do not fit 2 bytes");
}

TEST_CASE("the content's hash is of the tokens, not of their files or of how they were written") {
  TempDir dir;
  const auto hash_of = [](const std::string& path) {
    return TokenFile::Open(path)->content_hash();
  };
  auto in_pieces = TokenFileWriter::Create(dir.File("pieces"), 1, 256, 7);
  REQUIRE_OK(in_pieces);
  for (const char token : {1, 2, 3}) REQUIRE_OK(in_pieces->Append(absl::MakeConstSpan(&token, 1)));
  REQUIRE_OK(in_pieces->Finish());
  WriteTokens<uint8_t>(dir.File("same"), 256, {1, 2, 3});
  WriteTokens<uint8_t>(dir.File("other"), 256, {1, 2, 4});
  CHECK(hash_of(dir.File("pieces")) == hash_of(dir.File("same")));
  CHECK(hash_of(dir.File("other")) != hash_of(dir.File("same")));
  const auto same = Dataset::Open(dir.File("same"), 1, 0);
  const auto other = Dataset::Open(dir.File("other"), 1, 0);
  CHECK_THAT(same->Identity(), Catch::StartsWith("3 tokens with hash "));
  CHECK(same->Identity() != other->Identity());
  CHECK(same->SamplesText() == absl::StrCat(same->training_samples(), " training samples of ",
                                            same->sequence_length(), " tokens"));
}

TEST_CASE("a damaged or unfinished token file is refused") {
  TempDir dir;
  WriteTokens<uint8_t>(dir.File("t"), 256, {1, 2, 3});
  const std::string whole = *ReadFile(dir.File("t"));
  for (size_t i = 0; i < 64; ++i) {
    std::string flipped = whole;
    flipped[i] ^= 4;
    Put(dir.File("t"), flipped);
    CHECK(!TokenFile::Open(dir.File("t")).ok());
  }
  Put(dir.File("t"), std::string(64, '\0') + "abc");
  CHECK_STATUS(TokenFile::Open(dir.File("t")), absl::StatusCode::kDataLoss, "never finished");
  Put(dir.File("t"), "short");
  CHECK_STATUS(TokenFile::Open(dir.File("t")), absl::StatusCode::kDataLoss, "shorter than");
  CHECK_STATUS(TokenFile::Open(dir.File("none")), absl::StatusCode::kNotFound, "none");
}

// A file of the tokens 0, 1, 2, ...
std::string Counting(const TempDir& dir, int tokens) {
  std::vector<uint16_t> values(tokens);
  for (int i = 0; i < tokens; ++i) values[i] = static_cast<uint16_t>(i);
  WriteTokens<uint16_t>(dir.File("counting"), 65536, values);
  return dir.File("counting");
}

TEST_CASE("a training row is its sample, its targets the tokens one later") {
  TempDir dir;
  const auto data = Dataset::Open(Counting(dir, 43), 4, 0.0);
  REQUIRE_OK(data);
  CHECK(data->training_samples() == 10);
  CHECK(data->validation_samples() == 0);
  const std::vector<int64_t> positions = {0, 25, kNoSample};
  std::vector<int32_t> inputs(12, 99), targets(12, 99);
  data->FillMicrobatch(7, positions, inputs.data(), targets.data());
  for (int row = 0; row < 2; ++row) {
    const int64_t sample = SampleAt(7, 10, positions[row]);
    for (int i = 0; i < 4; ++i) {
      CHECK(inputs[row * 4 + i] == sample * 4 + i);
      CHECK(targets[row * 4 + i] == sample * 4 + i + 1);
    }
  }
  CHECK(std::vector<int32_t>(inputs.begin() + 8, inputs.end()) == std::vector<int32_t>(4, 0));
  CHECK(std::vector<int32_t>(targets.begin() + 8, targets.end()) == std::vector<int32_t>(4, -1));
}

TEST_CASE("the tail is held out, and training never has it as input") {
  TempDir dir;
  const auto data = Dataset::Open(Counting(dir, 41), 4, 0.25);
  REQUIRE_OK(data);
  CHECK(data->training_samples() == 8);
  CHECK(data->validation_samples() == 2);
  std::vector<int32_t> inputs(4), targets(4);
  for (int64_t position = 0; position < 8; ++position) {
    data->FillMicrobatch(1, absl::MakeConstSpan(&position, 1), inputs.data(), targets.data());
    CHECK(inputs[3] < 32);
  }
  const std::vector<int64_t> second = {1};
  data->FillValidation(second, inputs.data(), targets.data());
  CHECK(inputs == std::vector<int32_t>{36, 37, 38, 39});
  CHECK(targets == std::vector<int32_t>{37, 38, 39, 40});
}

TEST_CASE("a token that occurs is found, wherever it stands") {
  TempDir dir;
  const auto data = Dataset::Open(Counting(dir, 41), 4, 0.25);
  REQUIRE_OK(data);
  for (const int32_t token : {0, 20, 40}) CHECK(data->Contains(token));
  CHECK_FALSE(data->Contains(41));
  CHECK_FALSE(data->Contains(-1));
}

TEST_CASE("the smallest fraction holds out one sample") {
  TempDir dir;
  const auto data = Dataset::Open(Counting(dir, 41), 4, 0.001);
  REQUIRE_OK(data);
  CHECK(data->validation_samples() == 1);
  CHECK(data->training_samples() == 9);
}

TEST_CASE("too little data says how much is needed") {
  TempDir dir;
  const std::string path = Counting(dir, 812);
  CHECK_STATUS(Dataset::Open(path, 1024, 0.0), absl::StatusCode::kInvalidArgument,
               "data has 812 tokens; sequence_length 1024 needs at least 1025");
  CHECK_OK(Dataset::Open(path, 811, 0.0));
  CHECK_STATUS(Dataset::Open(path, 811, 0.1), absl::StatusCode::kInvalidArgument,
               "needs at least 1623 (one training sample and one validation sample)");
  CHECK_STATUS(Dataset::Open(path, 0, 0.1), absl::StatusCode::kInvalidArgument,
               "sequence_length 0");
  CHECK_STATUS(Dataset::Open(path, 8, 1.0), absl::StatusCode::kInvalidArgument,
               "validation_fraction 1");
}

}  // namespace
}  // namespace convene::worker
