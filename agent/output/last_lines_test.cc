#include "agent/output/last_lines.h"

#include <catch2/catch.hpp>

namespace convene::agent {
namespace {

TEST_CASE("the last 20 lines are kept") {
  LastLines lines;
  for (int i = 0; i < 30; ++i) lines.Add(std::to_string(i));
  REQUIRE(lines.Get().size() == 20);
  CHECK(lines.Get().front() == "10");
  CHECK(lines.Get().back() == "29");
}

TEST_CASE("a line can go into a protobuf string whatever the worker wrote") {
  const auto kept = [](const std::string& line) {
    LastLines lines;
    lines.Add(line);
    return lines.Get().front();
  };
  CHECK(kept("sch\xC3\xB6n \xE2\x82\xAC \xF0\x9F\x98\x80") ==
        "sch\xC3\xB6n \xE2\x82\xAC \xF0\x9F\x98\x80");
  CHECK(kept("\xFF\xC3x") == "??x");
  CHECK(kept("\xC0\xAF") == "??");        // Not the shortest form.
  CHECK(kept("\xED\xA0\x80") == "???");   // A surrogate.
  CHECK(kept("end\xE2\x82") == "end??");  // Cut by the worker.
  CHECK(kept(std::string(499, 'x') + "\xC3\xB6") ==
        std::string(499, 'x'));  // Cut by us: between characters.
  CHECK(kept(std::string(600, 'x')).size() == 500);
}

}  // namespace
}  // namespace convene::agent
