#include "worker_runtime/tokenizer/tokenizer.h"

#include <algorithm>

namespace convene::worker {

int Tokenizer::document_vocabulary_size() const {
  int size = vocabulary_size_;
  for (std::string bytes; size > 0; --size) {
    AppendTokenBytes(size - 1, &bytes);
    if (!bytes.empty()) break;
  }
  for (const std::vector<int32_t>* side : {&prefix_, &suffix_}) {
    for (const int32_t id : *side) size = std::max(size, id + 1);
  }
  return std::max(size, end_of_document_.value_or(-1) + 1);
}

}  // namespace convene::worker
