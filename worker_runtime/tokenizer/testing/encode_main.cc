// Encodes and decodes texts for tests and benches that compare our tokenizers with their originals.
//
// usage: encode_main encode|specials|decode|bench TOKENIZER
// encode, specials: standard input is records of a 32 bit length and a text; standard output gets
// for each a 32 bit count and the ids. `specials` takes special tokens from the text. decode: the
// other way round. bench: the input is one text after another in the same form; the output is one
// line "BYTES TOKENS SECONDS" for encoding all of them by one thread.
#include <cstdint>
#include <cstring>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "tools/base/clock.h"
#include "worker_runtime/tokenizer/load_tokenizer.h"
#include "worker_runtime/tokenizer/tokenizer.h"

namespace convene::worker {
namespace {

std::vector<absl::string_view> Records(absl::string_view input, size_t item_bytes) {
  std::vector<absl::string_view> records;
  while (input.size() >= sizeof(uint32_t)) {
    uint32_t count = 0;
    std::memcpy(&count, input.data(), sizeof(count));
    input.remove_prefix(sizeof(count));
    records.push_back(input.substr(0, count * item_bytes));
    input.remove_prefix(records.back().size());
  }
  return records;
}

void WriteRecord(const void* data, size_t count, size_t item_bytes) {
  const auto stated = static_cast<uint32_t>(count);
  std::cout.write(reinterpret_cast<const char*>(&stated), sizeof(stated));
  std::cout.write(static_cast<const char*>(data), static_cast<std::streamsize>(count * item_bytes));
}

void EncodeAll(const Tokenizer& tokenizer, SpecialText special_text, absl::string_view input) {
  const std::unique_ptr<Encoder> encoder = tokenizer.NewEncoder(special_text);
  std::vector<int32_t> ids;
  for (const absl::string_view text : Records(input, 1)) {
    ids.clear();
    encoder->Encode(text, &ids);
    WriteRecord(ids.data(), ids.size(), sizeof(int32_t));
  }
}

void DecodeAll(const Tokenizer& tokenizer, absl::string_view input) {
  for (const absl::string_view record : Records(input, sizeof(int32_t))) {
    std::vector<int32_t> ids(record.size() / sizeof(int32_t));
    std::memcpy(ids.data(), record.data(), ids.size() * sizeof(int32_t));
    const std::string text = tokenizer.Decode(ids, /*show_specials=*/false);
    WriteRecord(text.data(), text.size(), 1);
  }
}

void Bench(const Tokenizer& tokenizer, absl::string_view input) {
  const std::vector<absl::string_view> texts = Records(input, 1);
  const MonotonicTime begin = Clock::Real().Now();
  const std::unique_ptr<Encoder> encoder = tokenizer.NewEncoder(SpecialText::kAsText);
  std::vector<int32_t> ids;
  size_t bytes = 0, tokens = 0;
  for (const absl::string_view text : texts) {
    ids.clear();
    encoder->Encode(text, &ids);
    bytes += text.size();
    tokens += ids.size();
  }
  const double seconds = absl::ToDoubleSeconds(Clock::Real().Now() - begin);
  std::cout << bytes << " " << tokens << " " << seconds << "\n";
}

int Main(const std::vector<std::string>& words) {
  if (words.size() != 2) {
    std::cerr << "usage: encode_main encode|specials|decode|bench TOKENIZER\n";
    return 64;
  }
  const absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = LoadTokenizer(words[1]);
  if (!tokenizer.ok()) {
    std::cerr << "encode_main: " << tokenizer.status().message() << "\n";
    return 65;
  }
  const std::string input((std::istreambuf_iterator<char>(std::cin)), {});
  if (words[0] == "encode") EncodeAll(**tokenizer, SpecialText::kAsText, input);
  if (words[0] == "specials") EncodeAll(**tokenizer, SpecialText::kAsTokens, input);
  if (words[0] == "decode") DecodeAll(**tokenizer, input);
  if (words[0] == "bench") Bench(**tokenizer, input);
  return 0;
}

}  // namespace
}  // namespace convene::worker

int main(int argc, char** argv) {
  std::ios::sync_with_stdio(false);
  return convene::worker::Main(std::vector<std::string>(argv + 1, argv + argc));
}
