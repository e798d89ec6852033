// A cache of words and their ids, for tokenizers that look at one word after another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "absl/strings/string_view.h"

namespace convene::worker {

// The words of up to kWords * 8 - 1 bytes with up to kIds ids, in 2^kBits slots, which are made
// with it. A word takes the place of the one that was in its slot. Not thread-safe.
template <size_t kWords, size_t kIds, int kBits>
class WordIds {
 public:
  static constexpr size_t kLongest = kWords * 8 - 1;

  WordIds() : slots_(size_t{1} << kBits) {}

  // Appends the ids of `word`, any bytes but none: those that stand here, else what encode()
  // appends to `ids`, which then stands here, unless the word is too long or has too many.
  template <typename Encode>
  void Append(absl::string_view word, std::vector<int32_t>* ids, const Encode& encode) {
    if (word.size() > kLongest) return encode();
    const Key key = KeyOf(word);
    Slot& slot = slots_[key.Slot()];
    if (slot.key == key) {
      ids->push_back(slot.ids[0]);
      for (size_t i = 1; i < kIds && slot.ids[i] >= 0; ++i) ids->push_back(slot.ids[i]);
      return;
    }
    const size_t first = ids->size();
    encode();
    const size_t count = ids->size() - first;
    if (count == 0 || count > kIds) return;
    slot.key = key;
    for (size_t i = 0; i < kIds; ++i) slot.ids[i] = i < count ? (*ids)[first + i] : -1;
  }

 private:
  static_assert(kWords == 2 || kWords == 4);

  // A word with its length in the last byte: equal keys are equal words. They need no hash to
  // compare, and no pointer to follow.
  struct Key {
    uint64_t parts[kWords] = {};

    friend bool operator==(const Key&, const Key&) = default;
    size_t Slot() const {
      uint64_t hash = 0;
      for (const uint64_t part : parts) {
        hash = (hash ^ part) * 0x9E3779B97F4A7C15u;
        hash ^= hash >> 32;
      }
      return static_cast<size_t>((hash * 0x9E3779B97F4A7C15u) >> (64 - kBits));
    }
  };

  // REQUIRES: 1 to kLongest bytes.
  static Key KeyOf(absl::string_view word) {
    Key key;
    auto* const bytes = reinterpret_cast<char*>(key.parts);
    const char* const from = word.data();
    const size_t size = word.size();
    // Two copies of a fixed size that overlap are several times as fast as one of any size.
    if constexpr (kWords > 2) {
      if (size >= 16) {
        std::memcpy(bytes, from, 16);
        std::memcpy(bytes + size - 16, from + size - 16, 16);
        bytes[kLongest] = static_cast<char>(size);
        return key;
      }
    }
    if (size >= 8) {
      std::memcpy(bytes, from, 8);
      std::memcpy(bytes + size - 8, from + size - 8, 8);
    } else if (size >= 4) {
      key.parts[0] = Load4(from) | Load4(from + size - 4) << (8 * (size - 4));
    } else {
      key.parts[0] = Load1(from) | Load1(from + size / 2) << (8 * (size / 2)) |
                     Load1(from + size - 1) << (8 * (size - 1));
    }
    bytes[kLongest] = static_cast<char>(size);
    return key;
  }

  struct Slot {
    Key key;  // of no word at first: its length is 0
    int32_t ids[kIds] = {};
  };

  static uint64_t Load4(const char* from) {
    uint32_t value = 0;
    std::memcpy(&value, from, sizeof(value));
    return value;
  }
  static uint64_t Load1(const char* from) { return static_cast<unsigned char>(*from); }

  std::vector<Slot> slots_;
};

}  // namespace convene::worker
