#include "agent/core/kernel_lines.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "rendezvous/quorum/kernel_words.h"
#include "tools/base/text.h"

namespace convene::agent {
namespace {

constexpr size_t kLineBytes = 300;

// Whether `text` holds `word` and no digit right behind it.
bool HoldsNumber(absl::string_view text, const std::string& word) {
  for (size_t at = text.find(word); at != absl::string_view::npos; at = text.find(word, at + 1)) {
    const size_t end = at + word.size();
    if (end == text.size() || text[end] < '0' || text[end] > '9') return true;
  }
  return false;
}

bool IsAboutHardware(absl::string_view text) {
  // A drive without a medium.
  if (absl::StrContains(text, "dev sr") || absl::StrContains(text, "dev fd")) return false;
  for (const char* const hardware :
       {"NVRM: Xid", "Hardware Error", "Machine check", "machine check", "I/O error"}) {
    if (absl::StrContains(text, hardware)) return true;
  }
  return false;
}

// Xid 45: the driver takes down a channel of a program behind another error. Of a machine check or
// a firmware's report one line tells how bad it was.
bool IsBeside(absl::string_view text) {
  if (absl::StrContains(text, "NVRM: Xid")) return absl::StrContains(text, "): 45,");
  return absl::StrContains(text, "Hardware Error") && !rendezvous::TellsBrokenHardware(text);
}

bool IsAbout(absl::string_view text, int64_t pid) {
  // "oom-kill:...,task=python3,pid=77,uid=0", "Out of memory: Killed process 77 (python3)",
  // "Memory cgroup out of memory: Killed process 77", "python3[77]: segfault at 0 ip ...",
  // "traps: python3[77] trap divide error".
  const bool is_kill =
      absl::StrContains(text, "oom-kill") || absl::StrContains(text, "ut of memory");
  const bool is_crash = absl::StrContains(text, "segfault") || absl::StrContains(text, "trap");
  return (is_kill && (HoldsNumber(text, absl::StrCat("pid=", pid)) ||
                      HoldsNumber(text, absl::StrCat("process ", pid)))) ||
         (is_crash && absl::StrContains(text, absl::StrCat("[", pid, "]")));
}

}  // namespace

KernelRecord ReadKernelRecord(absl::string_view record) {
  const size_t begin = record.find(';');
  if (begin == absl::string_view::npos) return {};
  const std::vector<absl::string_view> fields = absl::StrSplit(record.substr(0, begin), ',');
  int64_t microseconds = 0;
  if (fields.size() < 3 || !absl::SimpleAtoi(fields[2], &microseconds)) return {};
  record.remove_prefix(begin + 1);
  std::string text = Utf8(record.substr(0, record.find('\n')), kLineBytes);
  for (char& c : text) {
    if (c >= 0 && c < ' ') c = ' ';
  }
  return {MonotonicTime::FromEpoch(absl::Microseconds(microseconds)), std::move(text)};
}

std::vector<std::string> KernelLinesAbout(const std::vector<KernelRecord>& records, int64_t pid,
                                          MonotonicTime now) {
  std::vector<std::string> lines;
  for (const KernelRecord& record : records) {
    const bool is_new = now - record.at <= kHardwareLinesAge;
    if ((is_new && IsAboutHardware(record.text)) || IsAbout(record.text, pid)) {
      lines.push_back(record.text);
    }
  }
  // There may be many, behind the line that tells what happened.
  for (auto line = lines.begin(); line != lines.end() && lines.size() > kMostKernelLines;) {
    line = IsBeside(*line) ? lines.erase(line) : std::next(line);
  }
  if (lines.size() > kMostKernelLines) lines.erase(lines.begin(), lines.end() - kMostKernelLines);
  return lines;
}

}  // namespace convene::agent
