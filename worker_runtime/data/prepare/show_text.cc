#include "worker_runtime/data/prepare/show_text.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "tools/base/text.h"
#include "worker_runtime/report/number_text.h"

namespace convene::worker {
namespace {

// As MarkCounted writes them.
constexpr char kBegin[] = "{+";
constexpr char kEnd[] = "+}";
constexpr size_t kSampleBytes = 1 << 16;

void AppendLine(const std::string& name, const std::string& value, std::string* text) {
  absl::StrAppendFormat(text, "%-11s %s\n", name, value);
}

std::string TokenizerText(const TokenizerIdentity& tokenizer) {
  if (tokenizer.kind.empty()) return "the file does not say";
  std::string text = tokenizer.kind;
  if (!tokenizer.path.empty() && tokenizer.path != tokenizer.kind)
    absl::StrAppend(&text, ", ", tokenizer.path);
  absl::StrAppend(&text, ", fingerprint ", absl::Hex(tokenizer.fingerprint, absl::kZeroPad16));
  if (tokenizer.end_of_document.has_value()) {
    absl::StrAppend(&text, ", token ", *tokenizer.end_of_document, " ends a document");
  }
  return text;
}

// Calls `part(begin, end, counts)` for each run of tokens that count alike.
template <typename Part>
void ForEachRun(const DocumentSample& sample, const Part& part) {
  size_t begin = 0;
  for (size_t i = 1; i <= sample.ids.size(); ++i) {
    if (i < sample.ids.size() && sample.counted[i] == sample.counted[begin]) continue;
    part(begin, i, sample.counted[begin] != 0);
    begin = i;
  }
}

}  // namespace

std::string DescriptionText(const TokenDescription& description, int64_t counted) {
  std::string text;
  AppendLine("kind", absl::StrCat(description.kind, ", ", HumanBytes(description.file_bytes)),
             &text);
  std::string documents = "the format does not know them";
  if (description.documents.has_value()) {
    documents = WithThousands(*description.documents);
    if (description.shortest_document.has_value() && description.longest_document.has_value()) {
      absl::StrAppend(&documents, " (", WithThousands(*description.shortest_document), " to ",
                      WithThousands(*description.longest_document), " tokens)");
    }
  }
  AppendLine("documents", documents, &text);
  AppendLine("tokens", WithThousands(description.tokens), &text);
  std::string vocabulary = "the file does not say";
  if (description.vocabulary_size.has_value()) {
    vocabulary = WithThousands(*description.vocabulary_size);
    const std::optional<CompactVocabulary>& compact = description.tokenizer.compact;
    if (compact.has_value()) {
      absl::StrAppend(&vocabulary, " of the tokenizer's ", WithThousands(compact->whole_size),
                      " (compact)");
    }
  }
  AppendLine("vocabulary", vocabulary, &text);
  AppendLine("tokenizer", TokenizerText(description.tokenizer), &text);
  const double share =
      description.tokens == 0 ? 0 : 100.0 * static_cast<double>(counted) / description.tokens;
  AppendLine("counted",
             description.has_counted ? absl::StrFormat("%s tokens (%.1f%%) count in the loss",
                                                       WithThousands(counted), share)
                                     : "all tokens count in the loss",
             &text);
  return text;
}

std::string SampleText(const DocumentSample& sample, const Tokenizer& tokenizer, MarkStyle style) {
  // Where all count there is nothing to mark.
  std::vector<uint8_t> marked = sample.counted;
  marked.resize(sample.ids.size(), 0);
  return MarkCounted(tokenizer, sample.ids, marked, style, kSampleBytes) + "\n";
}

std::string SampleIdsText(const DocumentSample& sample) {
  if (sample.counted.empty()) return IdsText(sample.ids) + "\n";
  std::vector<std::string> runs;
  ForEachRun(sample, [&](size_t begin, size_t end, bool counts) {
    runs.push_back(absl::StrCat(
        counts ? kBegin : "", IdsText(absl::MakeConstSpan(sample.ids).subspan(begin, end - begin)),
        counts ? kEnd : ""));
  });
  return absl::StrJoin(runs, " ") + "\n";
}

std::string IdsText(absl::Span<const int32_t> ids) { return absl::StrJoin(ids, " "); }

std::string BlendText(const std::vector<BlendedFile>& files) {
  size_t width = 4;
  double largest = 0, weights = 0, tokens = 0;
  for (const BlendedFile& file : files) largest = std::max(largest, file.weight);
  for (const BlendedFile& file : files) {
    width = std::max(width, file.path.size());
    weights += file.weight / largest;  // brings the sum into range
    tokens += static_cast<double>(file.tokens);
  }
  std::string text = absl::StrFormat("%-*s  %7s  %17s  %17s  %s\n", width, "file", "share",
                                     "tokens", "read in a pass", "times");
  for (const BlendedFile& file : files) {
    const double share = file.weight / largest / weights;
    const double read = share * tokens;
    absl::StrAppendFormat(&text, "%-*s  %6.2f%%  %17s  %17s  %.2f\n", width, file.path, 100 * share,
                          WithThousands(file.tokens), WithThousands(std::llround(read)),
                          file.tokens == 0 ? 0.0 : read / static_cast<double>(file.tokens));
  }
  absl::StrAppend(&text, "a pass is ", WithThousands(std::llround(tokens)),
                  " tokens, as many as all files have\n");
  return text;
}

}  // namespace convene::worker
