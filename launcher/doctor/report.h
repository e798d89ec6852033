// PURE. The report of `convene doctor`.
#pragma once

#include <string>
#include <vector>

#include "agent/machine/diagnose.h"

namespace convene::launcher {

// A line for each finding, in columns, and below it why it matters and what to do; then how many
// there are of each kind.
std::string ReportText(const std::string& host, const std::vector<agent::Finding>& findings);

// {"host", "worst", "findings": [{"severity", "subject", "what", "why", "advice"}]}
std::string ReportJson(const std::string& host, const std::vector<agent::Finding>& findings);

// The errors among them, a line each; "": the node is fit.
std::string ErrorLines(const std::vector<agent::Finding>& findings);

}  // namespace convene::launcher
