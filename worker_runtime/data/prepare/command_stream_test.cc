#include "worker_runtime/data/prepare/command_stream.h"

#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "tools/base/files.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"
#include "worker_runtime/data/prepare/testing/packed_files.h"

namespace convene::worker {
namespace {

using convene::testing::TempDir;

absl::StatusOr<std::string> ReadAll(SourceFile source, const std::string& command,
                                    absl::Duration patience = absl::Minutes(1)) {
  source.command = CommandFor(command, source.path);
  const auto stream = OpenCommand(source, patience);
  if (!stream.ok()) return stream.status();
  std::string text(1 << 20, '\0');
  const auto n = (*stream)->Read(text.data(), text.size());
  if (!n.ok()) return n.status();
  CHECK((*stream)->file_offset() == source.bytes);
  return text.substr(0, *n);
}

TEST_CASE("a command's output is the content, whatever the file's name is") {
  const TempDir dir;
  for (const char* const name : {"plain", "two words", "it's", "$(reboot)", "\"quoted\"", "-n"}) {
    INFO(name);
    const SourceFile source = PutSource(dir.File(name), "some text\n");
    CHECK(*ReadAll(source, "tr a-z A-Z < {} && cat {}") == "SOME TEXT\nsome text\n");
  }
}

TEST_CASE("a command sees no input, and its many words on standard error stop nothing") {
  const TempDir dir;
  const SourceFile source = PutSource(dir.File("a"), "x");
  CHECK(*ReadAll(source, "cat; head -c 1000000 /dev/zero | tr '\\0' w >&2; echo done") == "done\n");
}

TEST_CASE("a command that fails is told, with its last words") {
  const TempDir dir;
  const SourceFile source = PutSource(dir.File("a"), "x");
  CHECK_STATUS(ReadAll(source, "echo text; echo 'no such column' >&2; exit 3"),
               absl::StatusCode::kFailedPrecondition, "ended with exit code 3: no such column");
  CHECK_STATUS(ReadAll(source, "echo 'it is cut off' >&2; exit 65"), absl::StatusCode::kDataLoss,
               "ended with exit code 65: it is cut off");
  CHECK_STATUS(ReadAll(source, "no-such-program {}"), absl::StatusCode::kFailedPrecondition,
               "ended with exit code 127");
  CHECK_STATUS(ReadAll(source, "kill -9 $$"), absl::StatusCode::kUnavailable,
               "was ended by signal 9");
  CHECK_STATUS(ReadAll(source, "sh -c 'kill -9 $$'; exit $?"), absl::StatusCode::kUnavailable,
               "ended with exit code 137");
  CHECK_STATUS(ReadAll(source, "exit 255"), absl::StatusCode::kFailedPrecondition,
               "ended with exit code 255");
  CHECK_STATUS(ReadAll(source, "exec sleep 1000", absl::Milliseconds(20)),
               absl::StatusCode::kDeadlineExceeded, "gave nothing for 20ms");
  CHECK_STATUS(ReadAll(source, "cat {}; echo more >> {}"), absl::StatusCode::kFailedPrecondition,
               "changed while it was read");
}

TEST_CASE("a stream that goes early ends its command") {
  const TempDir dir;
  SourceFile source = PutSource(dir.File("a"), "x");
  source.command = "yes | cat";
  const auto stream = OpenCommand(source);
  REQUIRE_OK(stream.status());
  char buffer[4];
  REQUIRE((*stream)->Read(buffer, sizeof(buffer)).value() == 4);
  CHECK(std::string(buffer, 4) == "y\ny\n");
}

TEST_CASE("a command whose output comes is told to come further, and never to be at the end") {
  const TempDir dir;
  SourceFile source = PutSource(dir.File("a"), std::string(1000, 'x'));
  source.command = "exec yes";
  const auto stream = OpenCommand(source);
  REQUIRE_OK(stream.status());
  int64_t before = (*stream)->file_offset();
  CHECK(before == 0);
  char buffer[1000];
  for (int i = 0; i < 10; ++i) {
    REQUIRE((*stream)->Read(buffer, sizeof(buffer)).value() == sizeof(buffer));
    CHECK((*stream)->file_offset() > before);
    before = (*stream)->file_offset();
    CHECK(before < 1000);
  }
}

TEST_CASE("a missing Python is told by its name, and a Python is called with the file's columns") {
  const TempDir dir;
  SourceFile source = PutSource(dir.File("a b.parquet"), "PAR1");
  CHECK_STATUS(ReadAll(source, ParquetCommand("/no/python", {"text"}, source.path)),
               absl::StatusCode::kFailedPrecondition,
               "there is no program /no/python, which is to read Parquet: name another Python by "
               "`convene data prepare --python`");
  REQUIRE_OK(WriteFileAtomic(dir.File("python"), "#!/bin/sh\nshift 2; printf '%s|' \"$@\"\n"));
  REQUIRE(chmod(dir.File("python").c_str(), 0755) == 0);
  CHECK(*ReadAll(source, ParquetCommand(dir.File("python"), {"text", "it's"}, source.path)) ==
        absl::StrCat(source.path, "|text|it's|"));
  CHECK(*ReadAll(source, ParquetCommand(dir.File("python"), {}, source.path)) ==
        absl::StrCat(source.path, "|"));
}

// A Python with a pyarrow of ours: each file has the column "text" and one row, or is damaged, or
// may not be read.
std::string PythonWithPyarrow(const TempDir& dir) {
  REQUIRE_OK(MakeDirectories(dir.File("pyarrow")));
  REQUIRE_OK(
      WriteFileAtomic(dir.File("pyarrow/__init__.py"), "class ArrowInvalid(ValueError): pass\n"));
  REQUIRE_OK(WriteFileAtomic(dir.File("pyarrow/parquet.py"), R"(from pyarrow import ArrowInvalid
class ParquetFile:
    class schema_arrow:
        names = ["id", "text"]
    def __init__(self, path):
        self.content = open(path).read()
        if self.content == "cut off":
            raise ArrowInvalid("no footer")
        if self.content == "flipped":
            raise OSError("corrupt snappy data")
        if self.content == "refused":
            raise PermissionError(13, "not allowed")
    def __enter__(self):
        return self
    def __exit__(self, *_):
        pass
    def iter_batches(self, batch_size, columns):
        yield self
    def to_pylist(self):
        return [{"text": "caf\u00e9"}]
)"));
  REQUIRE_OK(WriteFileAtomic(
      dir.File("python"),
      absl::StrCat("#!/bin/sh\nexec env PYTHONPATH='", dir.path(),
                   "' PYTHONIOENCODING=ascii PYTHONDONTWRITEBYTECODE=1 python3 \"$@\"\n")));
  REQUIRE(chmod(dir.File("python").c_str(), 0755) == 0);
  return dir.File("python");
}

TEST_CASE("the reader of Parquet writes UTF-8, and tells a damaged file from a wrong column") {
  const TempDir dir;
  const std::string python = PythonWithPyarrow(dir);
  const auto read = [&](const std::string& content, const std::string& column) {
    const SourceFile source = PutSource(dir.File("a.parquet"), content);
    return ReadAll(source, ParquetCommand(python, {column}, source.path));
  };
  const auto text = read("whole", "text");
  REQUIRE_OK(text);
  CHECK(*text == "{\"text\": \"caf\xc3\xa9\"}\n");
  CHECK_STATUS(read("whole", "body"), absl::StatusCode::kFailedPrecondition,
               "it has no column 'body' (`convene data prepare --field NAME` takes another): it "
               "has id, text");
  CHECK_STATUS(read("cut off", "text"), absl::StatusCode::kDataLoss, "it is damaged: no footer");
  CHECK_STATUS(read("flipped", "text"), absl::StatusCode::kDataLoss, "corrupt snappy data");
  CHECK_STATUS(read("refused", "text"), absl::StatusCode::kFailedPrecondition, "not allowed");
}

}  // namespace
}  // namespace convene::worker
