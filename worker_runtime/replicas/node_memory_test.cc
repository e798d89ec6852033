#include "worker_runtime/replicas/node_memory.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "catch2/catch.hpp"
#include "tools/base/testing/status_testing.h"
#include "tools/base/unique_fd.h"

namespace convene::worker {
namespace {

class Memory {
 public:
  Memory() : file_(memfd_create("test", MFD_CLOEXEC)) { memory_ = Open(); }

  // Another worker's view of it.
  std::unique_ptr<NodeMemory> Open() const {
    auto opened = NodeMemory::Open(absl::StrCat("/proc/self/fd/", file_.get()));
    REQUIRE_OK(opened);
    return *std::move(opened);
  }
  NodeMemory* operator->() { return memory_.get(); }
  int64_t bytes() const {
    struct stat info = {};
    fstat(file_.get(), &info);
    return int64_t{info.st_blocks} * 512;
  }

 private:
  const UniqueFd file_;
  std::unique_ptr<NodeMemory> memory_;
};

constexpr int64_t kData = 10'000;

MappedWindow Reserve(Memory& memory, int64_t window) {
  auto reserved = memory->Reserve(window, NodeMemory::DataOffset(100), kData);
  REQUIRE_OK(reserved);
  return *reserved;
}

MappedWindow Write(Memory& memory, int64_t window, int64_t step, char fill) {
  const MappedWindow mapped = Reserve(memory, window);
  std::memset(mapped.data, fill, kData);
  NodeMemory::Seal(mapped, {3, step, 1, 2}, "index of step " + std::to_string(step));
  return mapped;
}

TEST_CASE("a copy outlives the worker that wrote it") {
  Memory memory;
  CHECK(memory->window_count() == 0);
  CHECK_FALSE(memory->Find(65).has_value());
  Write(memory, 65, 7, 'x');
  const auto other = memory.Open();
  CHECK(other->window_count() == 66);
  const auto found = other->Find(65);
  REQUIRE(found.has_value());
  CHECK(found->name == CopyName{3, 7, 1, 2});
  CHECK_FALSE(other->Find(64).has_value());
  const auto copy = other->Read(65);
  REQUIRE_OK(copy);
  CHECK(copy->index == "index of step 7");
  CHECK(found->index_bytes == static_cast<int64_t>(copy->index.size()));
  CHECK((copy->data.size() == kData && copy->data.back() == std::byte{'x'}));
}

TEST_CASE("a copy that a death cut short is none") {
  Memory memory;
  const MappedWindow mapped = Write(memory, 0, 7, 'x');
  SECTION("before its index") { NodeMemory::Break(mapped); }
  SECTION("in its index") { mapped.head[4096 + 3] ^= std::byte{1}; }
  SECTION("in its header") { mapped.head[16] ^= std::byte{1}; }
  SECTION("by another one in its place") { Reserve(memory, 0); }
  CHECK_FALSE(memory.Open()->Find(0).has_value());
  CHECK(absl::IsDataLoss(memory.Open()->Read(0).status()));
}

TEST_CASE("a copy that came from another node is sealed as it was there") {
  Memory memory, other;
  const MappedWindow from = Write(memory, 0, 7, 'x');
  const MappedWindow to = Reserve(other, 9);
  std::memcpy(to.data, from.data, kData);
  CHECK_FALSE(other->Find(9).has_value());
  NodeMemory::SealLike(to, absl::MakeConstSpan(from.head, from.data_offset));
  REQUIRE(other->Find(9).has_value());
  CHECK(other->Find(9)->name == memory->Find(0)->name);
}

TEST_CASE("a window takes the memory that was written, and gives it back") {
  Memory memory;
  Write(memory, 1000, 7, 'x');
  CHECK(memory.bytes() >= kData);
  CHECK(memory.bytes() < 100'000);
  REQUIRE_OK(memory->Free(1000));
  CHECK(memory.bytes() == 0);
  CHECK_FALSE(memory->Find(1000).has_value());
  REQUIRE_OK(memory->Free(0));  // never written
}

TEST_CASE("an agent that is gone holds no memory") {
  CHECK(absl::IsNotFound(NodeMemory::Open("/proc/self/fd/999999").status()));
}

}  // namespace
}  // namespace convene::worker
