#include "worker_runtime/parallel/context_cut.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tools/base/check.h"

namespace convene::worker {

int ContextChunks(ContextMethod method) { return method == ContextMethod::kUlysses ? 1 : 2; }

const char* ContextMethodName(ContextMethod method) {
  switch (method) {
    case ContextMethod::kRing:
      return "ring";
    case ContextMethod::kAllGather:
      return "allgather";
    case ContextMethod::kUlysses:
      return "ulysses";
  }
  CONVENE_CHECK(false);
}

std::vector<int32_t> ContextPositions(ContextMethod method, int sequence_length, int size,
                                      int rank) {
  const int length = sequence_length / size;
  // A rank alone has the whole row, whatever its length.
  const int parts = size == 1 ? 1 : ContextChunks(method);
  const int chunk = length / parts;
  CONVENE_CHECK(chunk * parts * size == sequence_length);
  std::vector<int32_t> positions;
  positions.reserve(length);
  for (int part = 0; part < parts; ++part) {
    const int place = part == 0 ? rank : 2 * size - 1 - rank;
    for (int i = 0; i < chunk; ++i) positions.push_back(place * chunk + i);
  }
  return positions;
}

TokenRuns ContextCut::Runs() const {
  const int length = local_length();
  if (splits_heads()) {
    return {length, {rank * length}, sequence_length, rank * length};
  }
  const int chunk = length / 2;
  return {chunk, {rank * chunk, (2 * size - 1 - rank) * chunk}, length, 0};
}

std::vector<int32_t> ContextCut::Positions() const {
  return ContextPositions(method, sequence_length, size, rank);
}

std::vector<int32_t> ContextCut::QueryPositions() const {
  return splits_heads() ? ContextPositions(method, sequence_length, 1, 0) : Positions();
}

// Chunk r of an earlier rank comes before both chunks of this one, and its late chunk behind both;
// both chunks of a later rank come between this one's.
RingPart RingPartOf(const ContextCut& cut, int owner) {
  const int length = cut.local_length();
  if (owner == cut.rank) return {.queries = length, .keys = length, .is_in_order = true};
  const int half = length / 2;
  if (owner < cut.rank) return {.queries = length, .keys = half};
  return {.first_query = half, .queries = half, .keys = length};
}

void CutRows(const std::vector<int32_t>& positions, int sequence_length, int64_t rows,
             const int32_t* whole, int32_t* cut) {
  for (int64_t row = 0; row < rows; ++row, whole += sequence_length) {
    for (const int32_t position : positions) *cut++ = whole[position];
  }
}

int64_t ContextMultiple(ContextMethod method, int size) {
  return size == 1 ? 1 : int64_t{ContextChunks(method)} * size;
}

absl::Status ValidateContextHeads(ContextMethod method, int size, int size_max,
                                  int64_t sequence_length, int heads, int kv_heads) {
  const auto fits = [&](int n) { return heads % n == 0 && kv_heads % n == 0; };
  if (method != ContextMethod::kUlysses || fits(size)) return absl::OkStatus();
  std::vector<int> legal;
  for (int n = 1; n <= std::min(kv_heads, size_max); ++n) {
    if (fits(n) && sequence_length % ContextMultiple(method, n) == 0) legal.push_back(n);
  }
  const bool others_fit = sequence_length % ContextMultiple(ContextMethod::kRing, size) == 0;
  return absl::InvalidArgumentError(
      absl::StrCat("cp_method ulysses splits the ", heads, " query and ", kv_heads,
                   " key-value heads of a tensor-parallel rank over cp_size ", size,
                   ", which does not come out even: cp_size can be ", absl::StrJoin(legal, ", "),
                   others_fit ? "; or choose cp_method ring or allgather" : ""));
}

}  // namespace convene::worker
