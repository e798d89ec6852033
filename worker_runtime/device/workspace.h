// Scratch memory that the caller plans and lends to one op at a time.
#pragma once

#include <cstddef>

#include "tools/base/check.h"

namespace convene::worker {

// In the stream's device's memory, at a multiple of 64 bytes; its content means nothing between two
// calls. Ops that need one say how many bytes by a function beside them (...WorkspaceBytes).
struct Workspace {
  void* data = nullptr;
  size_t bytes = 0;

  // REQUIRES: bytes_needed <= bytes.
  template <typename T>
  T* As(size_t bytes_needed) const {
    CONVENE_CHECK(bytes_needed <= bytes);
    return static_cast<T*>(data);
  }
};

}  // namespace convene::worker
