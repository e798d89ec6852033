// How near the memory-bound kernels come to the GPU's own copy: kernels_bench [--json FILE].
//
// Shapes of a 1B Llama, bfloat16. Bytes count each input once and each output once; time is the
// median by CUDA events, over buffers that together outgrow the L2 cache. The yardstick is a
// device-to-device copy in the same run, counted as bytes read plus bytes written.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/device/cuda/queue.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/device/workspace.h"
#include "worker_runtime/ops/adamw.h"
#include "worker_runtime/ops/cuda/bench_timing.h"
#include "worker_runtime/ops/cuda/cuda_ops.h"
#include "worker_runtime/ops/rope.h"
#include "worker_runtime/ops/skewed_tokens.h"

namespace convene::worker {
namespace {

constexpr int kRows = 8192;
constexpr int kHidden = 2048;
constexpr int kFfn = 8192;
constexpr int kHeads = 32;
constexpr int kKvHeads = 8;
constexpr int kHeadSize = 64;
constexpr int kSequence = 2048;
constexpr int kVocabulary = 128256;
constexpr int64_t kShard = int64_t{256} << 20;
constexpr int64_t kFlat = int64_t{64} << 20;

constexpr size_t kArenaBytes = size_t{6} << 30;
constexpr size_t kRotatedBytes = size_t{1} << 30;  // many times the cache

// Hands out pieces of one set of buffers.
class Pieces {
 public:
  explicit Pieces(char* base) : next_(base) {}
  template <typename T>
  T* Take(int64_t count) {
    T* piece = reinterpret_cast<T*>(next_);
    next_ += (static_cast<size_t>(count) * sizeof(T) + 255) / 256 * 256;
    return piece;
  }

 private:
  char* next_;
};

struct Kernel {
  std::string name;
  double bytes;
  // Queues the kernel on the set of buffers at `base`, and gives the set's end.
  std::function<char*(char* base)> run;
};

struct Result {
  std::string name;
  double bytes;
  double microseconds;
  double gigabytes_per_second() const { return bytes / microseconds * 1e-3; }
};

class Bench {
 public:
  explicit Bench(Device& device) : device_(device) {}

  absl::Status Prepare();
  absl::Status Run();
  const std::vector<Result>& results() const { return results_; }
  const Result& copy() const { return results_.front(); }

 private:
  absl::Status Measure(const Kernel& kernel);
  std::vector<Kernel> Kernels();
  void AddNorms(std::vector<Kernel>& kernels);
  void AddRows(std::vector<Kernel>& kernels);
  void AddVocabulary(std::vector<Kernel>& kernels);
  void AddFlat(std::vector<Kernel>& kernels);
  template <typename T>
  absl::StatusOr<T*> Upload(const std::vector<T>& values);

