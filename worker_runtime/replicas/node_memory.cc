#include "worker_runtime/replicas/node_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "tools/base/check.h"
#include "tools/base/files.h"
#include "tools/base/rounding.h"
#include "tools/base/status_macros.h"

namespace convene::worker {
namespace {

constexpr int64_t kWindowBytes = int64_t{1} << 40;
constexpr int64_t kPageBytes = 4096;
constexpr uint64_t kMagic = 0x31'79'70'6f'63'6e'6f'63;  // "concopy1"

struct Header {
  uint64_t magic = 0;
  int64_t generation = 0;
  int64_t step = 0;
  int64_t shard = 0;
  int64_t shards = 0;
  int64_t index_bytes = 0;
  int64_t data_offset = 0;
  int64_t data_bytes = 0;
  uint64_t checksum = 0;  // never 0 where a copy stands
};
static_assert(sizeof(Header) <= kPageBytes);

// Of a header's fields and its index, which stands at `index`.
uint64_t ChecksumOf(Header header, const std::byte* index) {
  header.checksum = XXH3_64bits(index, header.index_bytes);
  return std::max<uint64_t>(1, XXH3_64bits(&header, sizeof(header)));
}

bool IsPlausible(const Header& header) {
  return header.magic == kMagic && header.checksum != 0 && header.index_bytes >= 0 &&
         header.data_bytes >= 0 && header.data_offset >= kPageBytes &&
         header.data_offset <= kWindowBytes / 2 && header.data_bytes <= kWindowBytes / 2 &&
         header.index_bytes <= header.data_offset - kPageBytes && header.shard >= 0 &&
         header.shards > header.shard && header.shards < (1 << 30);
}

std::atomic_ref<uint64_t> SealOf(const MappedWindow& window) {
  return std::atomic_ref<uint64_t>(reinterpret_cast<Header*>(window.head)->checksum);
}

}  // namespace

absl::StatusOr<std::unique_ptr<NodeMemory>> NodeMemory::Open(const std::string& path) {
  CONVENE_ASSIGN_OR_RETURN(UniqueFd file, OpenFile(path, O_RDWR));
  return std::unique_ptr<NodeMemory>(new NodeMemory(std::move(file), path));
}

NodeMemory::~NodeMemory() {
  while (!mapped_.empty()) Unmap(mapped_.begin()->first);
}

std::optional<NodeMemory::Found> NodeMemory::Find(int64_t window) const {
  Header header;
  const int64_t begin = window * kWindowBytes;
  const auto read = [&](void* target, int64_t bytes, int64_t offset) {
    return pread(file_.get(), target, bytes, begin + offset) == bytes;
  };
  if (!read(&header, sizeof(header), 0) || !IsPlausible(header)) return std::nullopt;
  std::vector<std::byte> index(header.index_bytes);
  if (!read(index.data(), header.index_bytes, kPageBytes) ||
      ChecksumOf(header, index.data()) != header.checksum) {
    return std::nullopt;
  }
  return Found{{header.generation, header.step, static_cast<int>(header.shard),
                static_cast<int>(header.shards)},
               header.index_bytes};
}

int64_t NodeMemory::window_count() const {
  struct stat info = {};
  return fstat(file_.get(), &info) == 0 ? CeilDivide(info.st_size, kWindowBytes) : 0;
}

int64_t NodeMemory::DataOffset(int64_t index_bytes_max) {
  return kPageBytes + RoundUp(index_bytes_max, kPageBytes);
}

absl::StatusOr<std::byte*> NodeMemory::Map(int64_t window, int64_t bytes) {
  Unmap(window);
  void* const at =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), window * kWindowBytes);
  if (at == MAP_FAILED) return ErrnoStatus(errno, absl::StrCat("map ", path_));
  mapped_[window] = {static_cast<std::byte*>(at), bytes};
  return static_cast<std::byte*>(at);
}

void NodeMemory::Unmap(int64_t window) {
  const auto found = mapped_.find(window);
  if (found == mapped_.end()) return;
  munmap(found->second.first, found->second.second);
  mapped_.erase(found);
}

absl::StatusOr<MappedWindow> NodeMemory::Reserve(int64_t window, int64_t data_offset,
                                                 int64_t data_bytes) {
  const int64_t bytes = data_offset + data_bytes;
  CONVENE_CHECK(data_offset >= kPageBytes && data_bytes >= 0 && bytes <= kWindowBytes);
  // Without it a page that cannot be had would end the process by SIGBUS.
  while (fallocate(file_.get(), 0, window * kWindowBytes, bytes) != 0) {
    if (errno == EINTR) continue;
    const int error = errno == ENOSPC ? ENOMEM : errno;
    return ErrnoStatus(error, absl::StrCat("take ", bytes, " bytes of host memory for a copy"));
  }
  CONVENE_ASSIGN_OR_RETURN(std::byte* const at, Map(window, bytes));
  const MappedWindow mapped = {at, at + data_offset, data_offset, data_bytes};
  Break(mapped);
  return mapped;
}

void NodeMemory::Seal(const MappedWindow& window, const CopyName& name, absl::string_view index) {
  CONVENE_CHECK(static_cast<int64_t>(index.size()) <= window.data_offset - kPageBytes);
  const Header header = {.magic = kMagic,
                         .generation = name.generation,
                         .step = name.step,
                         .shard = name.shard,
                         .shards = name.shards,
                         .index_bytes = static_cast<int64_t>(index.size()),
                         .data_offset = window.data_offset,
                         .data_bytes = window.data_bytes};
  std::memcpy(window.head, &header, sizeof(header));
  std::memcpy(window.head + kPageBytes, index.data(), index.size());
  SealOf(window).store(ChecksumOf(header, window.head + kPageBytes), std::memory_order_release);
}

void NodeMemory::SealLike(const MappedWindow& window, absl::Span<const std::byte> head) {
  Header header;
  CONVENE_CHECK(static_cast<int64_t>(head.size()) == window.data_offset);
  std::memcpy(&header, head.data(), sizeof(header));
  const uint64_t checksum = std::exchange(header.checksum, 0);
  std::memcpy(window.head, &header, sizeof(header));
  std::memcpy(window.head + kPageBytes, head.data() + kPageBytes, head.size() - kPageBytes);
  SealOf(window).store(checksum, std::memory_order_release);
}

void NodeMemory::Break(const MappedWindow& window) {
  SealOf(window).store(0, std::memory_order_relaxed);
  // No later write comes before it.
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

absl::StatusOr<NodeMemory::Copy> NodeMemory::Read(int64_t window) {
  const absl::Status gone =
      absl::DataLossError(absl::StrCat("window ", window, " of ", path_, " holds no whole copy"));
  if (!Find(window).has_value()) return gone;
  Header header;
  if (pread(file_.get(), &header, sizeof(header), window * kWindowBytes) != sizeof(header) ||
      !IsPlausible(header)) {
    return gone;
  }
  CONVENE_ASSIGN_OR_RETURN(const std::byte* const at,
                           Map(window, header.data_offset + header.data_bytes));
  return Copy{
      {reinterpret_cast<const char*>(at + kPageBytes), static_cast<size_t>(header.index_bytes)},
      {at + header.data_offset, static_cast<size_t>(header.data_bytes)}};
}

absl::Status NodeMemory::Free(int64_t window) {
  Unmap(window);
  while (fallocate(file_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, window * kWindowBytes,
                   kWindowBytes) != 0) {
    if (errno != EINTR) return ErrnoStatus(errno, absl::StrCat("give back memory of ", path_));
  }
  return absl::OkStatus();
}

}  // namespace convene::worker
