// PURE. The report of an epoch that broke: what happened, and who or what is to blame.
//
//   kill      SIGKILL that the kernel did not send for want of memory; SIGTERM, SIGINT, SIGHUP or
//             SIGQUIT that no agent sent; a node that left after a signal. Sure to likely
//   node      the kernel killed it for want of memory; an error of the GPU (Xid), a machine check,
//             ECC; a health check failed; the connection to the node's agent closed. Sure to likely
//   network   NCCL's or Gloo's words about a peer that is gone or silent, and no other rank failed
//             by itself; a node that is silent for its lease. Likely to a guess
//   data      the words of a disk or a file (no space, an I/O error, truncated, a wrong checksum);
//             SIGBUS. Likely
//   code      a traceback, a crash (SIGSEGV, SIGABRT, ...), any other exit code, a worker that
//             hangs. Sure to a guess
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "rendezvous/quorum/messages.h"
#include "tools/base/clock.h"
#include "tools/base/strong_int.h"

namespace convene::rendezvous {

struct Verdict {
  std::string word = "unknown";       // kill, node, network, data, code, unknown
  std::string certainty = "a guess";  // sure, likely, a guess
  std::vector<std::string> evidence;  // lines
};

struct Incident {
  static constexpr size_t kMostFailures = 4;
  static constexpr size_t kMostPlaces = 16;

  int64_t number = 0;  // 1, 2, ... in this job
  Epoch epoch;
  absl::Time at;      // Chronicle's
  std::string cause;  // one line
  std::string host;   // that it happened on
  Verdict verdict;
  // The first is the cause, the others its echo (all, where a node was lost, or left); with the
  // last lines of each.
  std::vector<WorkerFailure> failures;
  std::vector<std::string> places;  // where ranks stood: "rank 3 on b: step 17, step"
  std::string outcome;              // what was done about it, and what came of it; "": not yet
  int times_here = 1;               // the same on this host, this time included
};

// The verdict about an epoch that broke by `cause`, with the failures of its workers. Where `cause`
// is a worker's failure ("rank 3 on b: ..."), that one comes first. Where a node was lost, or left,
// the failures are its echo, and only add facts. Each line of evidence is cut to 200 bytes.
Verdict JudgeIncident(const std::string& cause, const std::vector<WorkerFailure>& failures);

// Whether both are the same failure of one host, at whatever step and after whatever time.
bool IsAlike(const Incident& a, const Incident& b);

}  // namespace convene::rendezvous
