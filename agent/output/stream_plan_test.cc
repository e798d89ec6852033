#include "agent/output/stream_plan.h"

#include <catch2/catch.hpp>

namespace convene::agent {
namespace {

StreamPlan Out(const LogOptions& options, int local_rank = 0) {
  return PlanStream(options, OutputStream::kStdout, local_rank);
}
StreamPlan Err(const LogOptions& options, int local_rank = 0) {
  return PlanStream(options, OutputStream::kStderr, local_rank);
}

TEST_CASE("a stream with neither word is on the console only") {
  const LogOptions options;
  CHECK(Out(options).on_console);
  CHECK_FALSE(Out(options).in_file);
  CHECK_FALSE(WritesFiles(options, 8));
}

TEST_CASE("redirected is file only, teed is both, and tee wins") {
  LogOptions options;
  options.redirects.others = Streams::kBoth;
  options.tee.others = Streams::kStderr;
  CHECK(Out(options).in_file);
  CHECK_FALSE(Out(options).on_console);
  CHECK(Err(options).in_file);
  CHECK(Err(options).on_console);
}

TEST_CASE("each local rank has its own words, and the unnamed have none") {
  LogOptions options;
  options.redirects.by_local_rank = {{0, Streams::kStdout}};
  options.tee.by_local_rank = {{2, Streams::kBoth}};
  CHECK_FALSE(Out(options, 0).on_console);
  CHECK(Err(options, 0).on_console);
  CHECK_FALSE(Out(options, 1).in_file);
  CHECK(Out(options, 2).in_file);
  CHECK(WritesFiles(options, 1));
  options.redirects.by_local_rank.clear();
  CHECK_FALSE(WritesFiles(options, 2));
  CHECK(WritesFiles(options, 3));
}

TEST_CASE("the filter of ranks is about the console only") {
  LogOptions options;
  options.shown_local_ranks = {1};
  options.tee.by_local_rank = {{0, Streams::kStdout}};
  CHECK_FALSE(Out(options, 0).on_console);
  CHECK(Out(options, 0).in_file);
  CHECK_FALSE(Err(options, 0).on_console);
  CHECK_FALSE(Err(options, 0).in_file);
  CHECK(Out(options, 1).on_console);
}

TEST_CASE("the filters of lines look at teed streams that are shown, as in torchrun") {
  LogOptions options;
  options.stdout_filters = {"loss"};
  CHECK_FALSE(Out(options).filtered);
  options.tee.others = Streams::kBoth;
  CHECK(Out(options).filtered);
  CHECK_FALSE(Err(options).filtered);
  options.shown_local_ranks = {1};
  CHECK_FALSE(Out(options).filtered);
}

TEST_CASE("without prefix_all only teed lines have a prefix") {
  LogOptions options;
  CHECK(Out(options).has_prefix);
  options.prefix_all = false;
  options.tee.others = Streams::kStdout;
  CHECK(Out(options).has_prefix);
  CHECK_FALSE(Err(options).has_prefix);
}

TEST_CASE("a pipe or a file is every worker's, as under torchrun") {
  const InputFacts pipe = {/*is_open=*/true};
  CHECK(pipe.is_shared());
  CHECK_FALSE(InputFacts().is_shared());
  CHECK(TerminalWorker(pipe, 1, std::nullopt) == std::nullopt);
  CHECK(TerminalWorker(pipe, 8, 0) == std::nullopt);
  CHECK(TerminalWorker(InputFacts(), 1, std::nullopt) == std::nullopt);
}

TEST_CASE("a terminal is for one worker: the only one, or the one to debug") {
  const InputFacts terminal = {/*is_open=*/true, /*is_terminal=*/true, /*in_foreground=*/true};
  CHECK_FALSE(terminal.is_shared());
  CHECK(TerminalWorker(terminal, 1, std::nullopt) == 0);
  CHECK(TerminalWorker(terminal, 2, std::nullopt) == std::nullopt);
  CHECK(TerminalWorker(terminal, 2, 1) == 1);
  CHECK(TerminalWorker(terminal, 2, 2) == std::nullopt);
}

TEST_CASE("what is typed for the shell is not read by a command in the background") {
  const InputFacts terminal = {/*is_open=*/true, /*is_terminal=*/true, /*in_foreground=*/false};
  CHECK_FALSE(terminal.is_shared());
  CHECK(TerminalWorker(terminal, 1, std::nullopt) == std::nullopt);
  CHECK(TerminalWorker(terminal, 2, 0) == std::nullopt);
}

}  // namespace
}  // namespace convene::agent
