// Many templates against the texts that Jinja2 makes of them, which
// testing/compare_with_jinja2.py --golden has kept.
#include <catch2/catch.hpp>
#include <fstream>
#include <string>

#include "tools/base/testing/status_testing.h"
#include "worker_runtime/data/chat/jinja/read_json.h"
#include "worker_runtime/data/chat/testing/rendered_case.h"

namespace convene::worker::jinja {
namespace {

void CheckCase(const Dict& expected, const absl::StatusOr<Rendered>& ours) {
  if (const Value* const code = expected.Find("code")) {
    REQUIRE_FALSE(ours.ok());
    INFO(ours.status().ToString());
    CHECK(absl::StatusCodeToString(ours.status().code()) == code->as_string());
    // An error says where, the one of a template that is no UTF-8 apart.
    CHECK_THAT(std::string(ours.status().message()), Catch::StartsWith("line "));
    return;
  }
  REQUIRE_OK(ours.status());
  CHECK(ours->text == expected.Find("text")->as_string());
  const std::vector<Value>& spans = expected.Find("spans")->as_list().items;
  REQUIRE(ours->generated.size() == spans.size());
  for (size_t i = 0; i < spans.size(); ++i) {
    CHECK(static_cast<int64_t>(ours->generated[i].begin) == spans[i].as_list().items[0].as_int());
    CHECK(static_cast<int64_t>(ours->generated[i].end) == spans[i].as_list().items[1].as_int());
  }
}

TEST_CASE("templates give Jinja2's texts and spans, or the errors that were agreed upon") {
  std::ifstream file("worker_runtime/data/chat/jinja/golden_cases.jsonl");
  REQUIRE(file.is_open());
  std::string line;
  REQUIRE(std::getline(file, line));
  const absl::StatusOr<Value> first = ReadJson(line);
  REQUIRE_OK(first.status());
  int count = 0;
  while (std::getline(file, line)) {
    const absl::StatusOr<Value> expected = ReadJson(line);
    REQUIRE_OK(expected.status());
    Dict input = expected->as_dict();
    INFO(input.Find("name")->as_string() << ": " << input.Find("template")->as_string());
    input.Set("variables", *first->as_dict().Find("variables"));
    CheckCase(input, RenderCase(input));
    ++count;
  }
  CHECK(count >= 400);
}

}  // namespace
}  // namespace convene::worker::jinja
