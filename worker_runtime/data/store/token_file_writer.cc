#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tools/base/check.h"
#include "tools/base/files.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/data/store/token_blocks.h"
#include "worker_runtime/data/store/token_file.h"
#include "worker_runtime/data/store/token_identity.h"
#include "worker_runtime/data/store/token_values.h"

namespace convene::worker {
namespace {

constexpr size_t kBufferBytes = 1 << 20;
// So much of what was written last stays in the page cache.
constexpr int64_t kCachedBytes = 16 << 20;
constexpr absl::string_view kStateName = "token-file-state-3";

std::string DocumentsPath(const std::string& path) { return path + ".documents"; }
std::string CountedPath(const std::string& path) { return path + ".counted"; }

absl::string_view BytesOf(const TokenFileHeader& header) {
  return {reinterpret_cast<const char*>(&header), sizeof(header)};
}

absl::Status WriteAt(int fd, int64_t offset, absl::string_view bytes, const std::string& path) {
  if (lseek(fd, offset, SEEK_SET) != offset) return ErrnoStatus(errno, absl::StrCat("seek ", path));
  return WriteAll(fd, bytes, path);
}

// Reads exactly `bytes` from `begin` on, a block at a time.
absl::Status ReadBlocks(int fd, int64_t begin, int64_t bytes, const std::string& path,
                        const std::function<absl::Status(absl::string_view)>& use) {
  std::vector<char> block(std::min<int64_t>(kBufferBytes, bytes));
  for (int64_t done = 0; done < bytes;) {
    const ssize_t n =
        pread(fd, block.data(), std::min<int64_t>(block.size(), bytes - done), begin + done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, absl::StrCat("read ", path));
    if (n == 0) return absl::DataLossError(absl::StrCat(path, " was cut short while it was read"));
    CONVENE_RETURN_IF_ERROR(use(absl::string_view(block.data(), n)));
    done += n;
  }
  return absl::OkStatus();
}

// Cuts the file to `bytes` and goes to its end.
absl::Status CutTo(int fd, int64_t bytes, const std::string& path) {
  const int64_t size = lseek(fd, 0, SEEK_END);
  if (size < 0) return ErrnoStatus(errno, absl::StrCat("seek ", path));
  if (size < bytes) {
    return absl::DataLossError(absl::StrCat(path, " has ", size, " bytes of the ", bytes,
                                            " that were written: start again from the beginning"));
  }
  if (ftruncate(fd, bytes) != 0) return ErrnoStatus(errno, absl::StrCat("truncate ", path));
  if (lseek(fd, 0, SEEK_END) != bytes) return ErrnoStatus(errno, absl::StrCat("seek ", path));
  return absl::OkStatus();
}

std::string StateText(const TokenFileHeader& header, int64_t document_begin, int open_bits) {
  return absl::StrCat(kStateName, " ", header.token_count, " ", header.document_count, " ",
                      document_begin, " ", open_bits, " ", header.token_hash, " ",
                      header.element_bytes, " ", header.vocabulary_size, " ", header.flags, " ",
                      header.source_key, " ", header.identity_bytes, " ", header.identity_hash);
}

uint32_t VersionOf(const TokenizerIdentity& tokenizer) {
  return tokenizer.compact.has_value() ? kCompactTokenFileVersion : kTokenFileVersion;
}

struct State {
  TokenFileHeader header = {};
  int64_t document_begin = 0;
  uint32_t open_bits = 0;
};

bool ParseState(absl::string_view text, State* state) {
  const std::vector<absl::string_view> words = absl::StrSplit(text, ' ');
  TokenFileHeader& header = state->header;
  return words.size() == 12 && words[0] == kStateName &&
         absl::SimpleAtoi(words[1], &header.token_count) &&
         absl::SimpleAtoi(words[2], &header.document_count) &&
         absl::SimpleAtoi(words[3], &state->document_begin) &&
         absl::SimpleAtoi(words[4], &state->open_bits) &&
         absl::SimpleAtoi(words[5], &header.token_hash) &&
         absl::SimpleAtoi(words[6], &header.element_bytes) &&
         absl::SimpleAtoi(words[7], &header.vocabulary_size) &&
         absl::SimpleAtoi(words[8], &header.flags) &&
         absl::SimpleAtoi(words[9], &header.source_key) &&
         absl::SimpleAtoi(words[10], &header.identity_bytes) &&
         absl::SimpleAtoi(words[11], &header.identity_hash) && state->open_bits < 256 &&
         header.element_bytes ==
             static_cast<uint32_t>(TokenWidth(static_cast<int>(header.vocabulary_size))) &&
         header.flags <= kHasCounted && state->document_begin >= 0 &&
         state->document_begin <= header.token_count;
}

}  // namespace

void TokenFileWriter::FreeHash::operator()(XXH3_state_s* state) const { XXH3_freeState(state); }

absl::StatusOr<TokenFileWriter> TokenFileWriter::Create(const std::string& path,
                                                        const TokenFileInfo& info) {
  if (info.vocabulary_size < 1 ||
      (!info.token_bytes.empty() &&
       info.token_bytes.size() != static_cast<size_t>(info.vocabulary_size))) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": a vocabulary of ", info.vocabulary_size,
                                                   " ids, with the bytes of ",
                                                   info.token_bytes.size()));
  }
  const std::string identity = EncodeIdentity(info.tokenizer, info.token_bytes);
  TokenFileWriter writer;
  writer.path_ = path;
  TokenFileHeader& header = writer.header_;
  header.version = VersionOf(info.tokenizer);
  header.element_bytes = TokenWidth(info.vocabulary_size);
  header.vocabulary_size = info.vocabulary_size;
  header.flags = info.has_counted ? kHasCounted : 0;
  header.source_key = info.source_key;
  header.identity_bytes = static_cast<int64_t>(identity.size());
  header.identity_hash = XXH3_64bits(identity.data(), identity.size());
  CONVENE_ASSIGN_OR_RETURN(writer.fd_, OpenFile(path, O_RDWR | O_CREAT | O_TRUNC));
  CONVENE_RETURN_IF_ERROR(writer.OpenSideFiles(O_RDWR | O_CREAT | O_TRUNC));
  std::string begin = std::string(sizeof(TokenFileHeader), '\0') + identity;
  begin.resize(PartsOf(header).tokens);
  CONVENE_RETURN_IF_ERROR(WriteAll(writer.fd_.get(), begin, path));
  return writer;
}

