#include "launcher/log_options.h"

#include "tools/base/testing/status_testing.h"

namespace convene::launcher {
namespace {

using agent::LogOptions;
using agent::Streams;
using Words = std::vector<std::string>;

LogOptions Good(const RunFlags& flags) {
  auto log = MakeLogOptions(flags);
  REQUIRE_OK(log);
  return *std::move(log);
}

RunFlags AsTorchrun() {
  RunFlags flags;
  flags.as_torchrun = true;
  return flags;
}

TEST_CASE("streams are a number for all, or one for each local rank named") {
  RunFlags flags;
  flags.redirects = "3";
  flags.tee = "0:1,2:2";
  const LogOptions log = Good(flags);
  CHECK(log.redirects.Of(5) == Streams::kBoth);
  CHECK(log.tee.Of(0) == Streams::kStdout);
  CHECK(log.tee.Of(1) == Streams::kNone);
  CHECK(log.tee.Of(2) == Streams::kStderr);
  for (const char* bad : {"", "4", "-1", "x", "0:4", "0:", ":1", "0:1,", "-1:1"}) {
    flags.tee = bad;
    CHECK_STATUS(MakeLogOptions(flags), absl::StatusCode::kInvalidArgument,
                 std::string("--tee ") + bad);
  }
}

TEST_CASE("a log directory alone means all output, to torchrun only error files") {
  RunFlags flags;
  flags.options.log.directory = "d";
  CHECK(Good(flags).tee.Of(0) == Streams::kBoth);
  flags.redirects = "1";
  CHECK(Good(flags).tee.Of(0) == Streams::kNone);
  CHECK(Good(RunFlags()).tee.Of(0) == Streams::kNone);
  flags = AsTorchrun();
  flags.options.log.directory = "d";
  CHECK(Good(flags).tee.Of(0) == Streams::kNone);
  CHECK(Good(flags).directory == "d");
}

TEST_CASE("a filter alone means all output too, to torchrun nothing") {
  RunFlags flags;
  flags.duplicate_stderr_filters = "Error";
  CHECK(Good(flags).tee.Of(0) == Streams::kBoth);
  flags.as_torchrun = true;
  CHECK(Good(flags).tee.Of(0) == Streams::kNone);
}

TEST_CASE("filters are words between commas, two commas are one") {
  RunFlags flags;
  flags.duplicate_stdout_filters = "a,,b,c d,";
  CHECK(Good(flags).stdout_filters == Words{"a,b", "c d"});
  CHECK(Good(flags).stderr_filters.empty());
}

TEST_CASE("the ranks shown on the console are those of the flag") {
  RunFlags flags;
  flags.options.log.shown_local_ranks = {0, 2};
  CHECK(Good(flags).shown_local_ranks == std::set<int>{0, 2});
}

TEST_CASE("the prefix is the flag's, else the variable's, else each name's own") {
  CHECK(Good(RunFlags()).prefix_template == "[${rank}] ");
  CHECK(Good(RunFlags()).prefix_all);
  CHECK(Good(AsTorchrun()).prefix_template == "[${role_name}${local_rank}]:");
  CHECK_FALSE(Good(AsTorchrun()).prefix_all);
  RunFlags flags = AsTorchrun();
  flags.log_line_prefix_template = "${hostname}:";
  CHECK(Good(flags).prefix_template == "${hostname}:");
}

TEST_CASE("a size has a unit of 1024s and a floor") {
  const auto bytes = [](const std::string& text) {
    RunFlags flags;
    flags.log_max_bytes = text;
    return Good(flags).max_file_bytes;
  };
  CHECK(bytes("8192") == 8192);
  CHECK(bytes("100M") == 100 << 20);
  CHECK(bytes("1.5GiB") == 3LL << 29);
  CHECK(bytes("64kb") == 64 << 10);
  CHECK(bytes("0") == 0);
  RunFlags flags;
  for (const char* bad : {"100", "0.5", "M", "-1M", "1X", "9999999T"}) {
    flags.log_max_bytes = bad;
    CHECK_STATUS(MakeLogOptions(flags), absl::StatusCode::kInvalidArgument, "--log-max-bytes");
  }
}

}  // namespace
}  // namespace convene::launcher
