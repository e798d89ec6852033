// A block's shared memory: poison at first, with a margin beside every variable.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "worker_runtime/device/emulated/sanitizers.h"

namespace convene::emulated {

class SharedMemory {
 public:
  SharedMemory() = default;
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  void BeginBlock(size_t dynamic_bytes);
  // `last_words`: Published by the block's threads. Returns an error text when a margin was
  // written, else "".
  std::string EndBlock(void* last_words);

  // The block's variable of that key; null where its variables take more than 48 KiB.
  void* Variable(const void* key, size_t bytes, size_t alignment);
  void* Dynamic();

 private:
  struct Piece {
    const void* key;
    char* begin;
    size_t bytes;
  };
  void* Find(const void* key, size_t bytes, size_t alignment);

  size_t dynamic_bytes_ = 0;
  char* memory_ = nullptr;
  size_t used_ = 0;  // of memory_, margins included
  std::vector<Piece> pieces_;
  size_t variables_bytes_ = 0;
  // ThreadSanitizer sees one allocate and the other free, so that neither orders two blocks.
  Actor allocator_;
  Actor janitor_;
  char allocated_ = 0;  // Published
};

}  // namespace convene::emulated
