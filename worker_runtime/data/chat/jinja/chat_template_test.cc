// Limits, errors and what the comparison with Jinja2 cannot show.
#include "worker_runtime/data/chat/jinja/chat_template.h"

#include <catch2/catch.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "tools/base/testing/status_testing.h"
#include "worker_runtime/data/chat/jinja/read_json.h"

namespace convene::worker::jinja {
namespace {

absl::StatusOr<std::string> Render(const std::string& source, const RenderOptions& options = {},
                                   const std::string& variables = "{}") {
  const absl::StatusOr<ChatTemplate> parsed = ChatTemplate::Parse(source);
  if (!parsed.ok()) return parsed.status();
  absl::StatusOr<Rendered> rendered = parsed->Render(ReadJson(variables)->as_dict(), options);
  if (!rendered.ok()) return rendered.status();
  return rendered->text;
}

std::string Repeated(const std::string& text, int count) {
  std::string repeated;
  for (int i = 0; i < count; ++i) repeated += text;
  return repeated;
}

TEST_CASE("an error says line, column and what is the matter") {
  CHECK_STATUS(Render("a\n  {{ x.y }}"), absl::StatusCode::kInvalidArgument,
               "line 2, column 7: 'x' is undefined");
  CHECK_STATUS(Render("\xC3\xA9{{ 'a'|frobnicate }}"), absl::StatusCode::kUnimplemented,
               "line 1, column 9: the filter 'frobnicate' is not in the subset");
  CHECK_STATUS(Render("{% include 'x' %}"), absl::StatusCode::kUnimplemented,
               "line 1, column 1: the block 'include'");
  CHECK_STATUS(Render("{% if a %}\n{% for b in c %}\n{% endif %}"),
               absl::StatusCode::kInvalidArgument, "line 3, column 1: an unknown block 'endif'");
  CHECK_STATUS(Render("{{ raise_exception('not so') }}"), absl::StatusCode::kInvalidArgument,
               "the chat template refuses the conversation: not so");
  CHECK_STATUS(Render("a\xFF"), absl::StatusCode::kInvalidArgument, "not UTF-8");
}

TEST_CASE("what is printed and never defined is told, once for each place") {
  const auto undefined = [](const std::string& source) {
    return ChatTemplate::Parse(source)->Render(ReadJson(R"({"m": {}})")->as_dict(), {})->undefined;
  };
  using Told = std::vector<std::string>;
  CHECK(undefined("{% for i in range(3) %}{{ a }}\n{{ 'x' ~ b ~ c|trim }}{% endfor %}") ==
        Told{"line 1, column 27: 'a' is undefined", "line 2, column 10: 'b' is undefined",
             "line 2, column 14: 'c' is undefined"});
  CHECK(undefined("{% macro f(a) %}{{ a }}{% endmacro %}{{ f() }}") ==
        Told{"line 1, column 20: parameter 'a' was not provided"});
  // The template says what stands there instead, or that nothing shall.
  CHECK(undefined("{{ a|default('x') }}{{ a or 'x' }}{% if a %}{{ a }}{% endif %}{{ 'x' if a }}"
                  "{{ m.key }}")
            .empty());
  CHECK(undefined(Repeated("{{ a }}", 20)).size() == 8);
}

TEST_CASE("a date is used only when it is given") {
  const std::string source = "{{ strftime_now('%d %b %Y') }}";
  CHECK_STATUS(Render(source), absl::StatusCode::kFailedPrecondition, "give a date");
  RenderOptions options;
  options.now = absl::CivilSecond(2024, 7, 26);
  CHECK(*Render(source, options) == "26 Jul 2024");
}

TEST_CASE("loops within loops come to an end") {
  RenderOptions options;
  options.max_steps = 100000;
  CHECK_STATUS(
      Render("{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
             options),
      absl::StatusCode::kResourceExhausted, "too many steps");
}

TEST_CASE("a text that is cut into very many parts is stopped") {
  RenderOptions options;
  options.max_steps = 100000;
  for (const char* const cut :
       {"split(',')", "rsplit(',')", "split()", "rsplit()", "splitlines()"}) {
    const std::string source = absl::StrCat("{{ ('a, \\n' * 9999).", cut, "|length }}");
    CHECK_STATUS(Render(source, options), absl::StatusCode::kResourceExhausted, "too many steps");
    CHECK_OK(Render(source));
  }
  CHECK(*Render("{{ 'abababa'.count('aba') }} {{ 'xx'.count('x') }}", options) == "2 2");
}

TEST_CASE("every walk over a long text is charged, whatever walks") {
  RenderOptions options;
  options.max_steps = 300'000;
  for (const char* const expression : {"a|length",
                                       "a == b",
                                       "a < b",
                                       "a is eq b",
                                       "a is lt(b)",
                                       "a in b",
                                       "a in [b]",
                                       "a[0]",
                                       "a[:1]",
                                       "a|int",
                                       "a|float",
                                       "a|trim",
                                       "a|upper",
                                       "a|replace('b', '')",
                                       "a.strip()",
                                       "a.find('b')",
                                       "a.startswith((a, b))",
                                       "''.startswith(a)",
                                       "{a: 1}",
                                       "d[a]",
                                       "d.get(a)",
                                       "a in d",
                                       "[a, b]|sort",
                                       "[a, b]|max",
                                       "[a, b]|min",
                                       "[a, b]|unique|list",
                                       "d|dictsort",
                                       "[b].count(a)",
                                       "[b].index(a)",
                                       "[0]|map('replace', a, '')|list",
                                       "[0]|select('in', a.split())|list",
                                       "[a]|tojson",
                                       "[a]|string",
                                       "d|string"}) {
    const std::string source =
        absl::StrCat("{% set a = 'a' * 99999 %}{% set b = 'a' * 99999 %}{% set d = {a: 1} %}",
                     "{% for i in range(n) %}{% set x = ", expression, " %}{% endfor %}");
    INFO(expression);
    CHECK_OK(Render(source, options, R"({"n": 1})"));
    CHECK_STATUS(Render(source, options, R"({"n": 999})"), absl::StatusCode::kResourceExhausted,
                 "too many steps");
  }
}

TEST_CASE("a search that comes far at every place is stopped before it begins") {
  for (const char* const search :
       {"b in a", "a.find(b)", "a.rfind(b)", "a.count(b)", "a.split(b)", "a.rsplit(b)",
        "a.partition(b)", "a.rpartition(b)", "a.replace(b, '')", "a|replace(b, '')",
        "a.strip('b' * 99999)", "a|trim('b' * 99999)", "[a]|map('trim', 'b' * 99999)|list"}) {
    const std::string source = absl::StrCat(
        "{% set a = 'a' * 999999 %}{% set b = 'a' * 499999 + 'b' %}{% set x = ", search, " %}");
    INFO(search);
    CHECK_STATUS(Render(source), absl::StatusCode::kResourceExhausted, "too many steps");
  }
  CHECK(*Render("{{ ('a' * 999999 + '</think>b').split('</think>')[-1] }}") == "b");
}

TEST_CASE("very many variables, parameters and points are charged") {
  std::string many;
  for (int i = 0; i < 5000; ++i) absl::StrAppend(&many, "{% set v", i, " = 1 %}");
  RenderOptions options;
  options.max_steps = 2'000'000;
  const std::string loop = "{% for i in range(n) %}{{ v4999 }}{% endfor %}";
  CHECK_OK(Render(many + loop, options, R"({"n": 9})"));
  CHECK_STATUS(Render(many + loop, options, R"({"n": 9999})"), absl::StatusCode::kResourceExhausted,
               "too many steps");
  std::string macro = "{% macro m(a";
  for (int i = 0; i < 5000; ++i) absl::StrAppend(&macro, ", a", i);
  macro += ") %}{% endmacro %}{% for i in range(n) %}{{ m() }}{% endfor %}";
  CHECK_OK(Render(macro, options, R"({"n": 1})"));
  CHECK_STATUS(Render(macro, options, R"({"n": 9})"), absl::StatusCode::kResourceExhausted,
               "too many steps");
  CHECK_STATUS(Render("{% set p = 'a.' * 200 + 'a' %}{{ [{}]|map(attribute=p)|list }}"),
               absl::StatusCode::kResourceExhausted, "more than 100 points");
}

TEST_CASE("what is written with escapes, margins and separators is no longer than allowed") {
  RenderOptions options;
  options.max_bytes = 100000;
  for (const char* const expression :
       {"[c * 40000]", "{c * 40000: 1}", "[c * 40000]|tojson", "[1]|tojson(indent='i' * 99999)",
        "[1, 2]|tojson(separators=('s' * 99999, ''))", "[x, x, x]|join('s' * 60000)",
        "strftime_now('%Y' * 40000)"}) {
    INFO(expression);
    options.now = absl::CivilSecond(2024, 7, 26);
    CHECK_STATUS(Render(absl::StrCat("{{ ", expression, " }}"), options, R"({"c": "\u0001"})"),
                 absl::StatusCode::kResourceExhausted, "longer than the limit");
  }
}

TEST_CASE("a text that doubles is stopped, and so is one that is repeated") {
  RenderOptions options;
  options.max_bytes = 100000;
  CHECK_STATUS(Render("{% set n = namespace(t='ab') %}{% for i in range(60) %}"
                      "{% set n.t = n.t + n.t %}{% endfor %}",
                      options),
               absl::StatusCode::kResourceExhausted, "longer than the limit");
  CHECK_STATUS(Render("{{ 'a' * 9999999999 }}", options), absl::StatusCode::kResourceExhausted,
               "longer than the limit");
  CHECK_STATUS(Render("{% for i in range(9) %}{{ 'a' * 99999 }}{% endfor %}", options),
               absl::StatusCode::kResourceExhausted, "longer than the limit");
}

TEST_CASE("lists within lists are stopped, deep ones and those that share their parts") {
  CHECK_STATUS(Render("{% set n = namespace(t=[]) %}{% for i in range(9999) %}"
                      "{% set n.t = [n.t] %}{% endfor %}"),
               absl::StatusCode::kResourceExhausted, "100 deep");
  CHECK_STATUS(Render("{% set n = namespace(t=['x']) %}{% for i in range(90) %}"
                      "{% set n.t = [n.t, n.t] %}{% endfor %}{{ n.t }}"),
               absl::StatusCode::kResourceExhausted, "too many parts");
}

TEST_CASE("a namespace may hold itself") {
  CHECK(*Render("{% set n = namespace() %}{% set n.n = n %}{{ n.n.n == n }}") == "True");
}

TEST_CASE("a macro that calls itself without end is stopped") {
  CHECK_STATUS(Render("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"),
               absl::StatusCode::kResourceExhausted, "does a macro call itself without end?");
}

TEST_CASE("templates that are too deep are refused, whatever the depth is made of") {
  for (const auto& [open, middle, close] :
       {std::tuple<const char*, const char*, const char*>{"(", "1", ")"},
        {"[", "1", "]"},
        {"not ", "1", ""},
        {"-", "1", ""},
        {"{'a': ", "1", "}"},
        {"a if b else ", "1", ""},
        {"", "a", ".b"},
        {"", "a", "[0]"},
        {"", "a", "|trim"},
        {"", "a", " + a"},
        {"", "a", " and a"}}) {
    const std::string inside = absl::StrCat(Repeated(open, 50000), middle, Repeated(close, 50000));
    INFO(open << middle << close);
    CHECK_STATUS(Render("{{ " + inside + " }}"), absl::StatusCode::kResourceExhausted,
                 "levels deep");
  }
  CHECK_STATUS(Render(Repeated("{% if a %}", 5000) + Repeated("{% endif %}", 5000)),
               absl::StatusCode::kResourceExhausted, "blocks deep");
}

TEST_CASE("a long template that is not deep is read") {
  CHECK(*Render("{% if a %}" + Repeated("{% elif a %}", 3000) + "{% else %}x{% endif %}") == "x");
  CHECK(Render("{{ 'a'" + Repeated(" ~ 'a'", 3000) + " }}")->size() == 3001);
}

TEST_CASE("JSON is read as Python reads it, and refused with the byte") {
  CHECK(*Render("{{ a|tojson }}", {},
                R"({"a": {"z": 1, "b": [1.0, -0.0, 1e5], "z": "\ud83e\udd99"}})") ==
        "{\"z\": \"\xF0\x9F\xA6\x99\", \"b\": [1.0, -0.0, 100000.0]}");
  CHECK_STATUS(ReadJson("{\"a\": tru}"), absl::StatusCode::kInvalidArgument, "broken JSON at byte");
  CHECK_STATUS(ReadJson(""), absl::StatusCode::kInvalidArgument, "broken JSON");
  CHECK_STATUS(ReadJson("[\"\xFF\"]"), absl::StatusCode::kInvalidArgument, "broken JSON");
  CHECK_STATUS(ReadJson("[18446744073709551616]"), absl::StatusCode::kInvalidArgument,
               "beyond 64 bits");
  CHECK_STATUS(ReadJson("[9223372036854775808]"), absl::StatusCode::kInvalidArgument,
               "beyond 64 bits");
  CHECK_STATUS(ReadJson(Repeated("[", 1000000)), absl::StatusCode::kInvalidArgument,
               "100 levels deep");
  CHECK(ReadJson("[1] ")->is_list());
}

}  // namespace
}  // namespace convene::worker::jinja
