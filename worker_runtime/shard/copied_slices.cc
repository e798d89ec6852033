#include "worker_runtime/shard/copied_slices.h"

#include <algorithm>

#include "tools/base/status_macros.h"
#include "worker_runtime/ops/elementwise.h"

namespace convene::worker {
namespace {

// Elements of the buffer at most: enough for a message worth its latency, little beside the
// gradients themselves.
constexpr int64_t kPlacesMax = int64_t{4} << 20;

int CopiesOf(const Placement& placement) {
  int copies = 1;
  for (const PlacedParameter& slice : placement.parameters) {
    copies = std::max(copies, slice.tp_copies);
  }
  return copies;
}

// Elements of copied slices side by side at most: however the buffer is cut into shards, and so the
// same on all ranks, whose arenas have all blocks at the same places.
int64_t LongestRun(const Placement& placement) {
  int64_t longest = 0;
  int64_t begin = 0;
  int64_t end = 0;
  for (const PlacedParameter& slice : placement.parameters) {
    if (slice.tp_copies == 1) continue;
    if (slice.flat_offset != end) begin = slice.flat_offset;
    end = slice.flat_offset + slice.count();
    longest = std::max(longest, end - begin);
  }
  return longest;
}

}  // namespace

CopiedSlices::CopiedSlices(const Placement& placement, const FlatShard& shard, Collective& tp,
                           Device& device, Arena& arena)
    : tp_(tp),
      device_(device),
      copies_(CopiesOf(placement)),
      pieces_(PiecesOf(placement, shard)),
      places_(arena.Declare<float>("gradients of copied heads",
                                   PlaceCount() * std::min(LongestRun(placement), PieceMax()),
                                   ArenaPart::kCollective)) {}

int64_t CopiedSlices::PieceMax() const { return kPlacesMax / PlaceCount(); }

// Key and value rows lie side by side, so most pieces are of both.
std::vector<CopiedSlices::Piece> CopiedSlices::PiecesOf(const Placement& placement,
                                                        const FlatShard& shard) const {
  std::vector<Piece> whole;
  auto part = shard.parts.begin();
  for (const ShardSegment& segment : shard.segments) {
    if (placement.parameters[segment.parameter].tp_copies == 1) continue;
    while (part->flat_begin + part->count <= segment.flat_begin) ++part;
    const int64_t begin = segment.flat_begin - part->flat_begin;
    if (whole.empty() || whole.back().part != &*part ||
        whole.back().begin + whole.back().count != begin) {
      whole.push_back({.part = &*part, .begin = begin});
    }
    whole.back().count += segment.count;
  }
  std::vector<Piece> pieces;
  for (const Piece& piece : whole) {
    for (int64_t done = 0; done < piece.count; done += PieceMax()) {
      pieces.push_back({piece.part, piece.begin + done, std::min(PieceMax(), piece.count - done)});
    }
  }
  return pieces;
}

absl::Status CopiedSlices::Sum(
    absl::FunctionRef<absl::Span<float>(const ShardPart&)> gradients_of) {
  Stream& stream = device_.compute();
  for (const Piece& piece : pieces_) {
    float* const own = gradients_of(*piece.part).subspan(piece.begin, piece.count).data();
    const absl::Span<float> all = places_.span().subspan(0, PlaceCount() * piece.count);
    float* const place = all.data() + tp_.rank() / copies_ * piece.count;
    device_.Zero(all.data(), all.size() * sizeof(float), stream);
    Copy(piece.count, own, place, stream);
    CONVENE_RETURN_IF_ERROR(tp_.AllReduce(all, ReduceOp::kSum, stream));
    Copy(piece.count, place, own, stream);
  }
  return absl::OkStatus();
}

}  // namespace convene::worker
