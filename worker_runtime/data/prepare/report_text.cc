#include "worker_runtime/data/prepare/report_text.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "tools/base/text.h"
#include "worker_runtime/report/number_text.h"

namespace convene::worker {
namespace {

// "1 document", "2 documents".
std::string Counted(int64_t count, const std::string& noun) {
  return absl::StrCat(WithThousands(count), " ", noun, count == 1 ? "" : "s");
}

}  // namespace

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
