#include "launcher/doctor/report.h"

#include "tools/base/testing/status_testing.h"

namespace convene::launcher {
namespace {

using agent::Finding;
using agent::Severity;

const std::vector<Finding> kFindings = {
    {Severity::kGood, "clock", "synchronised"},
    {Severity::kWarning, "shared memory", "/dev/shm has \x1b[2J64 MiB", "data go there",
     "--shm-size"}};

TEST_CASE("a report for people") {
  CHECK(ReportText("node7", kFindings).find("\x1b") == std::string::npos);
  CHECK(ReportText("node7", {kFindings[0]}) ==
        "good     clock  synchronised\n"
        "node7: 0 errors, 0 warnings, 0 notes\n");
}

TEST_CASE("errors alone, a line each") {
  CHECK(ErrorLines(kFindings).empty());
  CHECK(ErrorLines({kFindings[0], {Severity::kError, "disk", "/x: \x1b[2Jfull"}}) ==
        "disk: /x: ?[2Jfull\n");
}

TEST_CASE("a report for programs") {
  CHECK(ReportJson("node7", kFindings) ==
        "{\n  \"host\": \"node7\",\n  \"worst\": \"warning\",\n  \"findings\": [\n"
        "    {\"severity\": \"good\", \"subject\": \"clock\", \"what\": \"synchronised\", "
        "\"why\": \"\", \"advice\": \"\"},\n"
        "    {\"severity\": \"warning\", \"subject\": \"shared memory\", \"what\": "
        "\"/dev/shm has \\u001b[2J64 MiB\", \"why\": \"data go there\", \"advice\": "
        "\"--shm-size\"}\n  ]\n}\n");
}

}  // namespace
}  // namespace convene::launcher
