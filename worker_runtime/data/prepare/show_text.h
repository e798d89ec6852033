// PURE. The words for a person about files of tokens.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "worker_runtime/data/chat/marked_sample.h"
#include "worker_runtime/data/store/describe.h"
#include "worker_runtime/tokenizer/tokenizer.h"

namespace convene::worker {

// Lines "name   value". `counted`: of all tokens, those that count in the loss.
std::string DescriptionText(const TokenDescription& description, int64_t counted);

// The sample's text as MarkCounted has it, without marks where all tokens count. Ends with a
// newline.
std::string SampleText(const DocumentSample& sample, const Tokenizer& tokenizer, MarkStyle style);

// The same as ids with spaces between; {+ and +} stand around those that count, where others do
// not.
std::string SampleIdsText(const DocumentSample& sample);

// "1 2 3", in one line.
std::string IdsText(absl::Span<const int32_t> ids);

struct BlendedFile {
  std::string path;
  int64_t tokens = 0;
  double weight = 0;  // in any unit
};
// A table: each file's share, its tokens, how many of them pass while as many tokens pass as all
// files have, and how often each is read meanwhile.
std::string BlendText(const std::vector<BlendedFile>& files);

}  // namespace convene::worker