  Device& device_;
  Stream& stream_ = device_.compute();
  char* arena_ = nullptr;
  const int32_t* tokens_ = nullptr;
  int64_t distinct_tokens_ = 0;
  const uint8_t* flags_ = nullptr;
  const AdamWFactors* factors_ = nullptr;
  const StepControl* control_ = nullptr;
  const float* scale_ = nullptr;
  const float* cosines_ = nullptr;
  const float* sines_ = nullptr;
  std::vector<Result> results_;
};

uint32_t NextRandom(uint32_t& state) { return state = state * 1664525 + 1013904223; }

template <typename T>
absl::StatusOr<T*> Bench::Upload(const std::vector<T>& values) {
  const size_t bytes = values.size() * sizeof(T);
  const absl::StatusOr<void*> memory = device_.memory().Allocate(bytes);
  if (!memory.ok()) return memory.status();
  device_.Copy(values.data(), *memory, bytes, stream_);
  return static_cast<T*>(*memory);
}

// Random numbers between 2^-8 and 2: as bfloat16 and, two by two, as float.
absl::Status Bench::Prepare() {
  const absl::StatusOr<void*> arena = device_.memory().Allocate(kArenaBytes);
  if (!arena.ok()) return arena.status();
  arena_ = static_cast<char*>(*arena);
  std::vector<uint16_t> numbers(size_t{1} << 24);
  uint32_t random = 1;
  for (uint16_t& number : numbers) {
    number = static_cast<uint16_t>(0x3b80 + (NextRandom(random) >> 16) % 0x480);
  }
  const size_t piece_bytes = numbers.size() * sizeof(uint16_t);
  for (size_t begin = 0; begin < kArenaBytes; begin += piece_bytes) {
    device_.Copy(numbers.data(), arena_ + begin, std::min(piece_bytes, kArenaBytes - begin),
                 stream_);
  }

  std::vector<int32_t> tokens(kRows);
  for (int32_t& token : tokens) token = SkewedToken(NextRandom(random) * 0x1p-32, kVocabulary);
  distinct_tokens_ = static_cast<int64_t>(std::set<int32_t>(tokens.begin(), tokens.end()).size());
  AdamWParameters parameters;
  parameters.learning_rate = 1e-4;
  parameters.weight_decay = 0.1;
  const absl::StatusOr<int32_t*> tokens_there = Upload(tokens);
  const absl::StatusOr<uint8_t*> flags =
      Upload(std::vector<uint8_t>(kShard / kFlagBlock, kDecayed | kOwned));
  const absl::StatusOr<AdamWFactors*> factors =
      Upload(std::vector<AdamWFactors>{MakeAdamWFactors(parameters)});
  const absl::StatusOr<StepControl*> control = Upload(std::vector<StepControl>{{1.0f, 0}});
  const absl::StatusOr<float*> scale = Upload(std::vector<float>{1.0f / kRows});
  std::vector<float> cosines(size_t{kSequence} * kHeadSize / 2);
  std::vector<float> sines(cosines.size());
  RopeTable(kSequence, kHeadSize, 10000.0, cosines.data(), sines.data());
  const absl::StatusOr<float*> cosines_there = Upload(cosines);
  const absl::StatusOr<float*> sines_there = Upload(sines);
  for (const absl::Status& status :
       {cosines_there.status(), sines_there.status(), tokens_there.status(), flags.status(),
        factors.status(), control.status(), scale.status()}) {
    if (!status.ok()) return status;
  }
  tokens_ = *tokens_there;
  flags_ = *flags;
  factors_ = *factors;
  control_ = *control;
  scale_ = *scale;
  cosines_ = *cosines_there;
  sines_ = *sines_there;
  return device_.Synchronize(absl::Seconds(60));
}

void Bench::AddNorms(std::vector<Kernel>& kernels) {
  constexpr int64_t kSize = int64_t{kRows} * kHidden;
  constexpr double kRowBytes = 2.0 * kSize;
  kernels.push_back({"rms_norm_forward", 2 * kRowBytes, [this](char* base) {
                       Pieces set(base);
                       auto* x = set.Take<BFloat16>(kSize);
                       auto* y = set.Take<BFloat16>(kSize);
                       auto* weight = set.Take<BFloat16>(kHidden);
                       cuda::RmsNormForward<BFloat16>(kRows, kHidden, x, weight, 1e-5f, y,
                                                      set.Take<float>(kRows), stream_);
                       return set.Take<char>(0);
                     }});
  kernels.push_back({"add_rms_norm_forward", 4 * kRowBytes, [this](char* base) {
                       Pieces set(base);
                       auto* x = set.Take<BFloat16>(kSize);
                       auto* delta = set.Take<BFloat16>(kSize);
                       auto* sum = set.Take<BFloat16>(kSize);
                       auto* y = set.Take<BFloat16>(kSize);
                       auto* weight = set.Take<BFloat16>(kHidden);
                       cuda::AddRmsNormForward<BFloat16>(kRows, kHidden, x, delta, weight, 1e-5f,
                                                         sum, y, set.Take<float>(kRows), stream_);
                       return set.Take<char>(0);
                     }});
  kernels.push_back({"rms_norm_again", 2 * kRowBytes, [this](char* base) {
                       Pieces set(base);
                       auto* x = set.Take<BFloat16>(kSize);
                       auto* y = set.Take<BFloat16>(kSize);
                       auto* weight = set.Take<BFloat16>(kHidden);
                       cuda::RmsNormAgain<BFloat16>(kRows, kHidden, x, weight,
                                                    set.Take<float>(kRows), y, stream_);
                       return set.Take<char>(0);
                     }});
  kernels.push_back(
      {"rms_norm_backward (adds to dx)", 4 * kRowBytes, [this](char* base) {
         Pieces set(base);
         auto* x = set.Take<BFloat16>(kSize);
         auto* dy = set.Take<BFloat16>(kSize);
         auto* dx = set.Take<BFloat16>(kSize);
         auto* weight = set.Take<BFloat16>(kHidden);
         auto* inverse_rms = set.Take<float>(kRows);
         auto* dweight = set.Take<float>(kHidden);
         const size_t bytes = cuda::RmsNormWorkspaceBytes(kRows, kHidden);
         const Workspace workspace = {set.Take<char>(static_cast<int64_t>(bytes)), bytes};
         cuda::RmsNormBackward<BFloat16>(kRows, kHidden, x, weight, inverse_rms, dy, true, dx, true,
                                         dweight, workspace, stream_);
         return set.Take<char>(0);
       }});
}

void Bench::AddRows(std::vector<Kernel>& kernels) {
  constexpr int kStride = (kHeads + 2 * kKvHeads) * kHeadSize;
  kernels.push_back({"rope_apply (queries and keys)",
                     2.0 * 2 * kRows * (kHeads + kKvHeads) * kHeadSize, [this](char* base) {
                       Pieces set(base);
                       auto* x = set.Take<BFloat16>(int64_t{kRows} * kStride);
                       const auto* cosines = set.Take<float>(int64_t{kSequence} * kHeadSize / 2);
                       const auto* sines = set.Take<float>(int64_t{kSequence} * kHeadSize / 2);
                       cuda::RopeApply<BFloat16>(kRows / kSequence, kSequence, kHeads + kKvHeads,
                                                 kHeadSize, kStride, cosines, sines, nullptr, false,
                                                 x, stream_);
                       return set.Take<char>(0);
                     }});
  constexpr int64_t kSize = int64_t{kRows} * kFfn;
  kernels.push_back({"swiglu_forward", 3 * 2.0 * kSize, [this](char* base) {
                       Pieces set(base);
                       auto* gate_up = set.Take<BFloat16>(2 * kSize);
                       cuda::SwigluForward<BFloat16>(kRows, kFfn, gate_up,
                                                     set.Take<BFloat16>(kSize), stream_);
                       return set.Take<char>(0);
                     }});
  kernels.push_back({"swiglu_backward", 5 * 2.0 * kSize, [this](char* base) {
                       Pieces set(base);
                       const auto* gate_up = set.Take<BFloat16>(2 * kSize);
                       const auto* dy = set.Take<BFloat16>(kSize);
                       cuda::SwigluBackward<BFloat16>(kRows, kFfn, gate_up, dy,
                                                      set.Take<BFloat16>(2 * kSize), stream_);
                       return set.Take<char>(0);
                     }});
}

void Bench::AddVocabulary(std::vector<Kernel>& kernels) {
  constexpr int64_t kSize = int64_t{kRows} * kHidden;
  constexpr int64_t kTable = int64_t{kVocabulary} * kHidden;
  kernels.push_back({"embedding_forward", 2 * 2.0 * kSize, [this](char* base) {
                       Pieces set(base);
                       auto* table = set.Take<BFloat16>(kTable);
                       cuda::EmbeddingForward<BFloat16>(kRows, kHidden, 0, kVocabulary, tokens_,
                                                        table, set.Take<BFloat16>(kSize), stream_);
                       return set.Take<char>(0);
                     }});
  const double backward_bytes =
      2.0 * kSize + 2 * 4.0 * static_cast<double>(distinct_tokens_) * kHidden;
  kernels.push_back(
      {"embedding_backward (with its sort)", backward_bytes, [this](char* base) {
         Pieces set(base);
         auto* dtable = set.Take<float>(kTable);
         auto* dy = set.Take<BFloat16>(kSize);
         const size_t bytes = cuda::EmbeddingWorkspaceBytes(kRows, kHidden);
         const Workspace workspace = {set.Take<char>(static_cast<int64_t>(bytes)), bytes};
         cuda::EmbeddingBackward<BFloat16>(kRows, kHidden, 0, kVocabulary, tokens_, dy, dtable,
                                           workspace, stream_);
         return set.Take<char>(0);
       }});
  constexpr int64_t kLogits = int64_t{kRows} * kVocabulary;
  kernels.push_back({"cross_entropy_statistics", 2.0 * kLogits, [this](char* base) {
                       Pieces set(base);
                       auto* logits = set.Take<BFloat16>(kLogits);
                       auto* row_max = set.Take<float>(kRows);
                       cuda::CrossEntropyStatistics<BFloat16>(kRows, 0, kVocabulary, tokens_,
                                                              logits, row_max,
                                                              set.Take<float>(2 * kRows), stream_);
                       return set.Take<char>(0);
                     }});
  kernels.push_back({"cross_entropy_gradient (in place)", 2 * 2.0 * kLogits, [this](char* base) {
                       Pieces set(base);
                       auto* logits = set.Take<BFloat16>(kLogits);
                       const auto* row_max = set.Take<float>(kRows);
                       const auto* sums = set.Take<float>(2 * kRows);
                       cuda::CrossEntropyGradient<BFloat16>(kRows, 0, kVocabulary, tokens_, row_max,
                                                            sums, scale_, logits, stream_);
                       return set.Take<char>(0);
                     }});
}

void Bench::AddFlat(std::vector<Kernel>& kernels) {
  kernels.push_back({"add_in_place (bf16)", 3 * 2.0 * kFlat, [this](char* base) {
                       Pieces set(base);
                       const auto* x = set.Take<BFloat16>(kFlat);
                       cuda::AddInPlace<BFloat16>(kFlat, x, set.Take<BFloat16>(kFlat), stream_);
                       return set.Take<char>(0);
                     }});
  kernels.push_back({"to_bfloat16", 6.0 * kFlat, [this](char* base) {
                       Pieces set(base);
                       const auto* x = set.Take<float>(kFlat);
                       cuda::ToBFloat16(kFlat, x, set.Take<BFloat16>(kFlat), stream_);
                       return set.Take<char>(0);
                     }});
  kernels.push_back({"to_float", 6.0 * kFlat, [this](char* base) {
                       Pieces set(base);
                       const auto* x = set.Take<BFloat16>(kFlat);
                       cuda::ToFloat(kFlat, x, set.Take<float>(kFlat), stream_);
                       return set.Take<char>(0);
                     }});
  kernels.push_back(
      {"sum_of_squares", 4.0 * kShard, [this](char* base) {
         Pieces set(base);
         const auto* x = set.Take<float>(kShard);
         auto* sum = set.Take<double>(1);
         const size_t bytes = cuda::SumOfSquaresWorkspaceBytes(kShard);
         const Workspace workspace = {set.Take<char>(static_cast<int64_t>(bytes)), bytes};
         cuda::SumOfSquares(kShard, x, flags_, sum, workspace, stream_);
         return set.Take<char>(0);
       }});
  kernels.push_back({"adamw (bf16 weights)", 30.0 * kShard, [this](char* base) {
                       Pieces set(base);
                       const auto* gradients = set.Take<float>(kShard);
                       auto* master = set.Take<float>(kShard);
                       auto* first = set.Take<float>(kShard);
                       auto* second = set.Take<float>(kShard);
                       cuda::AdamW<BFloat16>(kShard, factors_, control_, flags_, gradients, master,
                                             set.Take<BFloat16>(kShard), first, second, stream_);
                       return set.Take<char>(0);
                     }});
}

std::vector<Kernel> Bench::Kernels() {
  std::vector<Kernel> kernels;
  constexpr size_t kCopyBytes = size_t{1} << 30;
  kernels.push_back({"copy (the yardstick)", 2.0 * kCopyBytes, [this](char* base) {
                       cuda::Queue& queue = stream_.queue();
                       queue.Report(cudaMemcpyAsync(base + kCopyBytes, base, kCopyBytes,
                                                    cudaMemcpyDeviceToDevice, queue.stream()),
                                    "copy");
                       return base + 2 * kCopyBytes;
                     }});
  AddNorms(kernels);
  AddRows(kernels);
  AddVocabulary(kernels);
  AddFlat(kernels);
  return kernels;
}

absl::Status Bench::Measure(const Kernel& kernel) {
  const size_t set_bytes = static_cast<size_t>(kernel.run(arena_) - arena_);
  if (set_bytes > kArenaBytes) return absl::InternalError(kernel.name + ": outgrows the arena");
  const size_t sets = std::max<size_t>(1, std::min(kArenaBytes, 2 * kRotatedBytes) / set_bytes);
  const absl::StatusOr<double> milliseconds = cuda::MedianMilliseconds(
      stream_.queue(),
      [&](int call) { kernel.run(arena_ + set_bytes * (static_cast<size_t>(call) % sets)); });
  if (!milliseconds.ok()) return Annotate(milliseconds.status(), kernel.name);
  results_.push_back({kernel.name, kernel.bytes, 1e3 * *milliseconds});
  return absl::OkStatus();
}

absl::Status Bench::Run() {
  for (const Kernel& kernel : Kernels()) {
    const absl::Status status = Measure(kernel);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

void PrintTable(const Device& device, const Bench& bench) {
  std::printf("%s\n%-36s %10s %10s %9s %7s\n", device.description().c_str(), "kernel", "MB", "us",
              "GB/s", "of copy");
  for (const Result& result : bench.results()) {
    std::printf("%-36s %10.1f %10.1f %9.0f %6.1f%%\n", result.name.c_str(), result.bytes * 1e-6,
                result.microseconds, result.gigabytes_per_second(),
                100 * result.gigabytes_per_second() / bench.copy().gigabytes_per_second());
  }
}

bool WriteJson(const Device& device, const Bench& bench, const char* path) {
  std::string text = absl::StrFormat("{\"device\": \"%s\", \"kernels\": [", device.description());
  const char* separator = "";
  for (const Result& result : bench.results()) {
    absl::StrAppendFormat(&text,
                          "%s\n  {\"name\": \"%s\", \"bytes\": %.0f, \"microseconds\": %.3f, "
                          "\"gigabytes_per_second\": %.1f, \"fraction_of_copy\": %.4f}",
                          separator, result.name, result.bytes, result.microseconds,
                          result.gigabytes_per_second(),
                          result.gigabytes_per_second() / bench.copy().gigabytes_per_second());
    separator = ",";
  }
  text += "\n]}\n";
  std::FILE* file = std::fopen(path, "w");
  if (file == nullptr) return false;
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  return std::fclose(file) == 0 && written;
}

int Main(const char* json_path) {
  const absl::StatusOr<std::unique_ptr<Device>> device = Device::Cuda(0);
  if (!device.ok()) {
    std::fprintf(stderr, "kernels_bench: %s\n", device.status().ToString().c_str());
    return 1;
  }
  Bench bench(**device);
  absl::Status status = bench.Prepare();
  if (status.ok()) status = bench.Run();
  if (!status.ok()) {
    std::fprintf(stderr, "kernels_bench: %s\n", status.ToString().c_str());
    return 1;
  }
  PrintTable(**device, bench);
  if (json_path != nullptr && !WriteJson(**device, bench, json_path)) {
    std::fprintf(stderr, "kernels_bench: cannot write %s\n", json_path);
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace convene::worker

int main(int argc, char** argv) {
  const bool has_json = argc == 3 && std::strcmp(argv[1], "--json") == 0;
  if (argc != 1 && !has_json) {
    std::fprintf(stderr, "usage: kernels_bench [--json FILE]\n");
    return 64;
  }
  return convene::worker::Main(has_json ? argv[2] : nullptr);
}
