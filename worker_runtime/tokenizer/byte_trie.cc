#include "worker_runtime/tokenizer/byte_trie.h"

#include <algorithm>

namespace convene::worker {

// Gives every node a base, depth first over the sorted keys. Free units stand in a list, in the
// order of their places; unit 0, the root, is the list's head and end.
class ByteTrieBuilder {
 public:
  ByteTrieBuilder(const std::vector<ByteTrie::Entry>& entries, std::vector<ByteTrie::Unit>* units)
      : entries_(entries), units_(*units), next_(1, 0), previous_(1, 0) {
    units_.resize(1);
    Grow(1);
  }

  void Build() {
    std::vector<Range> open = {{ByteTrie::kRoot, 0, entries_.size(), 0}};
    while (!open.empty()) {
      const Range range = open.back();
      open.pop_back();
      AddChildren(range, &open);
    }
    // A base may be any unit's place, and Step adds a byte to it.
    units_.resize(units_.size() + 256);
  }

 private:
  // The keys [begin, end) share their first `depth` bytes, which lead to `node`.
  struct Range {
    uint32_t node;
    size_t begin, end;
    size_t depth;
  };

  void AddChildren(Range range, std::vector<Range>* open) {
    if (range.begin < range.end && entries_[range.begin].key.size() == range.depth) {
      if (range.depth > 0) units_[range.node].value = entries_[range.begin].value;
      ++range.begin;
    }
    if (range.begin == range.end) return;
    labels_.clear();
    starts_.clear();
    for (size_t i = range.begin; i < range.end; ++i) {
      const auto label = static_cast<unsigned char>(entries_[i].key[range.depth]);
      if (!labels_.empty() && labels_.back() == label) continue;
      labels_.push_back(label);
      starts_.push_back(i);
    }
    starts_.push_back(range.end);
    const uint32_t base = FindBase();
    units_[range.node].base = base;
    for (size_t i = 0; i < labels_.size(); ++i) {
      const uint32_t child = base + labels_[i];
      Unlink(child);
      units_[child].parent = range.node;
      open->push_back({child, starts_[i], starts_[i + 1], range.depth + 1});
    }
  }

  // A base of at least 1 with a free unit for each of labels_.
  uint32_t FindBase() {
    int tries = 0;
    for (uint32_t unit = next_[0]; unit != 0 && tries < kTries; unit = next_[unit], ++tries) {
      if (unit <= labels_.front()) continue;
      const uint32_t base = unit - labels_.front();
      Grow(base + 256);
      if (std::all_of(labels_.begin(), labels_.end(),
                      [&](unsigned char label) { return IsFree(base + label); })) {
        return base;
      }
    }
    // The first free units stand too close to others: without them the next search is quicker.
    for (int i = 0; i < kTries / 2 && next_[0] != 0; ++i) Unlink(next_[0]);
    const auto base = static_cast<uint32_t>(units_.size());
    Grow(base + 256);
    return base;
  }

  // A node's first child always has a parent, so a unit without one is free, or was given up.
  bool IsFree(uint32_t unit) const {
    return unit != 0 && units_[unit].parent == ByteTrie::Unit().parent;
  }

  void Grow(size_t size) {
    while (units_.size() < size) {
      const auto unit = static_cast<uint32_t>(units_.size());
      units_.emplace_back();
      previous_.push_back(previous_[0]);
      next_.push_back(0);
      next_[previous_[0]] = unit;
      previous_[0] = unit;
    }
  }

  void Unlink(uint32_t unit) {
    if (next_[unit] == unit) return;  // was given up
    next_[previous_[unit]] = next_[unit];
    previous_[next_[unit]] = previous_[unit];
    next_[unit] = previous_[unit] = unit;
  }

  static constexpr int kTries = 128;

  const std::vector<ByteTrie::Entry>& entries_;
  std::vector<ByteTrie::Unit>& units_;
  std::vector<uint32_t> next_, previous_;
  std::vector<unsigned char> labels_;
  std::vector<size_t> starts_;
};

ByteTrie::ByteTrie(std::vector<Entry> entries) {
  std::stable_sort(entries.begin(), entries.end(),
                   [](const Entry& a, const Entry& b) { return a.key < b.key; });
  size_t kept = 0;
  for (size_t i = 0; i < entries.size(); ++i) {
    if (i + 1 < entries.size() && entries[i + 1].key == entries[i].key) continue;
    entries[kept++] = entries[i];
  }
  entries.resize(kept);
  ByteTrieBuilder(entries, &units_).Build();
}

ByteTrie::Match ByteTrie::Longest(absl::string_view text) const {
  Match match;
  uint32_t node = kRoot;
  for (size_t i = 0; i < text.size() && Step(&node, static_cast<unsigned char>(text[i])); ++i) {
    if (value(node) != kNoValue) match = {i + 1, value(node)};
  }
  return match;
}

ByteTrie::Found ByteTrie::FindFirst(absl::string_view text, size_t from) const {
  const bool has_keys = units_[kRoot].base != 0;
  for (size_t at = from; has_keys && at < text.size(); ++at) {
    uint32_t node = kRoot;
    if (!Step(&node, static_cast<unsigned char>(text[at]))) continue;
    const Match match = Longest(text.substr(at));
    if (match.length > 0) return {at, match};
  }
  return {};
}

}  // namespace convene::worker
