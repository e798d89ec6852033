// Finds the keys that a text begins with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"

namespace convene::worker {

// A double array trie (Aoe 1989): the child of a node by a byte is one addition and one comparison
// away. PURE, read-only once built, thread-safe; keeps nothing of the keys' memory.
class ByteTrie {
 public:
  struct Entry {
    absl::string_view key;
    int32_t value = 0;  // not negative
  };
  // Of equal keys the last counts. An empty key is never found.
  explicit ByteTrie(std::vector<Entry> entries);

  static constexpr uint32_t kRoot = 0;
  static constexpr int32_t kNoValue = -1;

  // Goes from `node` to its child by `byte`; false, and `node` unchanged, where no key goes on so.
  bool Step(uint32_t* node, unsigned char byte) const {
    const uint32_t child = units_[*node].base + byte;
    if (units_[child].parent != *node) return false;
    *node = child;
    return true;
  }

  // The value of the key that ends at `node`, or kNoValue.
  int32_t value(uint32_t node) const { return units_[node].value; }

  // Whether a key that is longer than the one to `node` begins with that.
  bool GoesOn(uint32_t node) const { return units_[node].base != 0; }

  struct Match {
    size_t length = 0;  // bytes; 0: no key
    int32_t value = kNoValue;
  };
  // The longest key that `text` begins with.
  Match Longest(absl::string_view text) const;

  struct Found {
    size_t begin = 0;
    Match match;  // its length is 0: there is none
  };
  // The first place in `text`, from byte `from` on, where a key begins, and the longest key there.
  // Its time is the text's length times the longest key's at most.
  Found FindFirst(absl::string_view text, size_t from) const;

 private:
  friend class ByteTrieBuilder;

  struct Unit {
    uint32_t base = 0;  // the child by byte b stands at base + b, if its parent is this node
    uint32_t parent = 0xFFFFFFFF;
    int32_t value = kNoValue;
  };
  std::vector<Unit> units_;  // no base is greater than its size - 256
};

}  // namespace convene::worker
