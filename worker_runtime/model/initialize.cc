#include "worker_runtime/model/initialize.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "worker_runtime/ops/cpu/thread_count.h"

namespace convene::worker {
namespace {

using Counter = std::array<uint32_t, 4>;

Counter Philox(Counter counter, uint64_t key) {
  uint32_t key0 = static_cast<uint32_t>(key);
  uint32_t key1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53} * counter[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57} * counter[2];
    counter = {
        static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key0, static_cast<uint32_t>(product1),
        static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key1, static_cast<uint32_t>(product0)};
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return counter;
}

// FNV-1a: a fixed, documented hash, so that weights never change with a library.
uint64_t HashName(const std::string& name) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

// In (0, 1): never 0, whose logarithm is infinite.
double OpenUnit(uint32_t high, uint32_t low) {
  const uint64_t bits = (uint64_t{high} << 32 | low) >> 11;
  return (static_cast<double>(bits) + 0.5) * 0x1.0p-53;
}

double NormalAt(uint64_t key, uint64_t index) {
  const Counter random =
      Philox({static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), 0, 0}, key);
  const double radius = std::sqrt(-2.0 * std::log(OpenUnit(random[0], random[1])));
  return radius * std::cos(2.0 * std::numbers::pi * OpenUnit(random[2], random[3]));
}

}  // namespace

void InitializeParameter(const ParameterSlice& slice, uint64_t seed, int64_t first, int64_t count,
                         float* target) {
  if (slice.initializer != Initializer::kNormal) {
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
    target[i] = static_cast<float>(slice.standard_deviation * NormalAt(key, place));
  });
}

}  // namespace convene::worker
