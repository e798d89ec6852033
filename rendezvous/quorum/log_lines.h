// PURE. Workers' lines on their way from an agent to a viewer, as values: the messages of
// proto/rendezvous.proto without the wire. Its comments hold here too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "rendezvous/quorum/agent_id.h"
#include "tools/base/strong_int.h"

namespace convene::rendezvous {

using WatchId = StrongInt<struct WatchIdTag, uint64_t>;

// A request with more entries than this in one of its lists is refused.
inline constexpr int kMostFilterEntries = 1024;
// Bytes of one line; the rest of a longer one is cut off.
inline constexpr size_t kLongestPublishedLine = 8 * 1024;
// A batch is full when its lines' text, with kLineOverhead for each line, takes this many bytes.
inline constexpr size_t kFullBatchBytes = 32 * 1024;
inline constexpr size_t kLineOverhead = 32;

struct LogFilter {
  std::set<int> ranks;        // empty: all
  std::set<int> local_ranks;  // empty: all
  bool without_stdout = false;
  bool without_stderr = false;

  bool LetsPass(int rank, int local_rank, bool is_stderr) const {
    return !(is_stderr ? without_stderr : without_stdout) &&
           (ranks.empty() || ranks.count(rank) > 0) &&
           (local_ranks.empty() || local_ranks.count(local_rank) > 0);
  }
};

struct LogLine {
  absl::Time time;
  int rank = 0;
  int local_rank = 0;
  bool is_stderr = false;
  std::string text;
  bool is_cut = false;
};

struct LogBatch {
  WatchId watch_id;
  AgentId agent;
  std::string host;
  std::string role;
  std::vector<LogLine> lines;
  uint64_t lost_lines = 0;
  uint64_t next_line = 0;
  bool caught_up = false;
  bool is_last = false;
};

struct LogMark {
  AgentId agent;
  uint64_t next_line = 0;
};

struct LogRequest {
  std::string job_id;
  std::vector<std::string> hosts;  // empty: all
  LogFilter filter;
  int tail = 0;  // -1: all
  bool follow = false;
  std::vector<LogMark> seen;
};

struct LogNode {
  AgentId agent;
  std::string host;
  bool publishes_logs = false;
};

struct LogStart {
  std::vector<LogNode> nodes;
};

struct LogsGone {
  AgentId agent;
};

struct RunEnded {
  std::string phase;
  std::string why;
};

}  // namespace convene::rendezvous
