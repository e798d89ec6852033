#include "worker_runtime/data/store/token_source.h"

#include <algorithm>

namespace convene::worker {

int TokenSource::document_vocabulary_size() const {
  const absl::Span<const uint16_t> bytes = token_bytes();
  int size = vocabulary_size();
  if (bytes.empty()) return size;
  while (size > 0 && bytes[size - 1] == 0) --size;
  return std::max(size, tokenizer().end_of_document.value_or(-1) + 1);
}

}  // namespace convene::worker
