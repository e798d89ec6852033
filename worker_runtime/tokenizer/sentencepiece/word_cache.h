// Remembers the ids of short words.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "absl/strings/string_view.h"

namespace convene::worker {

// A table of fixed size (2 MiB, made at the first Put), in which a word takes the place of the one
// that was there. Not thread-safe.
class WordCache {
 public:
  static constexpr size_t kLongestWord = 22;  // bytes
  static constexpr size_t kMostIds = 8;

  // One cache line.
  struct Entry {
    std::array<int32_t, kMostIds> ids;
    uint64_t hash = 0;
    uint8_t id_count = 0;
    uint8_t length = 0;  // 0: empty
    std::array<char, kLongestWord> text;
  };

  // `hash` is the word's, by any function that is always the same. Null: not remembered.
  const Entry* Find(absl::string_view word, uint64_t hash) const {
    if (entries_.empty()) return nullptr;
    const Entry& entry = entries_[hash % kEntries];
    if (entry.hash != hash || entry.length != word.size()) return nullptr;
    if (std::memcmp(entry.text.data(), word.data(), word.size()) != 0) return nullptr;
    return &entry;
  }

  // Does nothing with a word that is too long or has too many ids.
  void Put(absl::string_view word, uint64_t hash, const std::vector<int32_t>& ids) {
    if (word.empty() || word.size() > kLongestWord || ids.size() > kMostIds) return;
    if (entries_.empty()) entries_.resize(kEntries);
    Entry& entry = entries_[hash % kEntries];
    entry.hash = hash;
    entry.length = static_cast<uint8_t>(word.size());
    std::memcpy(entry.text.data(), word.data(), word.size());
    entry.id_count = static_cast<uint8_t>(ids.size());
    std::memcpy(entry.ids.data(), ids.data(), ids.size() * sizeof(int32_t));
  }

 private:
  static constexpr size_t kEntries = size_t{1} << 15;
  static_assert(sizeof(Entry) == 64);

  std::vector<Entry> entries_;
};

}  // namespace convene::worker
