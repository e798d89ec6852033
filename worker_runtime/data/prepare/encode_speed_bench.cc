// The tokenizer's own speed on one thread, for tests/bench/data_bench.py.
//
// usage: encode_speed_bench TOKENIZER LINES.jsonl
// Encodes the field "text" of up to 100 MB of lines, and prints bytes of text a second of processor
// time: "31415926.5 bytes/s".
#include <cstdio>
#include <ctime>
#include <fstream>
#include <string>
#include <vector>

#include "worker_runtime/data/prepare/json_field.h"
#include "worker_runtime/tokenizer/load_tokenizer.h"

namespace {

constexpr double kBytesMax = 1e8;

double ThreadSeconds() {
  timespec time = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: encode_speed_bench TOKENIZER LINES.jsonl\n");
    return 64;
  }
  const auto tokenizer = convene::worker::LoadTokenizer(argv[1]);
  if (!tokenizer.ok()) {
    std::fprintf(stderr, "%s\n", std::string(tokenizer.status().message()).c_str());
    return 64;
  }
  const auto encoder = (*tokenizer)->NewEncoder(convene::worker::SpecialText::kAsText);
  convene::worker::JsonField field("text");
  std::ifstream lines(argv[2]);
  std::string line;
  std::vector<int32_t> ids;
  double seconds = 0, bytes = 0;
  while (bytes < kBytesMax && std::getline(lines, line)) {
    const auto text = field.Find(line);
    if (!text.ok()) return 1;
    ids.clear();
    const double begin = ThreadSeconds();
    encoder->Encode(*text, &ids);
    seconds += ThreadSeconds() - begin;
    bytes += static_cast<double>(text->size());
  }
  std::printf("%.1f bytes/s\n", bytes / seconds);
  return 0;
}
