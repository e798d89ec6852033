#include "worker_runtime/weights/tensor_elements.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "worker_runtime/device/dtype.h"
#include "worker_runtime/device/float16.h"

namespace convene::worker {
namespace {

template <typename From, typename To>
To Converted(From value) {
  if constexpr (std::is_same_v<From, To>) {
    return value;
  } else {
    return static_cast<To>(static_cast<float>(value));
  }
}

template <typename From, typename To>
void CopyRun(const char* from, int64_t stride, int64_t count, To* to) {
  From value;
  if (stride == 1) {
    for (int64_t i = 0; i < count; ++i) {
      std::memcpy(&value, from + i * sizeof(From), sizeof(From));
      to[i] = Converted<From, To>(value);
    }
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(&value, from + i * stride * sizeof(From), sizeof(From));
    to[i] = Converted<From, To>(value);
  }
}

template <typename From, typename To>
absl::string_view CopyAll(const StoredMatrix& matrix, const Box& box, int64_t flat_begin,
                          int64_t count, To* to) {
  const int64_t width = box.extent[1];
  const int64_t row_step = matrix.is_turned ? 1 : matrix.columns;
  const int64_t column_step = matrix.is_turned ? matrix.columns : 1;
  const char* first = nullptr;
  const char* last = nullptr;
  for (int64_t done = 0; done < count;) {
    const int64_t row = (flat_begin + done) / width;
    const int64_t column = (flat_begin + done) % width;
    const int64_t run = std::min(width - column, count - done);
    const int64_t place = (box.offset[0] + row) * row_step + (box.offset[1] + column) * column_step;
    const char* const from = matrix.data + place * sizeof(From);
    CopyRun<From, To>(from, column_step, run, to + done);
    first = first == nullptr ? from : std::min(first, from);
    last = std::max(last, from + ((run - 1) * column_step + 1) * sizeof(From));
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
  }
  return {};
}

}  // namespace convene::worker
