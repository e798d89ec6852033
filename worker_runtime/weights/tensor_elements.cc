#include "worker_runtime/weights/tensor_elements.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "worker_runtime/device/dtype.h"
#include "worker_runtime/device/float16.h"

namespace convene::worker {
namespace {

struct Mxfp4 {};  // the name of a type that C++ lacks

template <typename From, typename To>
To Converted(From value) {
  if constexpr (std::is_same_v<From, To>) {
    return value;
  } else {
    return static_cast<To>(static_cast<float>(value));
  }
}

// Elements begin, begin + stride, ... Returns the bytes of the file from the first to the last.
template <typename From, typename To, std::enable_if_t<!std::is_same_v<From, Mxfp4>, bool> = true>
absl::string_view CopyRun(const StoredMatrix& matrix, int64_t begin, int64_t stride, int64_t count,
                          To* to) {
  const char* const from = matrix.data + begin * static_cast<int64_t>(sizeof(From));
  if (stride == 1) {
    // Without vectors, a folder of bf16 takes three times as long to widen as to read.
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) {
      From value;
      std::memcpy(&value, from + i * sizeof(From), sizeof(From));
      to[i] = Converted<From, To>(value);
    }
  } else {
    for (int64_t i = 0; i < count; ++i) {
      From value;
      std::memcpy(&value, from + i * stride * sizeof(From), sizeof(From));
      to[i] = Converted<From, To>(value);
    }
  }
  return {from, static_cast<size_t>((count - 1) * stride + 1) * sizeof(From)};
}

template <typename From, typename To, std::enable_if_t<std::is_same_v<From, Mxfp4>, bool> = true>
absl::string_view CopyRun(const StoredMatrix& matrix, int64_t begin, int64_t stride, int64_t count,
                          To* to) {
  constexpr float kSizes[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  int64_t block = -1;
  float scale = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t place = begin + i * stride;
    if (place / 32 != block) {
      block = place / 32;
      scale = std::ldexp(1.0f, static_cast<uint8_t>(matrix.scales[block]) - 127);
    }
    const int byte = static_cast<uint8_t>(matrix.data[place / 2]);
    const int half = place % 2 == 0 ? byte & 15 : byte >> 4;
    to[i] = Converted<float, To>((half < 8 ? kSizes[half] : -kSizes[half - 8]) * scale);
  }
  const int64_t last = begin + (count - 1) * stride;
  return {matrix.data + begin / 2, static_cast<size_t>(last / 2 - begin / 2 + 1)};
}

template <typename From, typename To>
absl::string_view CopyAll(const StoredMatrix& matrix, const Box& box, int64_t flat_begin,
                          int64_t count, To* to) {
  const int64_t width = box.extent[1];
  const char* first = nullptr;
  const char* last = nullptr;
  for (int64_t done = 0; done < count;) {
    const int64_t row = (flat_begin + done) / width;
    const int64_t column = (flat_begin + done) % width;
    const int64_t run = std::min(width - column, count - done);
    const int64_t place = matrix.first + (box.offset[0] + row) * matrix.row_step +
                          (box.offset[1] + column) * matrix.column_step;
    const absl::string_view bytes =
        CopyRun<From, To>(matrix, place, matrix.column_step, run, to + done);
    first = first == nullptr ? bytes.data() : std::min(first, bytes.data());
    last = std::max(last, bytes.data() + bytes.size());
    done += run;
  }
  return {first, static_cast<size_t>(last - first)};
}

template <typename From>
absl::string_view CopyFrom(const StoredMatrix& matrix, const Box& box, int64_t flat_begin,
                           const Elements& target) {
  const auto count = static_cast<int64_t>(target.count);
  if (target.dtype == DType::kFloat32) {
    return CopyAll<From>(matrix, box, flat_begin, count, target.As<float>().data());
  }
  return CopyAll<From>(matrix, box, flat_begin, count, target.As<BFloat16>().data());
}

}  // namespace

bool StoredTypeNamed(absl::string_view name, StoredType* type) {
  if (name != "F32" && name != "F16" && name != "BF16") return false;
  *type = name == "F32" ? StoredType::kF32 : name == "F16" ? StoredType::kF16 : StoredType::kBF16;
  return true;
}

absl::string_view CopyElements(const StoredMatrix& matrix, const Box& box, int64_t flat_begin,
                               const Elements& target) {
  switch (matrix.type) {
    case StoredType::kF32:
      return CopyFrom<float>(matrix, box, flat_begin, target);
    case StoredType::kF16:
      return CopyFrom<Float16>(matrix, box, flat_begin, target);
    case StoredType::kBF16:
      return CopyFrom<BFloat16>(matrix, box, flat_begin, target);
    case StoredType::kMxfp4:
      return CopyFrom<Mxfp4>(matrix, box, flat_begin, target);
  }
  return {};
}

}  // namespace convene::worker
