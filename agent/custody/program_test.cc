#include "agent/custody/program.h"

#include <sys/stat.h>

#include <catch2/catch.hpp>

#include "tools/base/files.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"

namespace convene::agent {
namespace {

TEST_CASE("a program is found in PATH as a shell finds it") {
  testing::TempDir directory;
  REQUIRE_OK(MakeDirectories(directory.File("first")));
  REQUIRE_OK(MakeDirectories(directory.File("second")));
  REQUIRE_OK(WriteFileAtomic(directory.File("first/tool"), "data"));
  REQUIRE_OK(WriteFileAtomic(directory.File("second/tool"), "#!/bin/sh\n"));
  const std::string path = directory.File("first") + ":" + directory.File("second");
  CHECK_STATUS(FindProgram("tool", path), absl::StatusCode::kPermissionDenied, "chmod +x");
  chmod(directory.File("second/tool").c_str(), 0755);
  const auto found = FindProgram("tool", path);
  REQUIRE_OK(found);
  CHECK(*found == directory.File("second/tool"));
}

TEST_CASE("a missing program is told with where it was looked for") {
  CHECK_STATUS(FindProgram("no-such-tool", "/usr/bin:/bin"), absl::StatusCode::kNotFound,
               "not found in PATH (/usr/bin:/bin)");
  CHECK_STATUS(FindProgram("./no-such-tool", "/bin"), absl::StatusCode::kNotFound,
               "does not exist");
  CHECK_STATUS(FindProgram("/tmp", ""), absl::StatusCode::kInvalidArgument, "/tmp is a directory");
  CHECK_STATUS(FindProgram("", "/bin"), absl::StatusCode::kNotFound, "empty");
}

}  // namespace
}  // namespace convene::agent
