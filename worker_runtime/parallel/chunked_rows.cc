#include "worker_runtime/parallel/chunked_rows.h"

#include <algorithm>
#include <functional>

#include "absl/strings/str_cat.h"
#include "tools/base/check.h"
#include "tools/base/text.h"

namespace convene::worker {
namespace {

constexpr int kChunksMax = 4;
// Estimates, not measured: a product of fewer rows leaves multiprocessors idle in its last round,
// and a collective of fewer bytes takes longer to start than to run.
constexpr int kChunkRowsMin = 2048;
constexpr size_t kChunkBytesMin = size_t{8} << 20;

bool ComesOutEven(int rows, int parts) { return rows % parts == 0; }

}  // namespace

ChunkChoice ChooseChunks(int rows, size_t row_bytes, bool is_split, int tp, DeviceKind device,
                         int asked) {
  if (tp == 1) return {1, "1: nothing is summed over one rank"};
  if (asked == 0 && device == DeviceKind::kCpu) {
    return {1, "1: on a CPU a collective takes time from the products beside it"};
  }
  for (int chunks = asked > 0 ? asked : kChunksMax; chunks > 1; --chunks) {
    if (!ComesOutEven(rows, chunks * (is_split ? tp : 1))) continue;
    const int chunk_rows = rows / chunks;
    const size_t bytes = chunk_rows * row_bytes;
    if (asked == 0 && (chunk_rows < kChunkRowsMin || bytes < kChunkBytesMin)) continue;
    return {chunks, absl::StrCat(chunks, ": ", chunk_rows, " rows (",
                                 HumanBytes(static_cast<double>(bytes)), ") each")};
  }
  return {1, absl::StrCat("1: ", rows, " rows (", HumanBytes(static_cast<double>(rows * row_bytes)),
                          ") are too few to cut, or do not come out even")};
}

ChunkedRows::ChunkedRows(int rows, int columns, bool is_split, Collective& tp, int chunks,
                         Device* beside)
    : chunks_(chunks),
      chunk_rows_(rows / chunks),
      chunk_(chunk_rows_, columns, is_split, tp),
      beside_(beside),
      fork_(beside != nullptr ? beside->MakeEvent() : nullptr) {
  CONVENE_CHECK(rows % chunks == 0);
}

// Products that `stream` is given from now on leave the collectives their multiprocessors.
Stream& ChunkedRows::Fork(Stream& stream) {
  Stream& side = beside_->layer_communication();
  beside_->Record(*fork_, stream);
  beside_->Order(*fork_, side);
  stream.set_left_free(kCollectiveMultiprocessors);
  return side;
}

void ChunkedRows::Note(const void* chunk, Stream& side) {
  auto place = std::find_if(started_.begin(), started_.end(),
                            [](const Started& started) { return started.chunk == nullptr; });
  if (place == started_.end()) {
    place = started_.insert(place, {.chunk = nullptr, .done = beside_->MakeEvent()});
  }
  place->chunk = chunk;
  beside_->Record(*place->done, side);
}

absl::Status ChunkedRows::Await(const void* first, const void* last, Stream& stream) {
  bool any = false, others = false;
  for (Started& started : started_) {
    if (started.chunk == last) beside_->Order(*started.done, stream);
    const bool is_awaited = started.chunk != nullptr && !std::less<>()(started.chunk, first) &&
                            !std::less<>()(last, started.chunk);
    if (is_awaited) started.chunk = nullptr;
    any = any || is_awaited;
    others = others || started.chunk != nullptr;
  }
  if (!any) return absl::OkStatus();
  if (!others) stream.set_left_free(0);
  return tp().Check();
}

}  // namespace convene::worker
