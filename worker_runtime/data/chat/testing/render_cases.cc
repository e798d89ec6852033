// Reads cases from standard input, one JSON object a line (rendered_case.h), and answers each with
// one line: {"text", "spans"} or {"code", "error"}. compare_with_jinja2.py runs it.
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "tools/base/check.h"
#include "worker_runtime/data/chat/jinja/print.h"
#include "worker_runtime/data/chat/jinja/read_json.h"
#include "worker_runtime/data/chat/testing/rendered_case.h"

namespace convene::worker::jinja {
namespace {

Dict Answer(const absl::StatusOr<Rendered>& rendered) {
  Dict answer;
  if (!rendered.ok()) {
    answer.Set("code", Value::OfString(absl::StatusCodeToString(rendered.status().code())));
    answer.Set("error", Value::OfString(std::string(rendered.status().message())));
    return answer;
  }
  std::vector<Value> spans;
  for (const TextSpan& span : rendered->generated) {
    spans.push_back(*NewList({Value::OfInt(span.begin), Value::OfInt(span.end)}));
  }
  answer.Set("text", Value::OfString(rendered->text));
  answer.Set("spans", *NewList(std::move(spans)));
  return answer;
}

int Main() {
  std::string line;
  while (std::getline(std::cin, line)) {
    const absl::StatusOr<Value> input = ReadJson(line);
    CONVENE_CHECK(input.ok());
    Budget budget(int64_t{1} << 40, size_t{1} << 30);
    std::string text;
    const absl::StatusOr<Value> answer = NewDict(Answer(RenderCase(input->as_dict())));
    CONVENE_CHECK(answer.ok() && AppendJson(*answer, JsonStyle(), &budget, &text).ok());
    std::cout << text << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace convene::worker::jinja

int main() { return convene::worker::jinja::Main(); }
