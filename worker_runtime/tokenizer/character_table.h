// The symbols of characters, and which characters may become one token together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace convene::worker {

// A number for each character, -1 where none was set: blocks of 256 characters, of which those
// without a number are one.
class CharacterTable {
 public:
  CharacterTable() : block_of_(0x110000 >> 8), numbers_(256, -1) {}

  // REQUIRES: character <= 0x10FFFF.
  int32_t Find(char32_t character) const {
    return numbers_[block_of_[character >> 8] << 8 | (character & 0xFF)];
  }
  void Set(char32_t character, int32_t number) {
    uint32_t& block = block_of_[character >> 8];
    if (block == 0) {
      block = static_cast<uint32_t>(numbers_.size() >> 8);
      numbers_.resize(numbers_.size() + 256, -1);
    }
    numbers_[block << 8 | (character & 0xFF)] = number;
  }

 private:
  std::vector<uint32_t> block_of_;
  std::vector<int32_t> numbers_;
};

// Fibonacci hashing (Knuth, volume 3, section 6.4) of a pair: the upper bits are the good ones.
inline uint64_t HashOfPair(uint32_t left, uint32_t right) {
  const uint64_t key = static_cast<uint64_t>(left) << 32 | right;
  return (key ^ key >> 29) * 0x9E3779B97F4A7C15u;
}

// A set of pairs, by their hashes: a Bloom filter with one hash (Bloom 1970). It may say yes too
// often, never no.
class PairFilter {
 public:
  // 2^bits bits. REQUIRES: 6 <= bits < 64.
  explicit PairFilter(int bits) : shift_(64 - bits), words_((size_t{1} << bits) / 64) {}

  void Add(uint64_t hash) { words_[hash >> shift_ >> 6] |= uint64_t{1} << (hash >> shift_ & 63); }
  bool MayHave(uint64_t hash) const {
    return (words_[hash >> shift_ >> 6] >> (hash >> shift_ & 63) & 1) != 0;
  }

 private:
  int shift_;
  std::vector<uint64_t> words_;
};

}  // namespace convene::worker
