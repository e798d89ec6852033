#include "rendezvous/quorum/incident.h"

#include <algorithm>
#include <csignal>
#include <iterator>
#include <tuple>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "rendezvous/quorum/kernel_words.h"
#include "tools/base/text.h"

namespace convene::rendezvous {
namespace {

constexpr size_t kEvidenceBytes = 200;
constexpr size_t kMostEvidence = 6;
// Of a failure in a report.
constexpr size_t kMostLines = 8;
constexpr size_t kLineBytes = 200;

constexpr char kSure[] = "sure";
constexpr char kLikely[] = "likely";
constexpr char kGuess[] = "a guess";

// Of a hang, by the agent's look at the worker's process.
constexpr char kStoppedBySignal[] = "has been stopped by a signal (state T)";
constexpr char kTraceback[] = "Traceback (most recent call last)";

// Where words count.
enum class Among {
  kAll,
  // Words of everyday lines too, of a connection that is tried again or a cache that is left out:
  // not before a traceback, which tells the error. Words about NCCL do count there where the
  // traceback's are about NCCL.
  kAllOfError,
  // Only where an error is told, and no part of a name of Python's ("truncated_normal_").
  kError,
};

// Words in a worker's own lines, the more telling ones first.
struct Sign {
  const char* text;
  const char* word;
  const char* certainty;
  Among among = Among::kAll;
};
constexpr Sign kSigns[] = {
    {"uncorrectable ECC", "node", kSure},
    {"fallen off the bus", "node", kSure},
    {"(suspect device)", "node", kSure},
    {"Cannot allocate memory", "node", kLikely, Among::kAllOfError},
    {"No space left on device", "data", kLikely, Among::kAllOfError},
    {"Disk quota exceeded", "data", kLikely, Among::kAllOfError},
    {"Input/output error", "data", kLikely, Among::kAllOfError},
    {"Stale file handle", "data", kLikely, Among::kAllOfError},
    {"checksum", "data", kLikely, Among::kError},
    {"truncated", "data", kLikely, Among::kError},
    {"corrupt", "data", kLikely, Among::kError},
    {"UnicodeDecodeError", "data", kLikely, Among::kAllOfError},
    {"is killed by signal: Bus error", "data", kLikely},
    {"CUDA out of memory", "code", kLikely},
    {"OutOfMemoryError", "code", kLikely},
    {"NCCL WARN", "network", kLikely, Among::kAllOfError},
    {"ncclRemoteError", "network", kLikely, Among::kAllOfError},
    {"ncclSystemError", "network", kLikely, Among::kAllOfError},
    {"Watchdog caught collective operation timeout", "network", kLikely, Among::kAllOfError},
    {"did not answer in time", "network", kLikely, Among::kAllOfError},
    {"Connection reset by peer", "network", kLikely, Among::kAllOfError},
    {"Connection closed by peer", "network", kLikely, Among::kAllOfError},
    {"Connection refused", "network", kLikely, Among::kAllOfError},
    {"No route to host", "network", kLikely, Among::kAllOfError},
    {"Network is unreachable", "network", kLikely, Among::kAllOfError},
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

// Whether `line` has `text` outside of names of Python's.
bool HasWords(absl::string_view line, absl::string_view text) {
  for (size_t at = line.find(text); at != line.npos; at = line.find(text, at + 1)) {
    const size_t end = at + text.size();
    const bool is_part = (at > 0 && line[at - 1] == '_') || (end < line.size() && line[end] == '_');
    if (!is_part) return true;
  }
  return false;
}

// The first line of a traceback, or of what is left of one that is longer than what was kept:
// `  File "a.py", line 1, in main`; their number where there is none.
size_t TracebackOf(const std::vector<std::string>& lines) {
  const auto found = absl::c_find_if(lines, [](const std::string& line) {
    const size_t frame = line.find("  File \"");
    return absl::StrContains(line, kTraceback) ||
           (frame != line.npos && absl::StrContains(line.substr(frame), "\", line ") &&
            absl::StrContains(line.substr(frame), ", in "));
  });
  return found - lines.begin();
}

// The first line of the stack of a worker that hangs, or of what faulthandler writes at a crash,
// where no error follows; their number where there is none.
size_t StackOf(const std::vector<std::string>& lines) {
  size_t stack = lines.size();
  for (size_t i = 0; i < lines.size(); ++i) {
    if (absl::StrContains(lines[i], kTraceback)) stack = lines.size();
    const bool is_tool = absl::StartsWith(lines[i], "stacks of rank ") && lines[i].back() == ':';
    if (is_tool || absl::StrContains(lines[i], "(most recent call first)")) stack = i;
  }
  return stack;
}

bool IsHang(const WorkerFailure& failure) { return absl::StartsWith(failure.why, "hang:"); }

bool HasTraceback(const WorkerFailure& failure) {
  return TracebackOf(failure.last_log_lines) < failure.last_log_lines.size();
}

// The first of the last lines in which words count.
size_t BeginOf(const std::vector<std::string>& lines, Among among) {
  const size_t traceback = TracebackOf(lines);
  switch (among) {
    case Among::kAll:
      return 0;
    case Among::kAllOfError: {
      const bool is_about_nccl =
          std::any_of(lines.begin() + static_cast<std::ptrdiff_t>(traceback), lines.end(),
                      [](const std::string& line) { return absl::StrContains(line, "NCCL"); });
      return traceback == lines.size() || is_about_nccl ? 0 : traceback;
    }
    case Among::kError:
      // Of other programs the last line is it.
      return traceback < lines.size() ? traceback
                                      : lines.size() - std::min<size_t>(lines.size(), 1);
  }
  return 0;
}

const std::string* FindWords(const WorkerFailure& failure, absl::string_view text,
                             Among among = Among::kAll) {
  if (absl::StrContains(failure.why, text)) return &failure.why;
  if (const std::string* line = Find(failure.error_lines, text)) return line;
  const std::vector<std::string>& lines = failure.last_log_lines;
  for (size_t i = BeginOf(lines, among); i < lines.size(); ++i) {
    const bool is_there =
        among == Among::kError ? HasWords(lines[i], text) : absl::StrContains(lines[i], text);
    if (is_there) return &lines[i];
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
  // Lines that name no process stand there whatever ended: a traceback says more about its own.
  if (HasTraceback(failure)) return false;
  const auto broken = absl::c_find_if(failure.kernel_lines, TellsBrokenHardware);
  if (broken == failure.kernel_lines.end()) return false;
  *verdict = Of("node", kSure, absl::StrCat("the kernel: ", *broken));
  return true;
}

bool ReadDisk(const WorkerFailure& failure, Verdict* verdict) {
  const std::string* const line = Find(failure.kernel_lines, "I/O error");
  if (line == nullptr || HasTraceback(failure)) return false;
  *verdict = Of("data", kLikely, absl::StrCat("the kernel: ", *line));
  return true;
}

bool ReadSignal(const WorkerFailure& failure, Verdict* verdict) {
  // Of a process of the worker's.
  const std::string* const child = FindWords(failure, kKilledChild, Among::kAllOfError);
  const int signal = failure.signal != 0 ? failure.signal
                     : failure.exit_code > 128 && failure.exit_code < 128 + 65
                         ? failure.exit_code - 128
                     : child != nullptr ? SIGKILL
                                        : 0;
  switch (signal) {
    case SIGKILL: {
      if (absl::StrContains(failure.why, kByKernel)) {
        *verdict = Of("node", kLikely, failure.why);
        return true;
      }
      const bool is_known = absl::StrContains(failure.why, kNotForMemory);
      if (child != nullptr && !is_known) {
        *verdict = Of("node", kGuess, absl::StrCat("its words: ", *child));
        return true;
      }
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
    const std::string* const line = FindWords(failure, sign.text, sign.among);
    if (line == nullptr) continue;
    *verdict = Of(sign.word, sign.certainty, absl::StrCat("its words: ", *line));
    return true;
  }
  const std::string* line = FindWords(failure, kTraceback);
  // The last line of a traceback without its head is the error.
  if (line == nullptr && HasTraceback(failure)) line = &failure.last_log_lines.back();
  if (line == nullptr) return false;
  *verdict = Of("code", kSure, absl::StrCat("its words: ", *line));
  return true;
}

Verdict JudgeFailure(const WorkerFailure& failure) {
  Verdict verdict;
  if (ReadKernel(failure, &verdict) || ReadSignal(failure, &verdict) ||
      ReadDisk(failure, &verdict)) {
    return verdict;
  }
  if (IsHang(failure)) {
    if (absl::StrContains(failure.why, kStoppedBySignal)) return Of("kill", kLikely, failure.why);
    // A rank that ended before the others, and that they wait for.
    if (absl::StrContains(failure.why, "ended with 0")) return Of("code", kLikely, failure.why);
    const bool may_wait = absl::StrContains(failure.why, "it may wait for another rank");
    return Of(may_wait ? "network" : "code", kGuess, failure.why);
  }
  if (ReadWords(failure, &verdict)) return verdict;
  if (failure.signal != 0) return Of("code", kLikely, failure.why);  // a crash
  const bool cannot_start =
      failure.is_final || failure.exit_code == 126 || failure.exit_code == 127;
  return Of("code", cannot_start ? kSure : kGuess, failure.why);
}

Verdict JudgeDeparture(const std::string& cause, bool is_unfit) {
  if (is_unfit) return Of("node", kSure, cause);
  if (absl::StrContains(cause, " left: Stopped by ")) return Of("kill", kLikely, cause);
  // Its program, or its store, cannot be started.
  if (absl::StrContains(cause, " left: ")) return Of("code", kLikely, cause);
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

// The last line of a traceback, "ValueError: 17 is too much", without words that have a digit, as
// far as a report keeps it; "": there is none.
std::string ErrorOf(const WorkerFailure& failure) {
  if (IsHang(failure)) return "";  // Its lines are its stack.
  WorkerFailure kept = failure;
  ShortenFailure(&kept);
  if (!HasTraceback(kept)) return "";
  std::string error;
  for (const absl::string_view word : absl::StrSplit(kept.last_log_lines.back(), ' ')) {
    if (absl::c_none_of(word, absl::ascii_isdigit)) absl::StrAppend(&error, " ", word);
  }
  return error;
}

// The parts that two incidents of the same kind have in common. "hang: no step" of "hang: no step
// for 301 s (limit 300 s), phase step, step 1701": the words behind differ from time to time.
std::tuple<std::string, std::string, std::string> KindOf(const Incident& incident) {
  const WorkerFailure* const broke = BreakOf(incident.cause, incident.failures);
  if (broke == nullptr) return {incident.verdict.word, "", ""};
  const std::string& why = broke->why;
  return {incident.verdict.word, why.substr(0, std::min(why.find(" for "), why.find(" ("))),
          ErrorOf(*broke)};
}

// The part of a line of parts that has `text`: "...; ranks 4,5: all_reduce #17 of dp waits ...".
std::string PartWith(absl::string_view line, absl::string_view text) {
  for (const absl::string_view part : absl::StrSplit(line, "; ")) {
    if (absl::StrContains(part, text)) return std::string(part);
  }
  return std::string(line);
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
      if (line == nullptr) continue;
      const bool is_agents = line == &failure.why;
      add("in a collective", failure, is_agents ? PartWith(*line, text) : *line);
      break;
    }
  }
}

}  // namespace

void ShortenFailure(WorkerFailure* failure) {
  std::vector<std::string>& lines = failure->last_log_lines;
  if (const size_t stack = StackOf(lines); stack < lines.size() && lines.size() > kMostLines) {
    lines.erase(lines.begin(), lines.begin() + static_cast<std::ptrdiff_t>(
                                                   std::min(stack, lines.size() - kMostLines)));
    lines.resize(kMostLines);
  }
  for (auto* const list : {&lines, &failure->error_lines, &failure->kernel_lines}) {
    if (list->size() > kMostLines) list->erase(list->begin(), list->end() - kMostLines);
    for (std::string& line : *list) line = Utf8(line, kLineBytes);
  }
}

Verdict JudgeIncident(const std::string& cause, const std::vector<WorkerFailure>& failures,
                      bool is_unfit) {
  const WorkerFailure* const broke = BreakOf(cause, failures);
  Verdict verdict = broke == nullptr ? JudgeDeparture(cause, is_unfit) : JudgeFailure(*broke);
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

bool AreDifferentFailures(const Incident& a, const Incident& b) {
  const bool are_workers =
      BreakOf(a.cause, a.failures) != nullptr && BreakOf(b.cause, b.failures) != nullptr;
  return are_workers && KindOf(a) != KindOf(b);
}

bool IsAlike(const Incident& a, const Incident& b) {
  return a.host == b.host && KindOf(a) == KindOf(b);
}

}  // namespace convene::rendezvous
