#include "worker_runtime/replicas/untouched_memory.h"

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "tools/base/files.h"

namespace convene::worker {
namespace {

constexpr int64_t kLeastBytes = int64_t{16} << 20;

// Of a line as "Rss:       1234 kB".
int64_t BytesOf(absl::string_view line) {
  const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
  int64_t kib = 0;
  return words.size() == 3 && absl::SimpleAtoi(words[1], &kib) ? kib << 10 : 0;
}

}  // namespace

int64_t UntouchedIn(absl::string_view smaps) {
  int64_t untouched = 0;
  bool counts = false;
  int64_t size = 0;
  for (const absl::string_view line : absl::StrSplit(smaps, '\n')) {
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (!words.empty() && !absl::EndsWith(words[0], ":")) {
      // "7f0000000000-7f0001000000 rw-p 00000000 00:00 0": a sixth word would be a file's name.
      counts = words.size() == 5 && words[1] == "rw-p";
    } else if (absl::StartsWith(line, "Size:")) {
      size = BytesOf(line);
    } else if (counts && size >= kLeastBytes && absl::StartsWith(line, "Rss:")) {
      untouched += size - BytesOf(line);
    }
  }
  return untouched;
}

int64_t UntouchedBytes() {
  const auto smaps = ReadFile("/proc/self/smaps");
  return smaps.ok() ? UntouchedIn(*smaps) : 0;
}

}  // namespace convene::worker
