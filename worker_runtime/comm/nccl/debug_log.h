// NCCL's own log, kept aside to be read once.
#pragma once

#include <string>

namespace convene::worker {

// While it lives, and if the user has set none of NCCL_DEBUG, NCCL_DEBUG_SUBSYS and
// NCCL_DEBUG_FILE, NCCL's log goes to a private file. Made before NCCL's first call of the process,
// which reads these variables once: a second one in a process keeps nothing. Sets and clears
// environment variables: no other thread may read them meanwhile.
class NcclDebugLog {
 public:
  NcclDebugLog();
  ~NcclDebugLog();
  NcclDebugLog(const NcclDebugLog&) = delete;
  NcclDebugLog& operator=(const NcclDebugLog&) = delete;

  // The log that NCCL wrote so far; empty when nothing is kept.
  std::string Read() const;

 private:
  std::string path_;  // empty: nothing is kept
};

}  // namespace convene::worker
