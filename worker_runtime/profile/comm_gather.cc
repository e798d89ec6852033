#include "worker_runtime/profile/comm_gather.h"

#include <algorithm>
#include <cstddef>

#include "absl/types/span.h"
#include "tools/base/status_macros.h"

namespace convene::worker {

absl::StatusOr<std::vector<CommSheet>> GatherComm(const CommSheet& sheet, Collective& host) {
  Stream stream = Stream::Cpu();
  double most = static_cast<double>(sheet.lines.size());
  CONVENE_RETURN_IF_ERROR(host.AllReduce(absl::MakeSpan(&most, 1), ReduceOp::kMax, stream));
  // Behind its own lines a rank has one that says with its calls how many were left out, and then
  // empty ones: a line of a collective has an operation.
  const size_t stride = static_cast<size_t>(most) + 1;
  const size_t size = host.size();
  std::vector<CommLine> all(stride * size);
  auto end = std::copy(sheet.lines.begin(), sheet.lines.end(), all.begin() + host.rank() * stride);
  end->calls = sheet.left_out;
  CONVENE_RETURN_IF_ERROR(
      host.AllGather({all.data(), all.size() * sizeof(CommLine), DType::kUInt8}, stream));
  std::vector<CommSheet> sheets(size);
  for (size_t rank = 0; rank < size; ++rank) {
    const auto begin = all.begin() + rank * stride;
    const auto last = std::find_if(begin, begin + stride - 1,
                                   [](const CommLine& line) { return line.operation[0] == 0; });
    sheets[rank] = {.lines = {begin, last}, .left_out = last->calls};
  }
  return sheets;
}

}  // namespace convene::worker
