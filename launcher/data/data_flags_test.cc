#include "launcher/data/data_flags.h"

#include <optional>
#include <string>
#include <vector>

#include "tools/base/testing/status_testing.h"

namespace convene::launcher {
namespace {

using Words = std::vector<std::string>;

template <typename Flags>
absl::Status Read(const Words& words, Flags* flags) {
  FlagReader reader("convene data x", "Words.");
  AddFlags(&reader, flags);
  return reader.Read(words, [](const std::string&) { return std::optional<std::string>(); })
      .status();
}

TEST_CASE("prepare takes its inputs before, between and behind its flags") {
  PrepareFlags flags;
  REQUIRE_OK(Read({"a.txt", "--output", "a.bin", "b*.jsonl", "--threads=3", "--dedupe",
                   "--document-separator", "\\n--\\n", "--max-document-bytes", "2M", "c"},
                  &flags));
  CHECK(flags.options.input.patterns == Words{"a.txt", "b*.jsonl", "c"});
  CHECK(flags.output == "a.bin");
  CHECK(flags.tokenizer.empty());
  CHECK(flags.options.threads == 3);
  CHECK(flags.options.dedupe);
  CHECK(flags.options.append_end_of_document);
  CHECK(flags.options.input.document_separator == "\n--\n");
  CHECK(flags.options.input.max_document_bytes == 2 << 20);
  CHECK(flags.options.input.format == worker::InputFormat::kAuto);
}

TEST_CASE("what prepare cannot mean is refused") {
  const auto check = [](const Words& more, const std::string& why) {
    Words words = {"a", "--output", "b"};
    words.insert(words.end(), more.begin(), more.end());
    PrepareFlags flags;
    CHECK_STATUS(Read(words, &flags), absl::StatusCode::kInvalidArgument, why);
  };
  check({"--no-eod", "--append-eod"}, "exclude each other");
  check({"--compact-vocabulary", "--vocabulary-of", "a.bin"}, "give one of them");
  check({"--max-document-bytes", "2T"}, "write bytes");
  check({"--max-document-bytes", "9999999999999"}, "write bytes");
  check({"--max-document-bytes", "0"}, "write bytes");
  check({"--max-bad-lines", "-1"}, "at least 0");
  check({"--max-bad-lines", "1.5"}, "whole number");
  check({"--document-separator", "\\q"}, "write a text");
  check({"--format", "csv"}, "csv");
  check({"--threads", "0"}, "threads");
  PrepareFlags no_output, no_input;
  CHECK_STATUS(Read({"a"}, &no_output), absl::StatusCode::kInvalidArgument, "--output is missing");
  CHECK_STATUS(Read({"--output", "b"}, &no_input), absl::StatusCode::kInvalidArgument, "no input");
}

TEST_CASE("the other commands want their files") {
  ShowFlags show;
  CHECK_STATUS(Read({}, &show), absl::StatusCode::kInvalidArgument, "name a token file");
  REQUIRE_OK(Read({"a.bin", "--format", "ids", "--first", "5"}, &show));
  CHECK(show.file == "a.bin");
  CHECK(show.first == 5);
  VerifyFlags verify;
  CHECK_STATUS(Read({}, &verify), absl::StatusCode::kInvalidArgument, "name token files");
  BlendFlags blend;
  CHECK_STATUS(Read({}, &blend), absl::StatusCode::kInvalidArgument, "a.bin:0.7,b.bin:0.3");
  ConvertFlags convert;
  CHECK_STATUS(Read({"a.bin", "b"}, &convert), absl::StatusCode::kInvalidArgument, "--to");
  CHECK_STATUS(Read({"a", "b", "c", "--to", "llmc"}, &convert), absl::StatusCode::kInvalidArgument,
               "name two files");
  convert = {};
  REQUIRE_OK(Read({"a", "b", "--to", "llmc"}, &convert));
  CHECK(convert.input == "a");
  CHECK(convert.output == "b");
  CHECK(convert.to == worker::TokenFormat::kLlmc);
}

TEST_CASE("the cache's bounds are those of the trainer unless they are given") {
  CacheFlags flags;
  REQUIRE_OK(Read({"--dir", "/cache"}, &flags));
  CHECK_FALSE(flags.prune);
  CHECK(flags.bounds.unused_max == absl::Hours(30 * 24));
  CHECK_FALSE(flags.bounds.bytes_max.has_value());
  REQUIRE_OK(Read({"--dir=/cache", "--prune", "--unused-days=0.5", "--max-bytes=2G"}, &flags));
  CHECK(flags.prune);
  CHECK(flags.directory == "/cache");
  CHECK(flags.bounds.unused_max == absl::Hours(12));
  CHECK(flags.bounds.bytes_max == int64_t{2} << 30);
  REQUIRE_OK(Read({"--dir=/cache", "--all"}, &flags));
  CHECK(flags.bounds.bytes_max == 0);
  CHECK_STATUS(Read({"--unused-days", "soon"}, &flags), absl::StatusCode::kInvalidArgument,
               "write days");
}

}  // namespace
}  // namespace convene::launcher
