#include "worker_runtime/replicas/untouched_memory.h"

#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "tools/base/files.h"

namespace convene::worker {
namespace {

// Of a line as "Rss:       1234 kB".
int64_t BytesOf(const std::vector<absl::string_view>& words) {
  int64_t kib = 0;
  return words.size() == 3 && absl::SimpleAtoi(words[1], &kib) ? kib << 10 : 0;
}

}  // namespace

int64_t UntouchedIn(absl::string_view smaps) {
  int64_t untouched = 0;
  bool counts = false;
  int64_t size = 0;
  int64_t written = 0;
  for (const absl::string_view line : absl::StrSplit(smaps, '\n')) {
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (words.empty()) continue;
    if (!absl::EndsWith(words[0], ":")) {
      // "7f0000000000-7f0001000000 rw-p 00000000 00:00 0": a sixth word would be a file's name.
      counts = words.size() == 5 && words[1] == "rw-p";
    } else if (words[0] == "Size:") {
      size = BytesOf(words);
    } else if (words[0] == "Rss:") {
      written = BytesOf(words);
    } else if (words[0] == "VmFlags:" && counts && absl::c_linear_search(words, "hg")) {
      // The last line of a piece.
      untouched += size - written;
    }
  }
  return untouched;
}

int64_t UntouchedBytes() {
  const auto smaps = ReadFile("/proc/self/smaps");
  return smaps.ok() ? UntouchedIn(*smaps) : 0;
}

}  // namespace convene::worker
