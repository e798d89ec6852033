#include "worker_runtime/tokenizer/json/word_cache.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>

namespace convene::worker {
namespace {

constexpr size_t kEntries = size_t{1} << 15;

}  // namespace

WordCache::WordCache() : entries_(kEntries) { static_assert(sizeof(Entry) == 64); }

size_t WordCache::Slot(absl::string_view word) {
  return XXH3_64bits(word.data(), word.size()) % kEntries;
}

bool WordCache::Find(absl::string_view word, std::vector<int32_t>* ids) const {
  if (word.empty() || word.size() > kLongestWord) return false;
  const Entry& entry = entries_[Slot(word)];
  if (entry.word_bytes != word.size() ||
      std::memcmp(entry.word, word.data(), word.size()) != 0) {
    return false;
  }
  ids->insert(ids->end(), entry.ids, entry.ids + entry.id_count);
  return true;
}

void WordCache::Keep(absl::string_view word, absl::Span<const int32_t> ids) {
  if (word.empty() || word.size() > kLongestWord || ids.size() > kMostIds) return;
  Entry& entry = entries_[Slot(word)];
  entry.word_bytes = static_cast<uint8_t>(word.size());
  entry.id_count = static_cast<uint8_t>(ids.size());
  std::memcpy(entry.word, word.data(), word.size());
  std::copy(ids.begin(), ids.end(), entry.ids);
}

}  // namespace convene::worker
