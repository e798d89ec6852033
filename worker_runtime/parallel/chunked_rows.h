// The residual stream's rows in chunks, so that the collective of one chunk runs beside the
// products of the others (as Wang et al. 2023, "Overlap Communication with Dependent Computation
// via Decomposition in Large Deep Learning Models", cut them; here without copies).
//
// Each chunk is a small residual stream by itself: the chunks follow each other in the order of the
// rows, and where rows are split over tp each rank holds 1/tp of every chunk. So a chunk of a
// product's rows and the data of its collective are both one piece of memory, as they stand.
//
//   3 chunks, tp 2   all rows  | 0 | 1 | 0 | 1 | 0 | 1 |  whose they are
//                    compute   product 0, product 1, product 2, norm 0, ...
//                    beside               sum 0,     sum 1,     sum 2
//
// Bits. Each row has one arithmetic, so an array of all rows stays as it is, unless a library
// rounds a product of fewer rows otherwise. Where rows are split, the number of chunks says which
// rank holds a row. So the norms' weight gradients are added up in another order of the rows, as
// with another tp, and over NCCL the sum of a row may begin at another rank. Hence the number
// follows from shapes and device, never from what runs beside.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/device/stream.h"
#include "worker_runtime/parallel/residual_rows.h"

namespace convene::worker {

struct ChunkChoice {
  int chunks = 1;
  std::string why;  // "4: 2048 rows (16.0 MiB) each"
};

// PURE. Into how many chunks the rows of a microbatch, each of `row_bytes` bytes, are cut. `asked`:
// at most as many; 0: as it pays.
ChunkChoice ChooseChunks(int rows, size_t row_bytes, bool is_split, int tp, DeviceKind device,
                         int asked);

// Works on tensors of (rows, columns) elements of float or BFloat16. Borrows the communicator and
// the device. Not thread-safe.
class ChunkedRows {
 public:
  // `beside`: the device in whose layer_communication() collectives run; null: all stay in the
  // caller's stream. REQUIRES: `chunks` divides rows, and where they are split tp.size() each
  // chunk's.
  ChunkedRows(int rows, int columns, bool is_split, Collective& tp, int chunks = 1,
              Device* beside = nullptr);
  // All rows at once, whose sums are made later (ResidualRows).
  static ChunkedRows Summands(int rows, int columns, Collective& tp) {
    return ChunkedRows(ResidualRows(rows, columns, false, tp, /*keeps_summands=*/true), rows);
  }

  int chunks() const { return chunks_; }
  const ResidualRows& chunk() const { return chunk_; }  // each of them
  int chunk_rows() const { return chunk_rows_; }
  int own() const { return chunks_ * chunk_.own(); }  // how many rows this rank holds
  size_t own_count() const { return chunks_ * chunk_.own_count(); }  // elements
  bool is_split() const { return chunk_.is_split(); }
  Collective& tp() const { return chunk_.tp(); }

  // Where a chunk begins, and this rank's rows of it.
  template <typename T>
  T* Chunk(T* all, int chunk) const {
    return all + chunk * chunk_.count();
  }
  template <typename T>
  T* Own(T* all, int chunk) const {
    return chunk_.Own(Chunk(all, chunk));
  }
  // Where they begin in an array of this rank's rows alone.
  template <typename T>
  T* Packed(T* own, int chunk) const {
    return own + chunk * chunk_.own_count();
  }

  // ResidualRows::Gather and Sum of all chunks, in `stream`. Errors: the collective's.
  template <typename T>
  absl::Status Gather(T* all, Stream& stream) const;
  template <typename T>
  absl::Status Sum(T* all, Stream& stream) const;

  // Queue a chunk's collective after all work in `stream`, and beside what `stream` is given from
  // now on, which leaves the chunk alone until Finish. Where there is one chunk nothing else can
  // run, but with `has_work`, and the collective stays in `stream`. Errors: the collective's.
  template <typename T>
  absl::Status StartSum(T* all, int chunk, Stream& stream, bool has_work = false) {
    if (!GoesBeside(has_work)) return chunk_.Sum(Chunk(all, chunk), stream);
    Stream& side = Fork(stream);
    CONVENE_RETURN_IF_ERROR(chunk_.Sum(Chunk(all, chunk), side));
    Note(Chunk(all, chunk), side);
    return absl::OkStatus();
  }
  template <typename T>
  absl::Status StartGather(T* all, int chunk, Stream& stream) {
    if (!is_split()) return absl::OkStatus();
    if (!GoesBeside(/*has_work=*/false)) return chunk_.Gather(Chunk(all, chunk), stream);
    return GatherIn(all, chunk, Fork(stream));
  }
  // Of all chunks.
  template <typename T>
  absl::Status StartGather(T* all, Stream& stream) {
    if (!is_split()) return absl::OkStatus();
    if (!GoesBeside(/*has_work=*/false)) return Gather(all, stream);
    Stream& side = Fork(stream);
    for (int c = 0; c < chunks_; ++c) CONVENE_RETURN_IF_ERROR(GatherIn(all, c, side));
    return absl::OkStatus();
  }

  // Work that `stream` is given from now on begins after what was started for the chunk, if
  // anything. Errors: the collective's, if it is known by now.
  template <typename T>
  absl::Status Finish(const T* all, int chunk, Stream& stream) {
    return Await(Chunk(all, chunk), Chunk(all, chunk), stream);
  }
  // After what was started for all chunks: one wait for the last.
  template <typename T>
  absl::Status Finish(const T* all, Stream& stream) {
    return Await(all, Chunk(all, chunks_ - 1), stream);
  }

 private:
  ChunkedRows(const ResidualRows& chunk, int rows)
      : chunks_(1), chunk_rows_(rows), chunk_(chunk), beside_(nullptr) {}

  // A chunk on its way; null: free for another one.
  struct Started {
    const void* chunk = nullptr;
    std::unique_ptr<Event> done;
  };

  bool GoesBeside(bool has_work) const { return beside_ != nullptr && (chunks_ > 1 || has_work); }
  Stream& Fork(Stream& stream);
  void Note(const void* chunk, Stream& side);
  // The chunks that begin from `first` to `last`, started in their order.
  absl::Status Await(const void* first, const void* last, Stream& stream);
  template <typename T>
  absl::Status GatherIn(T* all, int chunk, Stream& side) {
    CONVENE_RETURN_IF_ERROR(chunk_.Gather(Chunk(all, chunk), side));
    Note(Chunk(all, chunk), side);
    return absl::OkStatus();
  }

  const int chunks_;
  const int chunk_rows_;
  const ResidualRows chunk_;
  Device* const beside_;
  const std::unique_ptr<Event> fork_;  // recorded and waited for within one call
  std::vector<Started> started_;
};

template <typename T>
absl::Status ChunkedRows::Gather(T* all, Stream& stream) const {
  for (int c = 0; c < chunks_; ++c) {
    CONVENE_RETURN_IF_ERROR(chunk_.Gather(Chunk(all, c), stream));
  }
  return absl::OkStatus();
}

template <typename T>
absl::Status ChunkedRows::Sum(T* all, Stream& stream) const {
  for (int c = 0; c < chunks_; ++c) {
    CONVENE_RETURN_IF_ERROR(chunk_.Sum(Chunk(all, c), stream));
  }
  return absl::OkStatus();
}

}  // namespace convene::worker
