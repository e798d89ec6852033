// The tokenizer's own speed, for tests/bench/data_bench.py.
//
// usage: encode_speed_bench TOKENIZER LINES.jsonl THREADS
// Encodes the field "text" of all lines, block by block in memory, on all threads at once, and
// prints bytes of text a second while they encode: "31415926.5 bytes/s".
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "tools/base/clock.h"
#include "tools/base/thread.h"
#include "worker_runtime/data/prepare/json_field.h"
#include "worker_runtime/tokenizer/load_tokenizer.h"

namespace convene::worker {
namespace {

constexpr size_t kBlockBytes = 64 << 20;

// Empty behind the last line.
std::vector<std::string> NextBlock(std::ifstream* lines, size_t* bytes) {
  JsonField field("text");
  std::vector<std::string> texts;
  std::string line;
  *bytes = 0;
  while (*bytes < kBlockBytes && std::getline(*lines, line)) {
    const auto text = field.Find(line);
    if (!text.ok()) {
      std::fprintf(stderr, "%s\n", std::string(text.status().message()).c_str());
      std::exit(1);
    }
    texts.emplace_back(*text);
    *bytes += text->size();
  }
  return texts;
}

absl::Duration EncodeTime(const std::vector<std::string>& texts,
                          const std::vector<std::unique_ptr<Encoder>>& encoders) {
  const MonotonicTime begin = Clock::Real().Now();
  std::atomic<size_t> next = 0;
  std::vector<Thread> threads;
  for (const std::unique_ptr<Encoder>& encoder : encoders) {
    threads.emplace_back("encode", [&] {
      std::vector<int32_t> ids;
      for (size_t i = next++; i < texts.size(); i = next++) {
        ids.clear();
        encoder->Encode(texts[i], &ids);
      }
    });
  }
  for (Thread& thread : threads) thread.Join();
  return Clock::Real().Now() - begin;
}

int Main(int argc, char** argv) {
  const int threads = argc == 4 ? std::atoi(argv[3]) : 0;
  if (threads < 1) {
    std::fprintf(stderr, "usage: encode_speed_bench TOKENIZER LINES.jsonl THREADS\n");
    return 64;
  }
  const auto tokenizer = LoadTokenizer(argv[1]);
  if (!tokenizer.ok()) {
    std::fprintf(stderr, "%s\n", std::string(tokenizer.status().message()).c_str());
    return 64;
  }
  std::vector<std::unique_ptr<Encoder>> encoders;
  for (int i = 0; i < threads; ++i) {
    encoders.push_back((*tokenizer)->NewEncoder(SpecialText::kAsText));
  }
  std::ifstream lines(argv[2]);
  absl::Duration time;
  double all_bytes = 0;
  size_t bytes = 0;
  for (std::vector<std::string> texts = NextBlock(&lines, &bytes); !texts.empty();
       texts = NextBlock(&lines, &bytes)) {
    time += EncodeTime(texts, encoders);
    all_bytes += static_cast<double>(bytes);
  }
  std::printf("%.1f bytes/s\n", all_bytes / absl::ToDoubleSeconds(time));
  return 0;
}

}  // namespace
}  // namespace convene::worker

int main(int argc, char** argv) { return convene::worker::Main(argc, argv); }
