#include "worker_runtime/data/prepare/compact_output.h"

#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/data/store/token_blocks.h"
#include "worker_runtime/tokenizer/compact_tokenizer.h"
#include "worker_runtime/tokenizer/fingerprint.h"

namespace convene::worker {
namespace {

constexpr int32_t kUnused = -1;

using TokensRead = absl::FunctionRef<void(int64_t tokens)>;

// By whole id the compact one, or kUnused.
absl::StatusOr<std::vector<int32_t>> CompactIds(const TokenSource& whole,
                                                const Tokenizer& tokenizer, TokensRead tell) {
  CONVENE_ASSIGN_OR_RETURN(const std::vector<int32_t> needed, IndispensableIds(tokenizer));
  std::vector<bool> is_used(tokenizer.vocabulary_size());
  for (const int32_t id : needed) is_used[id] = true;
  CONVENE_RETURN_IF_ERROR(ForEachBlock(
      whole, 0, whole.token_count(),
      [&](int64_t first, absl::Span<int32_t> ids, absl::Span<const uint8_t>) -> absl::Status {
        for (const int32_t id : ids) {
          if (static_cast<uint32_t>(id) >= is_used.size()) {
            return absl::DataLossError(
                absl::StrCat(whole.path(), ": the token ", id, " behind token ", first,
                             " is outside the vocabulary of ", is_used.size()));
          }
          is_used[id] = true;
        }
        tell(first + static_cast<int64_t>(ids.size()));
        return absl::OkStatus();
      }));
  std::vector<int32_t> compact_ids(is_used.size(), kUnused);
  int32_t count = 0;
  for (size_t id = 0; id < is_used.size(); ++id) {
    if (is_used[id]) compact_ids[id] = count++;
  }
  return compact_ids;
}

TokenFileInfo CompactInfo(TokenFileInfo info, const std::vector<int32_t>& compact_ids) {
  CompactVocabulary compact = {.whole_size = info.vocabulary_size,
                               .whole_fingerprint = info.tokenizer.fingerprint};
  std::vector<uint16_t> token_bytes;
  for (size_t id = 0; id < compact_ids.size(); ++id) {
    if (compact_ids[id] == kUnused) continue;
    compact.original_ids.push_back(static_cast<int32_t>(id));
    token_bytes.push_back(info.token_bytes[id]);
  }
  info.vocabulary_size = static_cast<int>(compact.original_ids.size());
  info.token_bytes = std::move(token_bytes);
  TokenizerIdentity& tokenizer = info.tokenizer;
  tokenizer.fingerprint = CompactFingerprint(compact.whole_fingerprint, compact.original_ids);
  if (tokenizer.end_of_document.has_value()) {
    tokenizer.end_of_document = compact_ids[*tokenizer.end_of_document];
  }
  tokenizer.compact = std::move(compact);
  return info;
}

}  // namespace

absl::Status WriteCompact(const TokenSource& whole, const Tokenizer& tokenizer, TokenFileInfo info,
                          const std::string& path,
                          const std::function<void(int64_t done, int64_t total)>& progress) {
  const int64_t tokens = whole.token_count();
  int64_t before = 0;  // tokens of the first time
  const auto tell = [&](int64_t read) {
    if (progress) progress(before + read, 2 * tokens);
  };
  CONVENE_ASSIGN_OR_RETURN(const std::vector<int32_t> compact_ids,
                           CompactIds(whole, tokenizer, tell));
  before = tokens;
  return WriteDocuments(whole, CompactInfo(std::move(info), compact_ids), path,
                        [&](int64_t first, absl::Span<int32_t> ids) {
                          for (int32_t& id : ids) id = compact_ids[id];
                          tell(first + static_cast<int64_t>(ids.size()));
                        });
}

}  // namespace convene::worker
