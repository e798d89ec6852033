#include "agent/output/rotating_file.h"

#include <sys/stat.h>
#include <zlib.h>

#include <catch2/catch.hpp>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "tools/base/files.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"

namespace convene::agent {
namespace {

std::string Gunzip(const std::string& path) {
  gzFile file = gzopen(path.c_str(), "rb");
  REQUIRE(file != nullptr);
  std::string content(1 << 22, '\0');
  const int n = gzread(file, content.data(), content.size());
  REQUIRE(n >= 0);
  CHECK(gzclose(file) == Z_OK);
  content.resize(n);
  return content;
}

struct Fixture {
  std::string Path(const std::string& suffix = "") { return directory.File("x/out.log") + suffix; }
  RotatingFile::Options Options(int64_t max_bytes, int max_old_files) {
    return {Path(), max_bytes, max_old_files};
  }
  std::string Read(const std::string& suffix = "") {
    const auto content = ReadFile(Path(suffix));
    return content.ok() ? *content : absl::StrCat("<", content.status().ToString(), ">");
  }
  std::vector<std::string> Names() {
    const auto names = ListDirectory(directory.File("x"));
    return names.ok() ? *names : std::vector<std::string>();
  }
  static void Add(RotatingFile& file, absl::string_view bytes) {
    size_t done = 0;
    REQUIRE_OK(file.Append(bytes, &done));
    CHECK(done == bytes.size());
  }
  static void CompressAll(RotatingFile& file) {
    while (file.has_uncompressed()) file.CompressSome();
  }

  testing::TempDir directory;
};

TEST_CASE_METHOD(Fixture, "without a cap the bytes go into one file as they are") {
  RotatingFile file(Options(0, 5));
  Add(file, std::string("a\r\n\0b", 5));
  CHECK_FALSE(file.at_line_start());
  Add(file, "\n");
  CHECK(file.at_line_start());
  CHECK(Read() == std::string("a\r\n\0b\n", 6));
}

TEST_CASE_METHOD(Fixture, "a file is rotated between lines, and the oldest goes") {
  RotatingFile file(Options(10, 2));
  Add(file, "line1\nline2\nline3\n");
  Add(file, "line4\nline5\n");
  CHECK(Read() == "line5\n");
  CHECK(Read(".1") == "line4\n");
  CHECK(Read(".2") == "line3\n");
  CompressAll(file);
  CHECK(Names() == std::vector<std::string>{"out.log", "out.log.1.gz", "out.log.2.gz"});
  CHECK(Gunzip(Path(".1.gz")) == "line4\n");
  CHECK(Gunzip(Path(".2.gz")) == "line3\n");
  Add(file, "line6\n");
  CHECK(Names() == std::vector<std::string>{"out.log", "out.log.1", "out.log.2.gz"});
  CHECK(Gunzip(Path(".2.gz")) == "line4\n");
}

TEST_CASE_METHOD(Fixture, "no line is torn between two files, whatever the pieces it comes in") {
  std::string text;
  for (int i = 0; i < 2000; ++i) absl::StrAppend(&text, "line ", i, "\n");
  RotatingFile file(Options(1000, 100));
  for (size_t at = 0; at < text.size(); at += 37) Add(file, absl::string_view(text).substr(at, 37));
  CompressAll(file);
  std::string all = Read();
  CHECK(all.size() <= 1000);
  for (int number = 1; number < static_cast<int>(Names().size()); ++number) {
    const std::string part = Gunzip(Path(absl::StrCat(".", number, ".gz")));
    CHECK(part.size() <= 1000 + sizeof("line 1999"));
    CHECK(part.back() == '\n');
    all = part + all;
  }
  CHECK(all == text);
}

TEST_CASE_METHOD(Fixture, "a line longer than the cap stays whole, one without end does not") {
  RotatingFile file(Options(10, 3));
  Add(file, "a\n" + std::string(50, 'x') + "\nb\n");
  CHECK(Read() == "b\n");
  CHECK(Read(".1") == std::string(50, 'x') + "\n");
  CHECK(Read(".2") == "a\n");
  const std::string endless(3 * RotatingFile::kLongestLine, '\r');
  Add(file, endless);
  CHECK(Read(".1").size() <= RotatingFile::kLongestLine + 10);
}

TEST_CASE_METHOD(Fixture, "with no old files to keep, the file starts anew") {
  RotatingFile file(Options(10, 0));
  Add(file, "line1\nline2\nline3\n");
  CHECK(Names() == std::vector<std::string>{"out.log"});
  CHECK(Read() == "line3\n");
}

TEST_CASE_METHOD(Fixture, "rotations go on while an old file is being compressed") {
  std::string lines;
  while (lines.size() < (1 << 20)) absl::StrAppend(&lines, "a line of a log ", lines.size(), "\n");
  RotatingFile file(Options(lines.size(), 3));
  Add(file, lines);
  Add(file, "first\n");
  file.CompressSome();  // Begun, not done.
  Add(file, lines);
  Add(file, "second\n");
  CompressAll(file);
  CHECK(Names() == std::vector<std::string>{"out.log", "out.log.1.gz", "out.log.2.gz"});
  CHECK((Gunzip(Path(".1.gz")) + Read() == "first\n" + lines + "second\n"));
  CHECK((Gunzip(Path(".2.gz")) == lines));
  struct stat info;
  REQUIRE(stat(Path(".1.gz").c_str(), &info) == 0);
  CHECK(info.st_size < (1 << 19));
}

TEST_CASE_METHOD(Fixture, "what is being compressed may be removed by further rotations") {
  std::string lines;
  while (lines.size() < (1 << 20)) lines += "0123456789abcde\n";
  {
    RotatingFile file(Options(1 << 20, 1));
    Add(file, lines);
    Add(file, "x\n");
    file.CompressSome();
    Add(file, lines);
    Add(file, "y\n");
    CHECK(Names() == std::vector<std::string>{"out.log", "out.log.1"});
    file.CompressSome();  // Destroyed in the middle: the old file stays, uncompressed.
  }
  CHECK(Names() == std::vector<std::string>{"out.log", "out.log.1"});
}

TEST_CASE_METHOD(Fixture, "a full disk is an error that says how far it came, and may pass") {
  RotatingFile file(Options(0, 5));
  Add(file, "before\n");
  size_t done = 0;
  {
    const ScopedFileFault full(
        [](FileOp op, const std::string&) { return op == FileOp::kWrite ? ENOSPC : 0; });
    CHECK_STATUS(file.Append("lost\n", &done), absl::StatusCode::kResourceExhausted, "out.log");
    CHECK(done == 0);
  }
  Add(file, "after\n");
  CHECK(Read() == "before\nafter\n");
}

TEST_CASE_METHOD(Fixture, "a folder that was cleared away is made again at the next rotation") {
  RotatingFile file(Options(10, 2));
  Add(file, "line1\n");
  REQUIRE_OK(RemoveTree(directory.File("x")));
  Add(file, "line2\n");
  CHECK(Read() == "line2\n");
}

}  // namespace
}  // namespace convene::agent