absl::Status TokenFileWriter::OpenSideFiles(int flags) {
  hash_.reset(XXH3_createState());
  CONVENE_CHECK(hash_ != nullptr && XXH3_64bits_reset(hash_.get()) == XXH_OK);
  CONVENE_ASSIGN_OR_RETURN(documents_fd_, OpenFile(DocumentsPath(path_), flags));
  if (!HasCounted(header_)) return absl::OkStatus();
  CONVENE_ASSIGN_OR_RETURN(counted_fd_, OpenFile(CountedPath(path_), flags));
  return absl::OkStatus();
}

absl::StatusOr<TokenFileWriter> TokenFileWriter::Resume(const std::string& path,
                                                        absl::string_view state_text) {
  State state;
  if (!ParseState(state_text, &state)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": this is not a state to go on from: '",
                                                   state_text.substr(0, 100),
                                                   "'; start again from the beginning"));
  }
  TokenFileWriter writer;
  writer.path_ = path;
  writer.header_ = state.header;
  writer.token_count_ = state.header.token_count;
  writer.document_count_ = state.header.document_count;
  writer.document_begin_ = state.document_begin;
  writer.open_bits_ = static_cast<uint8_t>(state.open_bits);
  CONVENE_ASSIGN_OR_RETURN(writer.fd_, OpenFile(path, O_RDWR));
  CONVENE_RETURN_IF_ERROR(writer.OpenSideFiles(O_RDWR));
  CONVENE_RETURN_IF_ERROR(writer.ResumeAt(state.header));
  writer.header_.token_count = writer.header_.document_count = 0;
  writer.header_.token_hash = 0;
  return writer;
}

absl::Status TokenFileWriter::ResumeAt(const TokenFileHeader& state) {
  const int64_t size = lseek(fd_.get(), 0, SEEK_END);
  const int64_t documents_size = lseek(documents_fd_.get(), 0, SEEK_END);
  if (size < 0 || documents_size < 0) return ErrnoStatus(errno, absl::StrCat("seek ", path_));
  if (!CountsFit(state, size + documents_size)) {
    return absl::DataLossError(absl::StrCat(
        path_, " has ", size, " bytes, fewer than were written: start again from the beginning"));
  }
  // A file that Finish completed is no token file again until the next Finish.
  CONVENE_RETURN_IF_ERROR(WriteAt(fd_.get(), 0, std::string(sizeof(TokenFileHeader), '\0'), path_));
  CONVENE_RETURN_IF_ERROR(
      CutTo(fd_.get(), PartsOf(state).tokens + state.token_count * state.element_bytes, path_));
  CONVENE_RETURN_IF_ERROR(CutTo(documents_fd_.get(),
                                state.document_count * static_cast<int64_t>(sizeof(int64_t)),
                                DocumentsPath(path_)));
  if (HasCounted(state)) {
    CONVENE_RETURN_IF_ERROR(CutTo(counted_fd_.get(), state.token_count / 8, CountedPath(path_)));
  }
  return Rehash();
}

