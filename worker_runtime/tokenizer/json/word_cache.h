// Remembers the ids of short words, so that a word that comes again is not merged again.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace convene::worker {

// A table of fixed size in which a new word drops the one in its place. Not thread-safe: each
// encoder has its own.
class WordCache {
 public:
  static constexpr size_t kLongestWord = 22;  // bytes
  static constexpr size_t kMostIds = 10;

  // 2 MB.
  WordCache();

  // Appends the word's ids if they are known.
  bool Find(absl::string_view word, std::vector<int32_t>* ids) const;

  // Longer words, or ones of more ids, are not kept.
  void Keep(absl::string_view word, absl::Span<const int32_t> ids);

 private:
  // One line of the processor's cache.
  struct alignas(64) Entry {
    uint8_t word_bytes = 0;  // 0: free
    uint8_t id_count = 0;
    char word[kLongestWord] = {};
    int32_t ids[kMostIds] = {};
  };

  static size_t Slot(absl::string_view word);

  std::vector<Entry> entries_;
};

}  // namespace convene::worker
