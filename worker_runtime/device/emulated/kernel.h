// The functions that a kernel's code calls on the emulated GPU; include/cuda_runtime.h gives them
// CUDA's names, translate.py does the rest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

// CUDA's, in the global namespace as there.
struct uint3 {
  unsigned int x, y, z;
};
struct dim3 {
  unsigned int x, y, z;
  constexpr dim3(unsigned int x = 1, unsigned int y = 1, unsigned int z = 1) : x(x), y(y), z(z) {}
};

// The indices of the thread that runs. One kernel runs at a time, one thread of it at a time.
extern uint3 threadIdx;
extern uint3 blockIdx;
extern dim3 blockDim;
extern dim3 gridDim;

namespace convene::emulated {

// A place in a kernel's source. (clang 14 has no std::source_location.)
struct Location {
  const char* file = "";
  int line = 0;

  static constexpr Location current(const char* file = __builtin_FILE(),
                                    int line = __builtin_LINE()) {
    return {file, line};
  }
};

// Ends the launch with this reason: the thread does not go on, and the launch fails.
[[noreturn]] void Violation(const std::string& what);

void SyncThreads(const Location& at);
void SyncWarp(uint32_t mask, const Location& at);

// One operation of a warp, in which every lane of `mask` takes part.
enum class Exchange { kFromLane, kFromXor, kFromBelow, kFromAbove, kBallot };
// `operand`: the lane, its distance, or what kXor flips; `width`: lanes of a group.
uint64_t ExchangeInWarp(Exchange kind, uint32_t mask, uint64_t value, int operand, int width,
                        const Location& at);
template <typename T>
T Shuffle(Exchange kind, uint32_t mask, T value, int operand, int width, const Location& at) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "CUDA shuffles 4 or 8 bytes");
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = ExchangeInWarp(kind, mask, bits, operand, width, at);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

// `key` names the variable: the same for all threads of a block.
void* SharedBytes(const void* key, size_t bytes, size_t alignment);
template <typename T>
T& SharedVariable(const void* key) {
  return *static_cast<T*>(SharedBytes(key, sizeof(T), alignof(T)));
}
void* DynamicSharedBytes();
template <typename T>
T* DynamicShared() {
  return static_cast<T*>(DynamicSharedBytes());
}

void CheckLaunchBounds(int threads_max, int blocks_of_a_multiprocessor = 1);
void CheckAligned(const void* address, size_t alignment);

}  // namespace convene::emulated
