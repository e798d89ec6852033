#include "worker_runtime/tokenizer/byte_trie.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <random>
#include <string>

namespace convene::worker {
namespace {

TEST_CASE("The longest key that a text begins with is found") {
  const ByteTrie trie({{"a", 1}, {"ab", 2}, {"abcd", 3}, {"\xE2\x96\x81", 4}, {"", 5}});
  CHECK(trie.Longest("abc").length == 2);
  CHECK(trie.Longest("abc").value == 2);
  CHECK(trie.Longest("abcde").length == 4);
  CHECK(trie.Longest("\xE2\x96\x81x").value == 4);
  CHECK(trie.Longest("ba").length == 0);
  CHECK(trie.Longest("").value == ByteTrie::kNoValue);
}

TEST_CASE("Of equal keys the last counts, and a trie without keys finds nothing") {
  CHECK(ByteTrie({{"x", 1}, {"y", 2}, {"x", 3}}).Longest("x").value == 3);
  CHECK(ByteTrie({}).Longest("x").length == 0);
}

TEST_CASE("Random keys are all found, with all bytes, and nothing else is") {
  const uint32_t seed = GENERATE(range(1u, 9u));
  CAPTURE(seed);
  std::mt19937 random(seed);
  const auto random_key = [&] {
    // Few letters make deep nodes with brothers; many make wide ones.
    const uint32_t letters = seed % 2 == 0 ? 256 : 3;
    std::string key(1 + random() % 9, '\0');
    for (char& letter : key) letter = static_cast<char>(random() % letters);
    return key;
  };
  std::map<std::string, int32_t> keys;
  while (keys.size() < 3000) keys.emplace(random_key(), static_cast<int32_t>(keys.size()));
  std::vector<ByteTrie::Entry> entries;
  for (const auto& [key, value] : keys) entries.push_back({key, value});
  std::shuffle(entries.begin(), entries.end(), random);
  const ByteTrie trie(entries);
  for (const auto& [key, value] : keys) {
    REQUIRE(trie.Longest(key).length == key.size());
    REQUIRE(trie.Longest(key).value == value);
  }
  for (int i = 0; i < 3000; ++i) {
    const std::string text = random_key() + random_key();
    size_t longest = 0;
    for (size_t length = 1; length <= text.size(); ++length) {
      if (keys.count(text.substr(0, length)) > 0) longest = length;
    }
    REQUIRE(trie.Longest(text).length == longest);
  }
}

TEST_CASE("the first place of a key is found, and the longest key there") {
  const ByteTrie trie({{"b", 1}, {"bcd", 2}, {"x", 3}});
  const auto found = [&](absl::string_view text, size_t from) {
    const ByteTrie::Found first = trie.FindFirst(text, from);
    return std::vector<int64_t>{static_cast<int64_t>(first.begin),
                                static_cast<int64_t>(first.match.length), first.match.value};
  };
  CHECK(found("abcdx", 0) == std::vector<int64_t>{1, 3, 2});
  CHECK(found("abcbx", 2) == std::vector<int64_t>{3, 1, 1});
  CHECK(found("aaa", 0)[1] == 0);
  CHECK(found("x", 1)[1] == 0);
  CHECK(ByteTrie({}).FindFirst("abc", 0).match.length == 0);
}

}  // namespace
}  // namespace convene::worker
