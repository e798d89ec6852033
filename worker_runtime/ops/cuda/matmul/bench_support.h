// For the benchmarks of the library ops: memory, figures.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/device/cuda/queue.h"
#include "worker_runtime/device/dtype.h"

namespace convene::worker::cuda {

// Larger than any L2 cache: runs that take turns on as many bytes read them from memory.
inline constexpr size_t kRotatedBytes = size_t{256} << 20;

// Gives device memory back.
struct CudaFree {
  void operator()(void* data) const { (void)cudaFree(data); }
};
using DeviceBlock = std::unique_ptr<void, CudaFree>;

// `bytes` of memory filled with bfloat16 numbers between -1 and 1, the same each time: zeros would
// run faster than real data. Their bits are finite floats as well.
inline absl::StatusOr<DeviceBlock> RandomBlock(size_t bytes) {
  constexpr size_t kPattern = size_t{1} << 20;
  static const std::vector<BFloat16>* const pattern = [] {
    auto* made = new std::vector<BFloat16>;
    uint32_t state = 1;
    for (size_t i = 0; i < kPattern; ++i) {
      state = state * 1664525 + 1013904223;
      made->push_back(BFloat16(static_cast<float>(state >> 8) * 0x1p-23f - 1.0f));
    }
    return made;
  }();
  void* data = nullptr;
  CONVENE_RETURN_IF_ERROR(CudaStatus(cudaMalloc(&data, bytes), "cudaMalloc"));
  DeviceBlock block(data);
  const size_t pattern_bytes = kPattern * sizeof(BFloat16);
  for (size_t begin = 0; begin < bytes; begin += pattern_bytes) {
    CONVENE_RETURN_IF_ERROR(
        CudaStatus(cudaMemcpy(static_cast<char*>(data) + begin, pattern->data(),
                              std::min(pattern_bytes, bytes - begin), cudaMemcpyHostToDevice),
                   "cudaMemcpy"));
  }
  // The benchmark's stream does not wait for the default stream.
  CONVENE_RETURN_IF_ERROR(CudaStatus(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize"));
  return block;
}

// Lines for people as they come; at the end one JSON object a figure.
class Figures {
 public:
  // `fields`: ", \"tflops\": 1.5" and so on.
  void Add(const std::string& name, const std::string& fields) {
    lines_.push_back(absl::StrCat("{\"name\": \"", name, "\"", fields, "}"));
  }
  // To `path`, or to stdout when it is null.
  absl::Status Write(const char* path) const {
    std::FILE* const file = path == nullptr ? stdout : std::fopen(path, "w");
    if (file == nullptr) return absl::UnknownError(absl::StrCat("cannot write ", path));
    for (const std::string& line : lines_) std::fprintf(file, "%s\n", line.c_str());
    const bool is_written = std::fflush(file) == 0;
    if (path != nullptr) std::fclose(file);
    return is_written ? absl::OkStatus() : absl::UnknownError("cannot write the figures");
  }

 private:
  std::vector<std::string> lines_;
};

}  // namespace convene::worker::cuda