absl::Status TokenFileWriter::Rehash() {
  std::string identity;
  CONVENE_RETURN_IF_ERROR(ReadBlocks(fd_.get(), sizeof(TokenFileHeader), header_.identity_bytes,
                                     path_, [&](absl::string_view block) {
                                       identity.append(block.data(), block.size());
                                       return absl::OkStatus();
                                     }));
  CONVENE_RETURN_IF_ERROR(ReadBlocks(
      fd_.get(), PartsOf(header_).tokens, header_.token_count * header_.element_bytes, path_,
      [&](absl::string_view block) {
        CONVENE_CHECK(XXH3_64bits_update(hash_.get(), block.data(), block.size()) == XXH_OK);
        return absl::OkStatus();
      }));
  if (XXH3_64bits(identity.data(), identity.size()) != header_.identity_hash ||
      XXH3_64bits_digest(hash_.get()) != header_.token_hash) {
    return absl::DataLossError(absl::StrCat(
        path_, " no longer holds what was written to it: start again from the beginning"));
  }
  const absl::StatusOr<DecodedIdentity> decoded = DecodeIdentity(identity);
  if (!decoded.ok()) return Annotate(decoded.status(), path_);
  header_.version = VersionOf(decoded->tokenizer);
  return absl::OkStatus();
}

void TokenFileWriter::Discard(const std::string& path) {
  for (const std::string& name : {path, DocumentsPath(path), CountedPath(path)}) {
    unlink(name.c_str());
  }
}

absl::Status TokenFileWriter::Append(absl::Span<const int32_t> ids,
                                     absl::Span<const uint8_t> counted) {
  CONVENE_CHECK(counted.empty() || (HasCounted(header_) && counted.size() == ids.size()));
  while (!ids.empty()) {
    const size_t count = std::min<size_t>(ids.size(), kBufferBytes / header_.element_bytes);
    const absl::Span<const int32_t> piece = ids.subspan(0, count);
    uint32_t largest = 0;  // a negative id is a large one
    for (const int32_t id : piece) largest = std::max(largest, static_cast<uint32_t>(id));
    if (largest >= header_.vocabulary_size) {
      return absl::InvalidArgumentError(
          absl::StrCat(path_, ": token ", static_cast<int32_t>(largest), " in document ",
                       document_count_, " is outside the vocabulary of ", header_.vocabulary_size));
    }
    AppendTokens(TypeOf(header_), piece, &token_buffer_);
    if (HasCounted(header_)) {
      AppendCounted(counted.subspan(0, std::min(count, counted.size())), count);
    }
    token_count_ += static_cast<int64_t>(count);
    ids.remove_prefix(count);
    if (!counted.empty()) counted.remove_prefix(count);
    if (token_buffer_.size() >= kBufferBytes) CONVENE_RETURN_IF_ERROR(Flush());
  }
  return absl::OkStatus();
}

// `counted` is empty (all count), or has `count` values. REQUIRES: token_count_ is still that
// before these tokens.
void TokenFileWriter::AppendCounted(absl::Span<const uint8_t> counted, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const int bit = static_cast<int>((token_count_ + static_cast<int64_t>(i)) % 8);
    if (counted.empty() || counted[i] != 0) open_bits_ |= static_cast<uint8_t>(1 << bit);
    if (bit == 7) counted_buffer_ += static_cast<char>(std::exchange(open_bits_, 0));
  }
}

absl::Status TokenFileWriter::EndDocument() {
  const int64_t end = token_count_;
  document_buffer_.append(reinterpret_cast<const char*>(&end), sizeof(end));
  document_begin_ = end;
  ++document_count_;
  return document_buffer_.size() < kBufferBytes ? absl::OkStatus() : Flush();
}

absl::Status TokenFileWriter::Flush() {
  CONVENE_CHECK(XXH3_64bits_update(hash_.get(), token_buffer_.data(), token_buffer_.size()) ==
                XXH_OK);
  CONVENE_RETURN_IF_ERROR(WriteAll(fd_.get(), token_buffer_, path_));
  // The disk begins now, so that Sync has little left to wait for. Only a hint: no error matters.
  sync_file_range(fd_.get(), 0, 0, SYNC_FILE_RANGE_WRITE);
  // Tokens that are on the disk leave the page cache, so that a long file does not push all else
  // out of it. (New pages cost a virtual machine eight times as much as used ones.)
  const int64_t written = PartsOf(header_).tokens + token_count_ * header_.element_bytes;
  if (written - uncached_bytes_ >= 2 * kCachedBytes) {
    uncached_bytes_ = written - kCachedBytes;
    posix_fadvise(fd_.get(), 0, uncached_bytes_, POSIX_FADV_DONTNEED);
  }
  token_buffer_.clear();
  CONVENE_RETURN_IF_ERROR(WriteAll(documents_fd_.get(), document_buffer_, DocumentsPath(path_)));
  document_buffer_.clear();
  if (!HasCounted(header_)) return absl::OkStatus();
  CONVENE_RETURN_IF_ERROR(WriteAll(counted_fd_.get(), counted_buffer_, CountedPath(path_)));
  counted_buffer_.clear();
  return absl::OkStatus();
}

