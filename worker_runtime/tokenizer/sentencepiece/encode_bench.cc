// How fast a model encodes and decodes: encode_bench MODEL TEXT. The documents are the lines of
// TEXT, and then TEXT whole. `golden/compare_speed.py` runs it beside SentencePiece itself.
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "tools/base/files.h"
#include "worker_runtime/tokenizer/sentencepiece/model.h"

namespace convene::worker {
namespace {

// Of this process's time on a processor, so that others on the machine change little.
double Seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

// The best of three runs.
template <typename Action>
double MegabytesPerSecond(size_t bytes, Action action) {
  double best = 0;
  for (int run = 0; run < 3; ++run) {
    const double begin = Seconds();
    action();
    const double seconds = Seconds() - begin;
    best = std::max(best, static_cast<double>(bytes) / 1e6 / seconds);
  }
  return best;
}

int Run(const char* model_path, const char* text_path) {
  const double begin = Seconds();
  const auto proto = ReadFile(model_path);
  const auto text = ReadFile(text_path);
  if (!proto.ok() || !text.ok()) {
    std::fprintf(stderr, "%s %s\n", proto.status().ToString().c_str(),
                 text.status().ToString().c_str());
    return 1;
  }
  const auto tokenizer = ReadSentencePiece(*proto, model_path);
  if (!tokenizer.ok()) {
    std::fprintf(stderr, "%s\n", tokenizer.status().ToString().c_str());
    return 1;
  }
  const double load_ms = 1000 * (Seconds() - begin);
  const std::vector<absl::string_view> lines = absl::StrSplit(*text, '\n');
  const std::unique_ptr<Encoder> encoder = (*tokenizer)->NewEncoder(SpecialText::kAsText);
  std::vector<int32_t> ids;
  const double by_line = MegabytesPerSecond(text->size(), [&] {
    ids.clear();
    for (const absl::string_view line : lines) encoder->Encode(line, &ids);
  });
  const double whole = MegabytesPerSecond(text->size(), [&] {
    ids.clear();
    encoder->Encode(*text, &ids);
  });
  const double decode =
      MegabytesPerSecond(text->size(), [&] { (void)(*tokenizer)->Decode(ids, false); });
  std::printf("load %.1f ms, encode lines %.1f MB/s, whole %.1f MB/s, decode %.1f MB/s, %zu ids\n",
              load_ms, by_line, whole, decode, ids.size());
  return 0;
}

}  // namespace
}  // namespace convene::worker

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: encode_bench MODEL TEXT\n");
    return 2;
  }
  return convene::worker::Run(argv[1], argv[2]);
}
