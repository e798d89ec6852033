// PURE. The report of an epoch that broke: what happened, and who or what is to blame.
//
//   kill      SIGKILL that the kernel did not send for want of memory; SIGTERM, SIGINT, SIGHUP or
//             SIGQUIT that no agent sent; a worker that hangs because a signal has stopped its
//             process (SIGSTOP, state T); a node that left after a signal. Sure to likely
//   node      the kernel killed it, or a process of its, for want of memory; an error of the GPU
//             (Xid), hardware that the kernel calls broken, ECC; a node that left as unfit (a
//             health check failed, no worker can be started); the connection to the node's agent
//             closed. Sure to a guess
//   network   NCCL's or Gloo's words about a peer that is gone or silent, and no other rank failed
//             by itself; a node that is silent for its lease. Likely to a guess
//   data      the words of a disk or a file (no space, an I/O error, truncated, a wrong checksum);
//             SIGBUS. Likely
//   code      a traceback, a crash (SIGSEGV, SIGABRT, ...), any other exit code, a worker that
//             hangs, or that waits for a rank that ended with 0; a node that left because its
//             program cannot be started. Sure to a guess
//
// The kernel's lines about a disk or other hardware name no process: where a worker's own lines are
// a traceback they are facts of the report, and do not judge.
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
  absl::Time at;          // Chronicle's
  std::string cause;      // one line
  std::string host;       // that it happened on
  bool is_unfit = false;  // that host has left, as Leave's is_unfit says
  Verdict verdict;
  // The first is the cause, the others its echo (all, where a node was lost, or left); with the
  // last lines of each.
  std::vector<WorkerFailure> failures;
  std::vector<std::string> places;  // where ranks stood: "rank 3 on b: step 17, step", and its wait
  std::string outcome;              // what was done about it, and what came of it; "": not yet
  int times_here = 1;               // the same on this host, this time included
};

// The verdict about an epoch that broke by `cause`, with the failures of its workers. Where `cause`
// is a worker's failure ("rank 3 on b: ..."), that one comes first. Where a node was lost, or left,
// the failures are its echo, and only add facts; `is_unfit`: that node left as unfit. To be judged
// by all lines of the failures. Each line of evidence is cut to 200 bytes.
Verdict JudgeIncident(const std::string& cause, const std::vector<WorkerFailure>& failures,
                      bool is_unfit = false);

// Cuts a failure to what a report keeps of it, so that all of them fit into one answer: 8 lines of
// each kind, each of 200 bytes. Of a stack the first lines, which are the innermost frames; else
// the last ones, which tell the end.
void ShortenFailure(WorkerFailure* failure);

// Whether workers broke both epochs, and by different failures, on whatever hosts.
bool AreDifferentFailures(const Incident& a, const Incident& b);

// Whether both are the same failure of one host, at whatever step and after whatever time; of two
// tracebacks also the same error but for its numbers.
bool IsAlike(const Incident& a, const Incident& b);

}  // namespace convene::rendezvous
