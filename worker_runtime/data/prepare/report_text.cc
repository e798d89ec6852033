#include "worker_runtime/data/prepare/report_text.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "tools/base/text.h"
#include "worker_runtime/report/number_text.h"
#include "worker_runtime/report/progress.h"

namespace convene::worker {
namespace {

// A rate over less time says little.
constexpr absl::Duration kLeastTime = absl::Milliseconds(500);

// "1 document", "2 documents".
std::string Counted(int64_t count, const std::string& noun) {
  return absl::StrCat(WithThousands(count), " ", noun, count == 1 ? "" : "s");
}

}  // namespace

void ProgressRate::Record(int64_t done_bytes, absl::Duration now) {
  if (!has_begun_) {
    has_begun_ = true;
    first_bytes_ = done_bytes;
    first_ = now;
  }
  done_bytes_ = done_bytes;
  now_ = now;
}

std::string ProgressRate::Text(int64_t total_bytes) const {
  std::string text = ProgressBar(done_bytes_, total_bytes);
  const absl::Duration time = now_ - first_;
  const double done = static_cast<double>(done_bytes_ - first_bytes_);
  if (time < kLeastTime || done <= 0) return text;
  const double rate = done / absl::ToDoubleSeconds(time);
  const absl::Duration rest = absl::Seconds(static_cast<double>(total_bytes - done_bytes_) / rate);
  return absl::StrCat(text, "  ", HumanBytes(rate), "/s  ETA ", HumanDuration(rest));
}

std::string SummaryText(const std::string& path, int vocabulary_size, absl::Duration time,
                        const PrepareSummary& summary) {
  std::string text = absl::StrCat(path, ": ", Counted(summary.documents, "document"), ", ",
                                  Counted(summary.tokens, "token"), " of a vocabulary of ",
                                  WithThousands(vocabulary_size), ", ",
                                  HumanBytes(static_cast<double>(summary.text_bytes)), " of text");
  if (summary.tokens > 0) {
    absl::StrAppend(
        &text, absl::StrFormat(" (%.2f bytes a token)", static_cast<double>(summary.text_bytes) /
                                                            static_cast<double>(summary.tokens)));
  }
  if (summary.counted_tokens < summary.tokens) {
    absl::StrAppend(&text, ", ", WithThousands(summary.counted_tokens),
                    " tokens count in the loss");
  }
  absl::StrAppend(&text, ", in ", HumanDuration(time),
                  summary.resumed ? " (went on from an earlier part)\n" : "\n");
  std::vector<std::string> left_out;
  if (summary.duplicates > 0) left_out.push_back(Counted(summary.duplicates, "duplicate"));
  if (summary.empty_documents > 0) {
    left_out.push_back(Counted(summary.empty_documents, "empty document"));
  }
  if (summary.bad_lines > 0) {
    left_out.push_back(absl::StrCat(Counted(summary.bad_lines, "broken line"),
                                    " (the first: ", summary.first_bad_line, ")"));
  }
  if (!left_out.empty()) absl::StrAppend(&text, "left out: ", absl::StrJoin(left_out, ", "), "\n");
  return text;
}

}  // namespace convene::worker
