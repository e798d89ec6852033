#include "worker_runtime/data/store/token_blocks.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"

namespace convene::worker {
namespace {

constexpr int64_t kBlockTokens = 1 << 16;

}  // namespace

absl::Status ForEachBlock(const TokenSource& source, int64_t begin, int64_t end, UseTokens use) {
  const int64_t most = std::min(kBlockTokens, end - begin);
  std::vector<int32_t> ids(most);
  std::vector<uint8_t> counted(source.has_counted() ? most : 0);
  for (int64_t first = begin; first < end; first += most) {
    const int64_t count = std::min(most, end - first);
    source.Read(first, count, ids.data());
    if (source.has_counted()) source.ReadCounted(first, count, counted.data());
    CONVENE_RETURN_IF_ERROR(use(first, absl::MakeSpan(ids).first(count),
                                absl::MakeConstSpan(counted).subspan(0, count)));
  }
  return absl::OkStatus();
}

absl::Status CheckDocumentEnds(const TokenSource& source) {
  int64_t last = 0;
  for (int64_t document = 0; document < source.document_count(); ++document) {
    const int64_t end = source.document_end(document);
    if (end < last || end > source.token_count()) {
      return absl::DataLossError(absl::StrCat("document ", document, " ends at token ", end,
                                              ", the one before at ", last, ", of ",
                                              source.token_count()));
    }
    last = end;
  }
  if (last == source.token_count()) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("the documents end at token ", last, " of ", source.token_count()));
}

}  // namespace convene::worker
