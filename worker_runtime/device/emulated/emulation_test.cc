// The emulation itself: its services to kernels, and every mistake that it must name.
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "worker_runtime/device/emulated/grid.h"
#include "worker_runtime/device/emulated/runtime.h"

namespace convene::emulated {
namespace {

using Catch::Contains;

const std::vector<Order> kOrders = {Order::kForward, Order::kReverse, Order::kRandom};

std::string Run(unsigned int blocks, dim3 threads, const std::function<void()>& thread,
                Order order = Order::kForward, size_t dynamic_bytes = 0) {
  return RunGrid({blocks, threads, dynamic_bytes, thread}, order);
}

TEST_CASE("every thread of every block runs once, with its own place") {
  for (const Order order : kOrders) {
    std::vector<int> runs(3 * 4 * 5, 0);
    CHECK(Run(
              3, dim3(4, 5),
              [&] {
                CHECK(gridDim.x == 3);
                CHECK(blockDim.y == 5);
                ++runs[(blockIdx.x * 5 + threadIdx.y) * 4 + threadIdx.x];
              },
              order) == "");
    CHECK(runs == std::vector<int>(runs.size(), 1));
  }
}

TEST_CASE("past a barrier a thread sees what all wrote before it") {
  for (const Order order : kOrders) {
    std::vector<int> values(96, 0);
    CHECK(Run(
              1, 96,
              [&] {
                for (int round = 1; round <= 3; ++round) {
                  values[threadIdx.x] = round;
                  __syncthreads();
                  CHECK(values == std::vector<int>(96, round));
                  __syncthreads();
                }
              },
              order) == "");
  }
}

TEST_CASE("a barrier that is not there shows, whichever warp the reader stands in") {
  for (const unsigned int writer : {0u, 95u}) {
    bool is_seen_missing = false;
    for (const Order order : kOrders) {
      int value = 0;
      std::vector<int> seen(96, 0);
      CHECK(Run(
                1, 96,
                [&] {
                  if (threadIdx.x == writer) value = 1;
                  seen[threadIdx.x] = value;
                },
                order) == "");
      is_seen_missing = is_seen_missing || seen != std::vector<int>(96, 1);
    }
    CHECK(is_seen_missing);
  }
}

TEST_CASE("lanes exchange values as CUDA says") {
  for (const Order order : kOrders) {
    CHECK(Run(
              2, 64,
              [] {
                const int lane = static_cast<int>(threadIdx.x % 32);
                CHECK(__shfl_xor_sync(0xffffffffu, lane, 5) == (lane ^ 5));
                CHECK(__shfl_down_sync(0xffffffffu, lane * 0.5, 3) ==
                      (lane + 3 < 32 ? lane + 3 : lane) * 0.5);
                CHECK(__shfl_up_sync(0xffffffffu, lane, 4, 8) == (lane % 8 < 4 ? lane : lane - 4));
                CHECK(__shfl_sync(0xffffffffu, lane, 7) == 7);
                CHECK(__shfl_sync(0xffffffffu, lane, 2, 8) == lane / 8 * 8 + 2);
                CHECK(__ballot_sync(0xffffffffu, lane % 2) == 0xaaaaaaaau);
                CHECK(__all_sync(0xffffffffu, 1) != 0);
                CHECK(__any_sync(0xffffffffu, 0) == 0);
                if (lane < 8) CHECK(__shfl_xor_sync(0xffu, lane, 1) == (lane ^ 1));
              },
              order) == "");
  }
}

TEST_CASE("shared memory belongs to a block, holds poison at first, and has a margin") {
  static char one = 0;
  static char other = 0;
  CHECK(Run(2, 32, [] {
          auto& sums = SharedVariable<float[8]>(&one);
          auto& flag = SharedVariable<int>(&other);
          if (threadIdx.x == 0) CHECK(std::isnan(sums[7]));
          if (threadIdx.x == 0) CHECK(flag == -1);
          __syncthreads();
          if (threadIdx.x == 0) sums[7] = 1;
          if (threadIdx.x == 1) flag = 2;
          __syncthreads();
          CHECK(sums[7] == 1);
          CHECK(flag == 2);
          CHECK(static_cast<void*>(&sums) != static_cast<void*>(&flag));
        }) == "");
  CHECK_THAT(Run(1, 1, [] { SharedVariable<std::array<char, 49 << 10>>(&one); }),
             Contains("49152 bytes"));
}

TEST_CASE("a write past shared memory is named") {
  CHECK_THAT(Run(
                 1, 1, [] { DynamicShared<char>()[100] = 0; }, Order::kForward, 100),
             Contains("past the end of 100 bytes"));
}

struct Mistake {
  std::vector<std::string> words;  // one of them, by the order
  dim3 threads;
  std::function<void()> thread;
};

TEST_CASE("what a GPU would hang at or leave undefined is named") {
  alignas(8) static char aligned[16];
  const std::vector<Mistake> mistakes = {
      {{"returned while", "have returned already"},
       64,
       [] {
         if (threadIdx.x != 40) __syncthreads();
       }},
      {{"while other threads wait at that of"},
       64,
       [] {
         if (threadIdx.x < 32) {
           __syncthreads();
         } else {
           __syncthreads();
         }
       }},
      {{"no thread can go on"},
       64,
       [] {
         if (threadIdx.x != 3) __syncwarp();
         __syncthreads();
       }},
      {{"without its own lane"}, 32, [] { __syncwarp(0xffff0000u); }},
      {{"does not exist"}, 16, [] { __syncwarp(); }},
      {{"names lane 9", "names its lane"},
       32,
       [] {
         if (threadIdx.x == 9) return;
         (void)__shfl_sync(0xffffffffu, 1, 0);
       }},
      {{"which the mask leaves out"},
       32,
       [] {
         if (threadIdx.x < 16) (void)__shfl_xor_sync(0xffffu, 1, 16);
       }},
      {{"with mask", "names its lane", "names lane"},
       32,
       [] { (void)__shfl_sync(threadIdx.x < 16 ? 0xffffffffu : 0xffff0000u, 1, 20); }},
      {{"__launch_bounds__ says 32"}, 64, [] { CheckLaunchBounds(32); }},
      {{"4 bytes past a multiple"}, 1, [] { CheckAligned(aligned + 4, 8); }},
  };
  for (const Mistake& mistake : mistakes) {
    for (const Order order : kOrders) {
      const std::string said = Run(1, mistake.threads, mistake.thread, order);
      CAPTURE(mistake.words, order, said);
      CHECK(std::any_of(mistake.words.begin(), mistake.words.end(), [&](const std::string& words) {
        return said.find(words) != std::string::npos;
      }));
      CHECK(Run(
                1, 64, [] { __syncthreads(); }, order) == "");  // the next launch is whole
    }
  }
}

cudaError_t Launch(
    dim3 blocks, dim3 threads, size_t dynamic_bytes, const void* kernel,
    std::function<void()> thread = [] {}) {
  return LaunchKernel({blocks, threads, dynamic_bytes, nullptr}, kernel, std::move(thread));
}

TEST_CASE("a launch past CUDA's limits is refused") {
  static char kernel = 0;
  CHECK(Launch(1, 1024, 0, &kernel) == cudaSuccess);
  CHECK(Launch(1, 1025, 0, &kernel) == cudaErrorInvalidConfiguration);
  CHECK(Launch(1, dim3(1, 1, 65), 0, &kernel) == cudaErrorInvalidConfiguration);
  CHECK(Launch(0, 1, 0, &kernel) == cudaErrorInvalidConfiguration);
  CHECK(Launch(dim3(1, 65536), 1, 0, &kernel) == cudaErrorInvalidConfiguration);
  CHECK(Launch(1, 1, 48 << 10, &kernel) == cudaSuccess);
  CHECK(Launch(1, 1, (48 << 10) + 1, &kernel) == cudaErrorInvalidValue);
  CHECK(SetDynamicSharedBytesMax(&kernel, (99 << 10) + 1) == cudaErrorInvalidValue);
  CHECK(SetDynamicSharedBytesMax(&kernel, 99 << 10) == cudaSuccess);
  CHECK(Launch(1, 1, 99 << 10, &kernel) == cudaSuccess);
  CHECK(cudaGetLastError() == cudaErrorInvalidValue);
  CHECK(cudaGetLastError() == cudaSuccess);
  CHECK(cudaStreamSynchronize(nullptr) == cudaSuccess);
}

TEST_CASE("work runs when it must, or when it is queued") {
  for (const Order order : {Order::kForward, Order::kReverse}) {
    SetOrder(order);
    bool ran = false;
    CHECK(Launch(1, 1, 0, &ran, [&] { ran = true; }) == cudaSuccess);
    CHECK(ran == (order == Order::kReverse));
    CHECK(cudaStreamSynchronize(nullptr) == cudaSuccess);
    CHECK(ran);
  }
  SetOrder(Order::kForward);
}

TEST_CASE("a failed launch stays, with its words") {
  static char kernel = 0;
  CHECK(Launch(1, 32, 0, &kernel, [] { __syncwarp(1); }) == cudaSuccess);
  CHECK(cudaStreamSynchronize(nullptr) == cudaErrorLaunchFailure);
  CHECK_THAT(cudaGetErrorString(cudaErrorLaunchFailure), Contains("without its own lane"));
  CHECK(cudaSetDevice(0) == cudaErrorLaunchFailure);
  ForgetFailure();
  CHECK(cudaSetDevice(0) == cudaSuccess);
}

}  // namespace
}  // namespace convene::emulated
