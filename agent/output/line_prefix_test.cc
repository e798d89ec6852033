#include "agent/output/line_prefix.h"

#include <catch2/catch.hpp>
#include <regex>

namespace convene::agent {
namespace {

std::string Prefix(absl::string_view pattern) {
  return LinePrefix(pattern, {"trainer", 1, 9, "node3"}).At(absl::FromUnixMillis(1));
}

TEST_CASE("each macro becomes its value, with braces or without") {
  CHECK(Prefix("[${role_name}${local_rank}]:") == "[trainer1]:");
  CHECK(Prefix("${hostname}/${rank} ") == "node3/9 ");
  CHECK(Prefix("$rank:$local_rank") == "9:1");
  CHECK(Prefix("") == "");
}

TEST_CASE("what is no macro stays, as Python's safe_substitute leaves it") {
  CHECK(Prefix("${pid} $pid $ ${rank $1 100$") == "${pid} $pid $ ${rank $1 100$");
  CHECK(Prefix("$$rank $${rank}") == "$rank ${rank}");
  CHECK(Prefix("$ranks") == "$ranks");
}

TEST_CASE("of a worker's arguments the local rank alone is a macro") {
  CHECK(WithLocalRank("--local-rank=${local_rank}$local_rank", 3) == "--local-rank=33");
  CHECK(WithLocalRank("${rank} $time $local_ranks ${local_rank $", 3) ==
        "${rank} $time $local_ranks ${local_rank $");
  CHECK(WithLocalRank("$$local_rank", 3) == "$local_rank");
}

TEST_CASE("the time moves on") {
  LinePrefix prefix("${time} ${rank} ", {"trainer", 1, 9, "node3"});
  const absl::Time begin = absl::FromUnixMillis(1'700'000'000'042);
  const std::string first = prefix.At(begin);
  CHECK(std::regex_match(first, std::regex("\\d{4}-\\d\\d-\\d\\d \\d\\d:\\d\\d:\\d\\d\\.042 9 ")));
  CHECK(prefix.At(begin + absl::Microseconds(900)) == first);
  CHECK(prefix.At(begin + absl::Milliseconds(1)) != first);
}

}  // namespace
}  // namespace convene::agent
