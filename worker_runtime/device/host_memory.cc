#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "tools/base/check.h"
#include "tools/base/rounding.h"
#include "worker_runtime/device/device.h"

namespace convene::worker {
namespace {

constexpr size_t kHugePageBytes = size_t{2} << 20;
// Below two pages' worth a huge page wastes more than it saves.
constexpr size_t kHugeFromBytes = size_t{4} << 20;

// mmap aligns to small pages only. For a large block it is asked for a huge page more; the pages
// before and behind the block go back at once, so that Free knows the mapping.
class MappedMemory final : public Memory {
 public:
  absl::StatusOr<void*> Allocate(size_t bytes) override {
    const bool is_huge = bytes >= kHugeFromBytes;
    const size_t wanted = RoundUpToPage(bytes) + (is_huge ? kHugePageBytes : 0);
    void* const mapping =
        mmap(nullptr, wanted, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping == MAP_FAILED) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the system gave no ", bytes, " bytes (mmap: ", std::strerror(errno), ")"));
    }
    if (!is_huge) return mapping;
    char* const first = static_cast<char*>(mapping);
    const size_t before = -reinterpret_cast<uintptr_t>(first) % kHugePageBytes;
    if (before > 0) munmap(first, before);
    if (before < kHugePageBytes) {
      munmap(first + before + RoundUpToPage(bytes), kHugePageBytes - before);
    }
    // Advice only: without huge pages everything works, more slowly.
    (void)madvise(first + before, bytes, MADV_HUGEPAGE);
    return first + before;
  }

  void Free(void* data, size_t bytes) override {
    CONVENE_CHECK(munmap(data, RoundUpToPage(bytes)) == 0);
  }

 private:
  static size_t RoundUpToPage(size_t bytes) { return RoundUp(bytes, 4096); }
};

}  // namespace

Memory& HostMemory() {
  static MappedMemory memory;
  return memory;
}

}  // namespace convene::worker
