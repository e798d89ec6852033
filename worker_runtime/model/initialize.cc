#include "worker_runtime/model/initialize.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "worker_runtime/ops/cpu/thread_count.h"
#include "worker_runtime/ops/philox.h"

namespace convene::worker {
namespace {

// FNV-1a: a fixed, documented hash, so that weights never change with a library.
uint64_t HashName(const std::string& name) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

double NormalAt(uint64_t key, uint64_t index) {
  const PhiloxCounter random =
      Philox({{static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), 0, 0}}, key);
  const double radius = std::sqrt(-2.0 * std::log(OpenUnit(random[0], random[1])));
  return radius * std::cos(2.0 * std::numbers::pi * OpenUnit(random[2], random[3]));
}

// Of standard deviation 1.
double UniformAt(uint64_t key, uint64_t index) {
  const PhiloxCounter random =
      Philox({{static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), 0, 0}}, key);
  return std::sqrt(3.0) * (2.0 * OpenUnit(random[0], random[1]) - 1.0);
}

}  // namespace

void InitializeParameter(const ParameterSlice& slice, uint64_t seed, int64_t first, int64_t count,
                         float* target) {
  const bool is_uniform = slice.initializer == Initializer::kUniform;
  if (slice.initializer != Initializer::kNormal && !is_uniform) {
    std::fill_n(target, count, slice.initializer == Initializer::kOnes ? 1.0f : 0.0f);
    return;
  }
  const uint64_t key = seed * 0x9E3779B97F4A7C15 + HashName(slice.name);
  const int64_t columns = slice.extent[1];
  constexpr double kNanoseconds = 50;  // a number
  cpu::ForPieces(kNanoseconds * static_cast<double>(count), count, [&](int64_t i) {
    const int64_t row = slice.offset[0] + (first + i) / columns;
    const int64_t column = slice.offset[1] + (first + i) % columns;
    const int64_t place = row * slice.global_shape[1] + column;
    const double deviate = is_uniform ? UniformAt(key, place) : NormalAt(key, place);
    target[i] = static_cast<float>(slice.standard_deviation * deviate);
  });
}

}  // namespace convene::worker
