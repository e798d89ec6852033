#include "worker_runtime/shard/copied_slices.h"

#include <algorithm>

#include "absl/algorithm/container.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/ops/elementwise.h"

namespace convene::worker {
namespace {

// Elements of the buffer at most: enough for a message worth its latency, little beside the
// gradients themselves.
constexpr int64_t kPlacesMax = int64_t{4} << 20;

}  // namespace

CopiedSlices::CopiedSlices(const Placement& placement, const FlatShard& shard, Collective& tp,
                           Device& device, Arena& arena)
    : tp_(tp),
      device_(device),
      pieces_(PiecesOf(placement, shard)),
      places_(arena.Declare<float>("gradients of copied heads", LongestPlaces(placement),
                                   ArenaPart::kCollective)) {}

int64_t CopiedSlices::PieceMax(int copies) const { return kPlacesMax / PlaceCount(copies); }

// However the buffer is cut into shards.
int64_t CopiedSlices::LongestPlaces(const Placement& placement) const {
  int64_t longest = 0;
  int64_t begin = 0;
  int64_t end = 0;
  int copies = 1;
  for (const PlacedParameter& slice : placement.parameters) {
    if (slice.tp_copies == 1) continue;
    if (slice.flat_offset != end || slice.tp_copies != copies) begin = slice.flat_offset;
    end = slice.flat_offset + slice.count();
    copies = slice.tp_copies;
    longest = std::max(longest, PlaceCount(copies) * std::min(end - begin, PieceMax(copies)));
  }
  return longest;
}

// Key and value rows lie side by side, so most pieces are of both.
std::vector<CopiedSlices::Piece> CopiedSlices::PiecesOf(const Placement& placement,
                                                        const FlatShard& shard) const {
  std::vector<Piece> whole;
  auto part = shard.parts.begin();
  for (const ShardSegment& segment : shard.segments) {
    const int copies = placement.parameters[segment.parameter].tp_copies;
    if (copies == 1) continue;
    while (part->flat_begin + part->count <= segment.flat_begin) ++part;
    const int64_t begin = segment.flat_begin - part->flat_begin;
    if (whole.empty() || whole.back().part != &*part || whole.back().copies != copies ||
        whole.back().begin + whole.back().count != begin) {
      whole.push_back({.part = &*part, .begin = begin, .copies = copies});
    }
    whole.back().count += segment.count;
  }
  std::vector<Piece> pieces;
  for (const Piece& piece : whole) {
    const int64_t most = PieceMax(piece.copies);
    for (int64_t done = 0; done < piece.count; done += most) {
      pieces.push_back(
          {piece.part, piece.begin + done, std::min(most, piece.count - done), piece.copies});
    }
  }
  return pieces;
}

absl::Status CopiedSlices::Sum(
    absl::FunctionRef<absl::Span<float>(const ShardPart&)> gradients_of) {
  Stream& stream = device_.compute();
  for (const Piece& piece : pieces_) {
    float* const own = gradients_of(*piece.part).subspan(piece.begin, piece.count).data();
    const absl::Span<float> all = places_.span().subspan(0, PlaceCount(piece.copies) * piece.count);
    float* const place = all.data() + tp_.rank() / piece.copies * piece.count;
    device_.Zero(all.data(), all.size() * sizeof(float), stream);
    Copy(piece.count, own, place, stream);
    CONVENE_RETURN_IF_ERROR(tp_.AllReduce(all, ReduceOp::kSum, stream));
    Copy(piece.count, place, own, stream);
  }
  return absl::OkStatus();
}

bool CopiedSlices::HasPiecesIn(const ShardPart& part) const {
  return absl::c_any_of(pieces_, [&](const Piece& piece) { return piece.part == &part; });
}

}  // namespace convene::worker
