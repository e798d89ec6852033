// PURE. A machine's facts become findings, each with its reason and what to do.
#pragma once

#include <string>
#include <vector>

#include "agent/machine/facts.h"

namespace convene::agent {

enum class Severity {
  kGood,     // looked at, and well
  kNote,     // worth knowing
  kWarning,  // training runs, but may be slow or fail later
  kError,    // training will not run here, or not to its end
};

struct Finding {
  Severity severity = Severity::kGood;
  std::string subject;  // one or two words: "GPU 3", "shared memory"
  std::string what;
  std::string why = {};     // it matters; "" where it is good
  std::string advice = {};  // what to do
};

// Every subject has at least one finding, a good one where nothing is wrong; in a fixed order.
std::vector<Finding> Diagnose(const MachineFacts& facts);

// The variables of NCCL, Gloo and PyTorch that are wrong on this machine, unknown or obsolete
// (NVIDIA's NCCL User Guide, "Environment Variables"; PyTorch's ProcessGroupNCCL.hpp). One good
// finding where there are none.
std::vector<Finding> DiagnoseEnvironment(const MachineFacts& facts);

Severity WorstOf(const std::vector<Finding>& findings);

}  // namespace convene::agent
