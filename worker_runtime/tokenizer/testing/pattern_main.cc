// Finds the matches of patterns, for the comparison with the programs whose patterns they are
// (tests/tokenizers/pattern_sets.py).
//
// usage: pattern_main oniguruma|rust    standard input: records, in turns a pattern and a text
//        pattern_main names             prints the names of properties and, after a line "--", of
//                                       [:sets:]
// A record is a 32 bit length and as many bytes. Standard output gets a record for each pair: the
// matches as 32 bit numbers, begin and end of each in bytes of the text; or "!" and why there are
// none (its length is no multiple of eight).
#include <cstdint>
#include <cstring>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker_runtime/tokenizer/pattern/dialect.h"
#include "worker_runtime/tokenizer/pattern/properties.h"
#include "worker_runtime/tokenizer/pcre_pattern.h"
#include "worker_runtime/tokenizer/split_pattern.h"

namespace convene::worker {
namespace {

absl::string_view TakeRecord(absl::string_view* input) {
  uint32_t size = 0;
  std::memcpy(&size, input->data(), sizeof(size));
  input->remove_prefix(sizeof(size));
  const absl::string_view record = input->substr(0, size);
  input->remove_prefix(record.size());
  return record;
}

std::string Found(absl::string_view regex, absl::string_view text, PatternDialect dialect) {
  const auto pattern = MakePcrePattern(std::string(regex), dialect);
  if (!pattern.ok()) {
    std::string why = "!" + std::string(pattern.status().message());
    if (why.size() % 8 == 0) why += " ";
    return why;
  }
  std::string found;
  std::vector<TextRange> buffer;
  (*pattern)->ForEach(text, &buffer, [&](const TextRange& range) {
    const uint32_t numbers[] = {static_cast<uint32_t>(range.begin),
                                static_cast<uint32_t>(range.end)};
    found.append(reinterpret_cast<const char*>(numbers), sizeof(numbers));
  });
  return found;
}

int Main(const std::string& word) {
  if (word == "names") {
    for (const std::string& name : KnownProperties()) std::cout << name << "\n";
    std::cout << "--\n";
    for (const std::string& name : KnownPosixSets()) std::cout << name << "\n";
    return 0;
  }
  if (word != "oniguruma" && word != "rust") {
    std::cerr << "usage: pattern_main oniguruma|rust|names\n";
    return 64;
  }
  const PatternDialect dialect =
      word == "rust" ? PatternDialect::kRust : PatternDialect::kOniguruma;
  const std::string input((std::istreambuf_iterator<char>(std::cin)), {});
  absl::string_view rest = input;
  while (!rest.empty()) {
    const absl::string_view regex = TakeRecord(&rest);
    const std::string found = Found(regex, TakeRecord(&rest), dialect);
    const auto size = static_cast<uint32_t>(found.size());
    std::cout.write(reinterpret_cast<const char*>(&size), sizeof(size));
    std::cout.write(found.data(), static_cast<std::streamsize>(found.size()));
  }
  return 0;
}

}  // namespace
}  // namespace convene::worker

int main(int argc, char** argv) {
  std::ios::sync_with_stdio(false);
  return convene::worker::Main(argc == 2 ? argv[1] : "");
}
