#include "launcher/doctor/report.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "launcher/json_text.h"
#include "tools/base/text.h"

namespace convene::launcher {
namespace {

using agent::Finding;
using agent::Severity;

const char* Word(Severity severity) {
  switch (severity) {
    case Severity::kGood:
      return "good";
    case Severity::kNote:
      return "note";
    case Severity::kWarning:
      return "warning";
    case Severity::kError:
      return "error";
  }
  return "";
}

std::string Padded(std::string text, size_t width) {
  text.resize(std::max(text.size(), width), ' ');
  return text;
}

std::string Count(Severity severity, const std::vector<Finding>& findings) {
  const auto count =
      std::count_if(findings.begin(), findings.end(),
                    [severity](const Finding& finding) { return finding.severity == severity; });
  return absl::StrCat(count, " ", Word(severity), count == 1 ? "" : "s");
}

}  // namespace

std::string ReportText(const std::string& host, const std::vector<Finding>& findings) {
  size_t width = 0;
  for (const Finding& finding : findings) width = std::max(width, finding.subject.size());
  std::string text;
  for (const Finding& finding : findings) {
    const std::string begin =
        absl::StrCat(Padded(Word(finding.severity), 8), " ", Padded(finding.subject, width), "  ");
    absl::StrAppend(&text, begin, Printable(finding.what), "\n");
    const std::string indent(begin.size(), ' ');
    if (!finding.why.empty()) absl::StrAppend(&text, indent, Printable(finding.why), "\n");
    if (!finding.advice.empty())
      absl::StrAppend(&text, indent, "-> ", Printable(finding.advice), "\n");
  }
  absl::StrAppend(&text, host, ": ", Count(Severity::kError, findings), ", ",
                  Count(Severity::kWarning, findings), ", ", Count(Severity::kNote, findings),
                  "\n");
  return text;
}

std::string ReportJson(const std::string& host, const std::vector<Finding>& findings) {
  std::vector<std::string> items;
  for (const Finding& finding : findings) {
    items.push_back(absl::StrCat(
        "    {\"severity\": \"", Word(finding.severity),
        "\", \"subject\": ", JsonText(finding.subject), ", \"what\": ", JsonText(finding.what),
        ", \"why\": ", JsonText(finding.why), ", \"advice\": ", JsonText(finding.advice), "}"));
  }
  return absl::StrCat("{\n  \"host\": ", JsonText(host), ",\n  \"worst\": \"",
                      Word(agent::WorstOf(findings)), "\",\n  \"findings\": [\n",
                      absl::StrJoin(items, ",\n"), "\n  ]\n}\n");
}

std::string ErrorLines(const std::vector<agent::Finding>& findings) {
  std::string errors;
  for (const Finding& finding : findings) {
    if (finding.severity != Severity::kError) continue;
    absl::StrAppend(&errors, finding.subject, ": ", Printable(finding.what), "\n");
  }
  return errors;
}

}  // namespace convene::launcher
