#include <cerrno>
#include <csignal>

#include "tools/base/backoff.h"
#include "tools/base/clock.h"
#include "tools/base/exit_code.h"
#include "tools/base/files.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"
#include "tools/base/text.h"

namespace convene {
namespace {

using testing::TempDir;

TEST_CASE("an atomic write leaves the old content when the disk is full") {
  TempDir dir;
  const std::string path = dir.File("manifest");
  REQUIRE_OK(WriteFileAtomic(path, "old"));
  {
    ScopedFileFault fault(
        [](FileOp op, const std::string&) { return op == FileOp::kWrite ? ENOSPC : 0; });
    CHECK_STATUS(WriteFileAtomic(path, "new"), absl::StatusCode::kResourceExhausted, path);
  }
  CHECK(*ReadFile(path) == "old");
  CHECK(ListDirectory(dir.path())->size() == 1);
}

TEST_CASE("an atomic write that cannot be renamed removes its temporary file") {
  TempDir dir;
  ScopedFileFault fault(
      [](FileOp op, const std::string&) { return op == FileOp::kRename ? EACCES : 0; });
  CHECK_STATUS(WriteFileAtomic(dir.File("a"), "x"), absl::StatusCode::kPermissionDenied, "rename");
  CHECK(ListDirectory(dir.path())->empty());
}

TEST_CASE("a missing file is NotFound and named") {
  CHECK_STATUS(ReadFile("/no/such/file"), absl::StatusCode::kNotFound, "/no/such/file");
}

TEST_CASE("the closest match forgives dashes and typing slips, not other words") {
  const std::vector<std::string> keys = {"tp-size", "pp-size", "learning-rate", "micro-batch-size"};
  CHECK(ClosestMatch("tp_size", keys) == "tp-size");
  CHECK(ClosestMatch("learning-rat", keys) == "learning-rate");
  CHECK(ClosestMatch("microbatch_size", keys) == "micro-batch-size");
  CHECK(ClosestMatch("checkpoint", keys).empty());
}

TEST_CASE("long lists are capped") {
  CHECK(JoinCapped({"a", "b", "c", "d"}, 2) == "a, b and 2 more");
  CHECK(JoinCapped({"a", "b"}, 2) == "a, b");
}

TEST_CASE("back-off doubles up to its limit") {
  Backoff backoff(absl::Seconds(1), absl::Seconds(3));
  CHECK(backoff.Next(0.0) == absl::Milliseconds(500));
  CHECK(backoff.Next(0.0) == absl::Seconds(1));
  CHECK(backoff.Next(0.0) == absl::Milliseconds(1500));
  CHECK(backoff.Next(0.0) == absl::Milliseconds(1500));
}

TEST_CASE("exit codes follow the table") {
  CHECK(ExitCodeForStatus(absl::InvalidArgumentError("")) == ExitCode::kUsage);
  CHECK(ExitCodeForStatus(absl::UnavailableError("")) == ExitCode::kUnavailable);
  CHECK(ExitCodeForStatus(absl::AbortedError("")) == ExitCode::kMembershipChanged);
  CHECK(ExitCodeForSignal(SIGTERM) == 143);
  CHECK_THAT(ExitCodeTable(), Catch::Contains("75") && Catch::Contains("128+n"));
}

}  // namespace
}  // namespace convene
