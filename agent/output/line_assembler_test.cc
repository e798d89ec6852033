#include "agent/output/line_assembler.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

namespace convene::agent {
namespace {

struct Fixture {
  LineAssembler assembler;
  std::vector<std::string> lines;
  LineAssembler::OnLine keep = [this](absl::string_view line) { lines.emplace_back(line); };
  void Add(absl::string_view bytes) { assembler.Add(bytes, keep); }
};

TEST_CASE_METHOD(Fixture, "lines come out whole, however the bytes arrive") {
  Add("one\ntw");
  CHECK(lines == std::vector<std::string>{"one"});
  Add("o\r\n\nthr");
  Add("ee");
  assembler.End(keep);
  CHECK(lines == std::vector<std::string>{"one", "two", "", "three"});
  assembler.End(keep);
  CHECK(lines.size() == 4);
}

TEST_CASE_METHOD(Fixture, "a progress line that was redrawn ends as its last state") {
  Add("\r 10%");
  CHECK(assembler.InPlace() == " 10%");
  Add("\r 20%\r");
  CHECK(assembler.InPlace() == " 20%");
  CHECK(lines.empty());
  Add("\n");
  CHECK(lines == std::vector<std::string>{" 20%"});
  CHECK(assembler.InPlace().empty());
}

TEST_CASE_METHOD(Fixture, "an open line without a carriage return is not shown yet") {
  Add("loading ...");
  CHECK(assembler.InPlace().empty());
}

TEST_CASE_METHOD(Fixture, "a line without end is cut, nothing of it is lost") {
  const std::string endless(LineAssembler::kLongestLine * 2 + 5, 'x');
  Add(endless);
  Add("\n");
  REQUIRE(lines.size() == 3);
  CHECK(lines[0].size() == LineAssembler::kLongestLine);
  CHECK(lines[0] + lines[1] + lines[2] == endless);
}

}  // namespace
}  // namespace convene::agent
