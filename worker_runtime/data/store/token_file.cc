#include "worker_runtime/data/store/token_file.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "tools/base/check.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/data/store/token_blocks.h"
#include "worker_runtime/data/store/token_identity.h"
#include "worker_runtime/data/store/token_values.h"

namespace convene::worker {
namespace {

constexpr int64_t kBlockBytes = 1 << 22;

// Calls `progress` with the bytes that are read, unless it is empty. REQUIRES: the part lies in the
// file.
absl::Status Compare(const MappedFile& file, int64_t begin, int64_t bytes, uint64_t hash,
                     absl::string_view part,
                     const std::function<void(int64_t done_bytes)>& progress = nullptr) {
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(),
                                                                       &XXH3_freeState);
  CONVENE_CHECK(state != nullptr && XXH3_64bits_reset(state.get()) == XXH_OK);
  for (int64_t done = 0; done < bytes;) {
    const int64_t block = std::min(kBlockBytes, bytes - done);
    CONVENE_CHECK(XXH3_64bits_update(state.get(), file.data() + begin + done, block) == XXH_OK);
    done += block;
    if (progress) progress(done);
  }
  if (XXH3_64bits_digest(state.get()) == hash) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("the ", part, " differ from their checksum"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<TokenFile>> TokenFile::Open(const std::string& path) {
  CONVENE_ASSIGN_OR_RETURN(MappedFile mapped, MappedFile::Open(path));
  std::unique_ptr<TokenFile> file(new TokenFile(std::move(mapped)));
  CONVENE_RETURN_IF_ERROR(Annotate(file->ReadAll(), path));
  return file;
}

absl::Status TokenFile::ReadAll() {
  if (file_.size() < static_cast<int64_t>(sizeof(header_))) {
    return absl::DataLossError("shorter than a token file's header");
  }
  std::memcpy(&header_, file_.data(), sizeof(header_));
  CONVENE_RETURN_IF_ERROR(CheckHeader(header_, file_.size()));
  CONVENE_RETURN_IF_ERROR(Compare(file_, sizeof(header_), header_.identity_bytes,
                                  header_.identity_hash, "tokenizer's words"));
  CONVENE_ASSIGN_OR_RETURN(DecodedIdentity identity, DecodeIdentity(file_.bytes().substr(
                                                         sizeof(header_), header_.identity_bytes)));
  tokenizer_ = std::move(identity.tokenizer);
  token_bytes_ = std::move(identity.token_bytes);
  if (!token_bytes_.empty() && token_bytes_.size() != header_.vocabulary_size) {
    return absl::DataLossError(absl::StrCat("knows the bytes of ", token_bytes_.size(),
                                            " ids for a vocabulary of ", header_.vocabulary_size));
  }
  if (tokenizer_.compact.has_value() &&
      tokenizer_.compact->original_ids.size() != header_.vocabulary_size) {
    return absl::DataLossError(absl::StrCat(
        "has a compact vocabulary of ", tokenizer_.compact->original_ids.size(),
        " ids and another one of ", header_.vocabulary_size, ", which should be equal"));
  }
  CONVENE_RETURN_IF_ERROR(Compare(file_, PartsOf(header_).documents,
                                  header_.document_count * static_cast<int64_t>(sizeof(int64_t)),
                                  header_.document_hash, "documents' ends"));
  return CheckDocumentEnds(*this);
}

uint64_t TokenFile::content_hash() const {
  if (!has_counted()) return header_.token_hash;
  return XXH3_64bits_withSeed(&header_.counted_hash, sizeof(header_.counted_hash),
                              header_.token_hash);
}

int64_t TokenFile::document_end(int64_t document) const {
  CONVENE_CHECK(document >= 0 && document < header_.document_count);
  int64_t end;
  std::memcpy(
      &end,
      file_.data() + PartsOf(header_).documents + document * static_cast<int64_t>(sizeof(end)),
      sizeof(end));
  return end;
}

void TokenFile::Read(int64_t first, int64_t count, int32_t* tokens) const {
  CONVENE_CHECK(first >= 0 && count >= 0 && first <= header_.token_count - count);
  ReadTokens(TypeOf(header_),
             file_.data() + PartsOf(header_).tokens + first * header_.element_bytes, count, tokens);
}

void TokenFile::ReadCounted(int64_t first, int64_t count, uint8_t* counted) const {
  CONVENE_CHECK(first >= 0 && count >= 0 && first <= header_.token_count - count);
  if (!has_counted()) {
    std::fill_n(counted, count, uint8_t{1});
    return;
  }
  ReadBits(file_.data() + PartsOf(header_).counted, first, count, counted);
}

absl::Status TokenFile::VerifyChecksums(
    const std::function<void(int64_t done_tokens)>& progress) const {
  const TokenFileParts parts = PartsOf(header_);
  const auto tell = [&](int64_t done_bytes) {
    if (progress) progress(done_bytes / header_.element_bytes);
  };
  CONVENE_RETURN_IF_ERROR(
      Annotate(Compare(file_, parts.tokens, header_.token_count * header_.element_bytes,
                       header_.token_hash, "tokens", tell),
               path()));
  return Annotate(Compare(file_, parts.counted, parts.end - parts.counted, header_.counted_hash,
                          "counted bits"),
                  path());
}

}  // namespace convene::worker
