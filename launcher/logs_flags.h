// The flags of `convene logs`, on the way to LogsFlags.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "launcher/flag_reader.h"
#include "launcher/flags.h"

namespace convene::launcher {

class LogsFlagReader {
 public:
  std::string* endpoint() { return &flags_.endpoint; }
  std::string* job_id() { return &flags_.request.job_id; }
  // The other ones. `reader` writes into this object.
  void AddTo(FlagReader* reader);
  // InvalidArgument says which flag is wrong and how to write it. Once, after reading.
  absl::StatusOr<LogsFlags> Finish();

 private:
  LogsFlags flags_;
  std::string tail_ = "100";
  std::string ranks_;
  std::string local_ranks_;
  std::string nodes_;
  bool stdout_only_ = false;
  bool stderr_only_ = false;
  bool timestamps_ = false;
  std::string prefix_template_;
};

}  // namespace convene::launcher