absl::StatusOr<std::string> TokenFileWriter::Sync() {
  CONVENE_RETURN_IF_ERROR(Flush());
  CONVENE_RETURN_IF_ERROR(SyncFile(fd_.get(), path_));
  CONVENE_RETURN_IF_ERROR(SyncFile(documents_fd_.get(), DocumentsPath(path_)));
  if (HasCounted(header_)) {
    CONVENE_RETURN_IF_ERROR(SyncFile(counted_fd_.get(), CountedPath(path_)));
  }
  CONVENE_RETURN_IF_ERROR(SyncDirectory(ParentDirectory(path_)));
  TokenFileHeader state = header_;
  state.token_count = token_count_;
  state.document_count = document_count_;
  state.token_hash = XXH3_64bits_digest(hash_.get());
  return StateText(state, document_begin_, open_bits_);
}

// Appends a side file to the main one.
absl::Status TokenFileWriter::Join(int side_fd, const std::string& side_path, int64_t bytes,
                                   uint64_t* hash) {
  CONVENE_CHECK(XXH3_64bits_reset(hash_.get()) == XXH_OK);
  CONVENE_RETURN_IF_ERROR(ReadBlocks(side_fd, 0, bytes, side_path, [&](absl::string_view block) {
    CONVENE_CHECK(XXH3_64bits_update(hash_.get(), block.data(), block.size()) == XXH_OK);
    return WriteAll(fd_.get(), block, path_);
  }));
  *hash = XXH3_64bits_digest(hash_.get());
  return absl::OkStatus();
}

absl::Status TokenFileWriter::Finish() {
  if (token_count_ > document_begin_) CONVENE_RETURN_IF_ERROR(EndDocument());
  if (HasCounted(header_) && token_count_ % 8 != 0) {
    counted_buffer_ += static_cast<char>(open_bits_);
  }
  CONVENE_RETURN_IF_ERROR(Flush());
  TokenFileHeader header = header_;
  std::memcpy(header.magic, kTokenFileMagic, sizeof(header.magic));
  header.token_count = token_count_;
  header.document_count = document_count_;
  header.token_hash = XXH3_64bits_digest(hash_.get());
  const TokenFileParts parts = PartsOf(header);
  const int64_t token_end = parts.tokens + token_count_ * header.element_bytes;
  CONVENE_RETURN_IF_ERROR(
      WriteAll(fd_.get(), std::string(parts.documents - token_end, '\0'), path_));
  CONVENE_RETURN_IF_ERROR(Join(documents_fd_.get(), DocumentsPath(path_),
                               parts.counted - parts.documents, &header.document_hash));
  CONVENE_RETURN_IF_ERROR(
      Join(counted_fd_.get(), CountedPath(path_), parts.end - parts.counted, &header.counted_hash));
  // The rest must be on the disk before the header says that the file is whole.
  CONVENE_RETURN_IF_ERROR(SyncFile(fd_.get(), path_));
  header.checksum = ChecksumOf(header);
  CONVENE_RETURN_IF_ERROR(WriteAt(fd_.get(), 0, BytesOf(header), path_));
  CONVENE_RETURN_IF_ERROR(SyncFile(fd_.get(), path_));
  unlink(DocumentsPath(path_).c_str());
  unlink(CountedPath(path_).c_str());
  return absl::OkStatus();
}

absl::Status WriteDocuments(
    const TokenSource& source, const TokenFileInfo& info, const std::string& path,
    absl::FunctionRef<void(int64_t first, absl::Span<int32_t> ids)> change) {
  const auto write = [&]() -> absl::Status {
    CONVENE_ASSIGN_OR_RETURN(TokenFileWriter writer, TokenFileWriter::Create(path, info));
    for (int64_t document = 0; document < source.document_count(); ++document) {
      CONVENE_RETURN_IF_ERROR(ForEachBlock(
          source, source.document_begin(document), source.document_end(document),
          [&](int64_t first, absl::Span<int32_t> ids, absl::Span<const uint8_t> counted) {
            change(first, ids);
            return writer.Append(ids, counted);
          }));
      CONVENE_RETURN_IF_ERROR(writer.EndDocument());
    }
    return writer.Finish();
  };
  const absl::Status status = write();
  if (!status.ok()) TokenFileWriter::Discard(path);
  return status;
}

}  // namespace convene::worker
