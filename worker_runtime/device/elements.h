// Spans whose element type is known at run time, for rooms that do not compute (collectives, the
// pipeline's executor, checkpoints).
#pragma once

#include <cstddef>
#include <type_traits>

#include "absl/types/span.h"
#include "tools/base/check.h"
#include "worker_runtime/device/dtype.h"

namespace convene::worker {

// `count` elements of `dtype`, borrowed, in the memory of the device to which a call's stream
// belongs.
template <typename Void>
struct BasicElements {
  Void* data = nullptr;
  size_t count = 0;
  DType dtype = DType::kFloat32;

  BasicElements() = default;
  BasicElements(Void* first, size_t element_count, DType element_type)
      : data(first), count(element_count), dtype(element_type) {}
  // Implicit, so that callers pass spans.
  template <typename T, typename = std::enable_if_t<std::is_convertible_v<T*, Void*>>,
            DType = kDTypeOf<std::remove_const_t<T>>>
  BasicElements(absl::Span<T> span)  // NOLINT(google-explicit-constructor)
      : data(span.data()), count(span.size()), dtype(kDTypeOf<std::remove_const_t<T>>) {}
  template <typename Other, typename = std::enable_if_t<std::is_convertible_v<Other*, Void*>>>
  BasicElements(BasicElements<Other> other)  // NOLINT(google-explicit-constructor)
      : data(other.data), count(other.count), dtype(other.dtype) {}

  size_t size_bytes() const { return count * SizeOf(dtype); }
  bool empty() const { return count == 0; }

  // REQUIRES: begin + length <= count.
  BasicElements Slice(size_t begin, size_t length) const {
    CONVENE_CHECK(begin <= count && length <= count - begin);
    using Byte = std::conditional_t<std::is_const_v<Void>, const char, char>;
    return {static_cast<Byte*>(data) + begin * SizeOf(dtype), length, dtype};
  }

  // REQUIRES: T is the element type.
  template <typename T>
  auto As() const {
    CONVENE_CHECK(dtype == kDTypeOf<T>);
    using Element = std::conditional_t<std::is_const_v<Void>, const T, T>;
    return absl::Span<Element>(static_cast<Element*>(data), count);
  }
};

using Elements = BasicElements<void>;
using ConstElements = BasicElements<const void>;

}  // namespace convene::worker
