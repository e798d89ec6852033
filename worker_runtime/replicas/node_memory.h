// A node's memory for copies of shards: a file that its agent holds (CONVENE_MEMORY), so that it
// outlives every worker, and is gone with the agent, however that one ends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "tools/base/unique_fd.h"
#include "worker_runtime/replicas/choose_copies.h"

namespace convene::worker {

// The file has no length to speak of: it is cut into windows of 1 TiB, which take as much memory as
// was written to them. Each local rank writes to kWindowsOfRank windows of its own. A window holds
// one copy:
//
//   header (a page) | index: the text of a manifest (checkpoint/manifest.h) | data
//
// The header's checksum, of the header and the index, is written last, and is the first thing that
// is taken away before a window is written again. So a copy that a death cut short is no copy. The
// index has the checksum of each chunk of the data.
constexpr int64_t kWindowsOfRank = 64;

// A window whose memory is reserved and mapped. Valid as long as the NodeMemory lives, and until
// Free.
struct MappedWindow {
  std::byte* head = nullptr;  // header and index, `data_offset` bytes; see Seal
  std::byte* data = nullptr;
  int64_t data_offset = 0;
  int64_t data_bytes = 0;
};

// Threads: one at a time for each window, and for everything else one at all.
class NodeMemory {
 public:
  // Errors: those of open(2) with the path: NotFound where the agent is gone.
  static absl::StatusOr<std::unique_ptr<NodeMemory>> Open(const std::string& path);
  ~NodeMemory();
  NodeMemory(const NodeMemory&) = delete;
  NodeMemory& operator=(const NodeMemory&) = delete;

  // The name of the whole copy in the window and the length of its index; nullopt where there is
  // none, or a torn one. Reads no data. Takes no memory.
  struct Found {
    CopyName name;
    int64_t index_bytes = 0;
  };
  std::optional<Found> Find(int64_t window) const;

  // Windows from this number on were never written.
  int64_t window_count() const;

  // The bytes from the window's beginning to its data, for an index of at most so many bytes.
  static int64_t DataOffset(int64_t index_bytes_max);
  // Reserves the memory of a window that is to be written, zeros where it is new. No copy stands in
  // it any more. ResourceExhausted: the machine has too little.
  absl::StatusOr<MappedWindow> Reserve(int64_t window, int64_t data_offset, int64_t data_bytes);
  // Puts the copy's index into the head, and seals it: the copy is whole. REQUIRES: the data are
  // written, the index has room.
  static void Seal(const MappedWindow& window, const CopyName& name, absl::string_view index);
  // The same with the head of a copy that was sealed elsewhere: `head` is data_offset bytes.
  static void SealLike(const MappedWindow& window, absl::Span<const std::byte> head);
  // No copy stands in the window any more.
  static void Break(const MappedWindow& window);

  // A whole copy, for reading. DataLoss where there is none any more.
  struct Copy {
    absl::string_view index;
    absl::Span<const std::byte> data;
  };
  absl::StatusOr<Copy> Read(int64_t window);

  // Gives the window's memory back.
  absl::Status Free(int64_t window);

 private:
  NodeMemory(UniqueFd file, std::string path) : file_(std::move(file)), path_(std::move(path)) {}
  absl::StatusOr<std::byte*> Map(int64_t window, int64_t bytes);
  void Unmap(int64_t window);

  const UniqueFd file_;
  const std::string path_;
  std::map<int64_t, std::pair<std::byte*, int64_t>> mapped_;  // by window: where, and how long
};

}  // namespace convene::worker
