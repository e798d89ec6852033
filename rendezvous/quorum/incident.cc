#include "rendezvous/quorum/incident.h"

#include <algorithm>
#include <csignal>
#include <iterator>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tools/base/text.h"

namespace convene::rendezvous {
namespace {

constexpr size_t kEvidenceBytes = 200;
constexpr size_t kMostEvidence = 6;

constexpr char kSure[] = "sure";
constexpr char kLikely[] = "likely";
constexpr char kGuess[] = "a guess";

constexpr char kTraceback[] = "Traceback (most recent call last)";

// Words in a worker's own lines, the more telling ones first.
struct Sign {
  const char* text;
  const char* word;
  const char* certainty;
  bool in_errors = false;  // a word of everyday lines too: only where an error is told
};
constexpr Sign kSigns[] = {
    {"uncorrectable ECC", "node", kSure},
    {"fallen off the bus", "node", kSure},
    {"(suspect device)", "node", kSure},
    {"Cannot allocate memory", "node", kLikely},
    {"No space left on device", "data", kLikely},
    {"Disk quota exceeded", "data", kLikely},
    {"Input/output error", "data", kLikely},
    {"Stale file handle", "data", kLikely},
    {"checksum", "data", kLikely, true},
    {"truncated", "data", kLikely, true},
    {"corrupt", "data", kLikely, true},
    {"UnicodeDecodeError", "data", kLikely},
    {"CUDA out of memory", "code", kLikely},
    {"OutOfMemoryError", "code", kLikely},
    {"NCCL WARN", "network", kLikely},
    {"ncclRemoteError", "network", kLikely},
    {"ncclSystemError", "network", kLikely},
    {"Watchdog caught collective operation timeout", "network", kLikely},
    {"did not answer in time", "network", kLikely},
    {"Connection reset by peer", "network", kLikely},
    {"Connection closed by peer", "network", kLikely},
    {"Connection refused", "network", kLikely},
    {"No route to host", "network", kLikely},
    {"Network is unreachable", "network", kLikely},
    {kTraceback, "code", kSure},
};

// Lines that tell which rank a collective waits for.
constexpr const char* kWaits[] = {"did not answer in time", "waits for rank", "waiting for rank"};

// Xids that a program of its own causes: graphics exception, page fault, reset channel, preemption.
constexpr int kXidsOfPrograms[] = {13, 31, 43, 45};

const std::string* Find(const std::vector<std::string>& lines, absl::string_view text) {
  const auto found = absl::c_find_if(
      lines, [text](const std::string& line) { return absl::StrContains(line, text); });
  return found == lines.end() ? nullptr : &*found;
}

const std::string* FindWords(const WorkerFailure& failure, absl::string_view text,
                             bool in_errors = false) {
  if (absl::StrContains(failure.why, text)) return &failure.why;
  if (const std::string* line = Find(failure.error_lines, text)) return line;
  if (!in_errors) return Find(failure.last_log_lines, text);
  // Behind a traceback's first line there is the error; of other programs the last line is it.
  const std::vector<std::string>& lines = failure.last_log_lines;
  const auto traceback = absl::c_find_if(
      lines, [](const std::string& line) { return absl::StrContains(line, kTraceback); });
  const size_t begin = traceback != lines.end() ? traceback - lines.begin()
                       : lines.empty()          ? 0
                                                : lines.size() - 1;
  for (size_t i = begin; i < lines.size(); ++i) {
    if (absl::StrContains(lines[i], text)) return &lines[i];
  }
  return nullptr;
}

Verdict Of(const char* word, const char* certainty, const std::string& evidence) {
  return {word, certainty, {Utf8(evidence, kEvidenceBytes)}};
}

// "NVRM: Xid (PCI:0000:3b:00): 79, pid=..., GPU has fallen off the bus."
bool IsXidOfProgram(absl::string_view line) {
  const size_t end = line.find("): ");
  if (end == absl::string_view::npos) return false;
  absl::string_view number = line.substr(end + 3);
  number = number.substr(0, number.find(','));
  int xid = 0;
  return absl::SimpleAtoi(number, &xid) && absl::c_linear_search(kXidsOfPrograms, xid);
}

bool ReadKernel(const WorkerFailure& failure, Verdict* verdict) {
  for (const char* const text : {"ut of memory", "oom-kill"}) {
    if (const std::string* line = Find(failure.kernel_lines, text)) {
      *verdict = Of("node", kSure, absl::StrCat("the kernel had no memory left: ", *line));
      return true;
    }
  }
  // The driver ends a program's channels (45) whatever the error was: the card's own error counts.
  const std::string* xid = nullptr;
  for (const std::string& line : failure.kernel_lines) {
    const bool is_first = xid == nullptr || (IsXidOfProgram(*xid) && !IsXidOfProgram(line));
    if (absl::StrContains(line, "Xid") && is_first) xid = &line;
  }
  if (xid != nullptr) {
    const bool is_own = IsXidOfProgram(*xid);
    *verdict = Of(is_own ? "code" : "node", is_own ? kLikely : kSure,
                  absl::StrCat("the GPU's driver: ", *xid));
    return true;
  }
  for (const char* const text : {"Hardware Error", "Machine check"}) {
    if (const std::string* line = Find(failure.kernel_lines, text)) {
      *verdict = Of("node", kSure, absl::StrCat("the kernel: ", *line));
      return true;
    }
  }
  if (const std::string* line = Find(failure.kernel_lines, "I/O error")) {
    *verdict = Of("data", kLikely, absl::StrCat("the kernel: ", *line));
    return true;
  }
  return false;
}

bool ReadSignal(const WorkerFailure& failure, Verdict* verdict) {
  const int signal = failure.signal != 0 ? failure.signal
                     : failure.exit_code > 128 && failure.exit_code < 128 + 65
                         ? failure.exit_code - 128
                         : 0;
  switch (signal) {
    case SIGKILL: {
      if (absl::StrContains(failure.why, "The kernel counts")) {
        *verdict = Of("node", kLikely, failure.why);
        return true;
      }
      const bool is_known = absl::StrContains(failure.why, "not by the kernel's OOM killer");
      *verdict = Of("kill", is_known ? kSure : kLikely, failure.why);
      return true;
    }
    case SIGTERM:
    case SIGINT:
    case SIGHUP:
    case SIGQUIT:
      *verdict = Of("kill", kLikely, absl::StrCat(failure.why, ", and no agent sent it"));
      return true;
    case SIGBUS:
      *verdict = Of("data", kLikely,
                    absl::StrCat(failure.why, ": /dev/shm is full, or a file was truncated"));
      return true;
    default:
      return false;
  }
}

bool ReadWords(const WorkerFailure& failure, Verdict* verdict) {
  for (const Sign& sign : kSigns) {
    const std::string* const line = FindWords(failure, sign.text, sign.in_errors);
    if (line == nullptr) continue;
    *verdict = Of(sign.word, sign.certainty, absl::StrCat("its words: ", *line));
    return true;
  }
  return false;
}

Verdict JudgeFailure(const WorkerFailure& failure) {
  Verdict verdict;
  if (ReadKernel(failure, &verdict) || ReadSignal(failure, &verdict)) return verdict;
  if (absl::StartsWith(failure.why, "hang:")) {
    const bool may_wait = absl::StrContains(failure.why, "it may wait for another rank");
    return Of(may_wait ? "network" : "code", kGuess, failure.why);
  }
  if (ReadWords(failure, &verdict)) return verdict;
  if (failure.signal != 0) return Of("code", kLikely, failure.why);  // a crash
  const bool cannot_start =
      failure.is_final || failure.exit_code == 126 || failure.exit_code == 127;
  return Of("code", cannot_start ? kSure : kGuess, failure.why);
}

Verdict JudgeDeparture(const std::string& cause) {
  if (absl::StrContains(cause, " left: health check")) return Of("node", kSure, cause);
  if (absl::StrContains(cause, " left")) return Of("kill", kLikely, cause);
  if (absl::StrContains(cause, "silent for its lease")) return Of("network", kGuess, cause);
  return Of("node", kLikely, cause);
}

// The failure that broke the epoch, which FailureText (job_state.cc) has put into words. Null: a
// node was lost or left, and all failures are its echo.
const WorkerFailure* BreakOf(const std::string& cause, const std::vector<WorkerFailure>& failures) {
  if (failures.empty()) return nullptr;
  const WorkerFailure& first = failures.front();
  const bool is_it = absl::StartsWith(cause, absl::StrCat("rank ", first.global_rank, " on "));
  return is_it ? &first : nullptr;
}

// Adds the words of the kernel, the error file and the collectives.
void AddFacts(const std::vector<WorkerFailure>& failures, Verdict* verdict) {
  const auto add = [&](absl::string_view what, const WorkerFailure& failure,
                       const std::string& line) {
    std::string text =
        Utf8(absl::StrCat("rank ", failure.global_rank, ", ", what, ": ", line), kEvidenceBytes);
    if (verdict->evidence.size() < kMostEvidence) verdict->evidence.push_back(std::move(text));
  };
  for (const WorkerFailure& failure : failures) {
    for (const std::string& line : failure.kernel_lines) add("the kernel", failure, line);
    if (!failure.error_lines.empty()) add("its error", failure, failure.error_lines.front());
    for (const char* const text : kWaits) {
      const std::string* const line = FindWords(failure, text);
      if (line != nullptr) add("in a collective", failure, *line);
      if (line != nullptr) break;
    }
  }
}

}  // namespace

Verdict JudgeIncident(const std::string& cause, const std::vector<WorkerFailure>& failures) {
  const WorkerFailure* const broke = BreakOf(cause, failures);
  Verdict verdict = broke == nullptr ? JudgeDeparture(cause) : JudgeFailure(*broke);
  // A broken connection is mostly the echo of a peer that failed by itself.
  if (broke != nullptr && verdict.word == "network") {
    for (auto other = std::next(failures.begin()); other != failures.end(); ++other) {
      Verdict of_other = JudgeFailure(*other);
      if (of_other.word == "network" || of_other.certainty == kGuess) continue;
      of_other.evidence.front() = Utf8(absl::StrCat("rank ", other->global_rank, " on ",
                                                    other->host, ": ", of_other.evidence.front()),
                                       kEvidenceBytes);
      verdict = std::move(of_other);
      break;
    }
  }
  AddFacts(failures, &verdict);
  return verdict;
}

bool IsAlike(const Incident& a, const Incident& b) {
  // "hang: no step" of "hang: no step for 301 s (limit 300 s), phase step, step 1701": what stands
  // behind differs from time to time.
  const auto why = [](const Incident& incident) {
    const WorkerFailure* const broke = BreakOf(incident.cause, incident.failures);
    const std::string text = broke == nullptr ? "" : broke->why;
    return text.substr(0, std::min(text.find(" for "), text.find(" (")));
  };
  return a.host == b.host && a.verdict.word == b.verdict.word && why(a) == why(b);
}

}  // namespace convene::rendezvous
