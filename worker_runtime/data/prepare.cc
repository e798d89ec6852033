#include "worker_runtime/data/prepare.h"

#include <fcntl.h>
#include <glob.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <set>
#include <system_error>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "tools/base/files.h"
#include "tools/base/status_macros.h"
#include "tools/base/text.h"
#include "tools/base/unique_fd.h"
#include "worker_runtime/data/store/token_file.h"
#include "worker_runtime/data/tokenizer.h"

namespace convene::worker {
namespace {

constexpr int64_t kBlockBytes = 1 << 20;
constexpr absl::Duration kLockPollInterval = absl::Milliseconds(50);

struct SourceFile {
  std::string path;  // absolute
  int64_t bytes = 0;
  int64_t modified_ns = 0;
  friend bool operator==(const SourceFile&, const SourceFile&) = default;
};

SourceFile Describe(const std::string& path, const struct stat& info) {
  return {path, info.st_size,
          static_cast<int64_t>(info.st_mtim.tv_sec) * 1'000'000'000 + info.st_mtim.tv_nsec};
}

absl::StatusOr<std::vector<std::string>> Expand(const std::string& pattern) {
  // A pattern that is a file's name means that file, whatever characters it has.
  if (access(pattern.c_str(), F_OK) == 0) return std::vector<std::string>{pattern};
  glob_t found = {};
  const int error = glob(pattern.c_str(), GLOB_ERR | GLOB_BRACE | GLOB_TILDE, nullptr, &found);
  std::vector<std::string> paths(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  globfree(&found);
  if (error == GLOB_NOMATCH) {
    return absl::NotFoundError(absl::StrCat("data: no file matches '", pattern, "'"));
  }
  if (error == GLOB_ABORTED) {
    return absl::PermissionDeniedError(
        absl::StrCat("data: a directory of '", pattern, "' cannot be read"));
  }
  if (error != 0) return absl::ResourceExhaustedError(absl::StrCat("data: glob of ", pattern));
  std::sort(paths.begin(), paths.end());  // by bytes: glob's own order depends on the locale
  return paths;
}

// Files with text in them, in training order.
absl::StatusOr<std::vector<SourceFile>> ListSources(const std::vector<std::string>& patterns) {
  if (patterns.empty()) return absl::InvalidArgumentError("data: no file and no pattern is given");
  std::vector<SourceFile> sources;
  std::set<std::string> seen;
  for (const std::string& pattern : patterns) {
    CONVENE_ASSIGN_OR_RETURN(const std::vector<std::string> paths, Expand(pattern));
    for (const std::string& relative : paths) {
      std::error_code error;
      const std::string path =
          std::filesystem::absolute(relative, error).lexically_normal().string();
      if (error) return ErrnoStatus(error.value(), absl::StrCat("data: ", relative));
      if (!seen.insert(path).second) continue;
      struct stat info;
      if (stat(path.c_str(), &info) != 0)
        return ErrnoStatus(errno, absl::StrCat("data: stat ", path));
      if (!S_ISREG(info.st_mode)) {
        return absl::InvalidArgumentError(absl::StrCat("data: ", path, " (by '", pattern,
                                                       "') is not a file; to take all of a ",
                                                       "directory's files, write ", path, "/*"));
      }
      if (info.st_size > 0) sources.push_back(Describe(path, info));
    }
  }
  if (sources.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("data: all ", seen.size(), " files of ",
                                                   JoinCapped(patterns, 3), " are empty"));
  }
  return sources;
}

uint64_t KeyOf(const std::vector<SourceFile>& sources) {
  // The version belongs to the key, since programs of two versions may share a cache.
  std::string text = absl::StrCat(kByteTokenizerName, " ", kTokenFileVersion, "\n");
  for (const SourceFile& source : sources) {
    // The path's length stands first, so that no two lists have the same text.
    absl::StrAppend(&text, source.path.size(), " ", source.path, " ", source.bytes, " ",
                    source.modified_ns, "\n");
  }
  return XXH3_64bits(text.data(), text.size());
}

absl::Status Changed(const SourceFile& source) {
  return absl::FailedPreconditionError(absl::StrCat(
      "data: ", source.path, " changed while it was read; start again when it is whole"));
}

// Copies one document; token = byte, so there is nothing to convert.
absl::Status AppendDocument(const SourceFile& source, TokenFileWriter* writer,
                            absl::FunctionRef<void(int64_t bytes)> add_progress) {
  const absl::StatusOr<UniqueFd> fd = OpenFile(source.path, O_RDONLY);
  if (!fd.ok()) return Annotate(fd.status(), "data");
  std::vector<char> block(std::min(kBlockBytes, source.bytes));
  std::vector<int32_t> ids;
  int64_t done_bytes = 0;
  while (true) {
    const ssize_t n = read(fd->get(), block.data(), block.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, absl::StrCat("data: read ", source.path));
    if (n == 0) break;
    done_bytes += n;
    if (done_bytes > source.bytes) return Changed(source);
    const auto* bytes = reinterpret_cast<const uint8_t*>(block.data());
    ids.assign(bytes, bytes + n);
    CONVENE_RETURN_IF_ERROR(writer->Append(ids, {}));
    add_progress(n);
  }
  struct stat info;
  if (fstat(fd->get(), &info) != 0) return ErrnoStatus(errno, absl::StrCat("stat ", source.path));
  if (done_bytes != source.bytes || Describe(source.path, info) != source) return Changed(source);
  return absl::OkStatus();
}

absl::Status WriteTokens(const std::vector<SourceFile>& sources, uint64_t key,
                         const std::string& path, const PrepareOptions& options) {
  int64_t total_bytes = 0;
  for (const SourceFile& source : sources) total_bytes += source.bytes;
  int64_t done_bytes = 0;
  const auto add_progress = [&](int64_t bytes) {
    done_bytes += bytes;
    if (options.progress) options.progress(done_bytes, total_bytes);
  };
  TokenFileInfo info;
  info.vocabulary_size = kByteVocabularySize;
  info.source_key = key;
  CONVENE_ASSIGN_OR_RETURN(TokenFileWriter writer, TokenFileWriter::Create(path, info));
  for (size_t i = 0; i < sources.size(); ++i) {
    CONVENE_RETURN_IF_ERROR(AppendDocument(sources[i], &writer, add_progress));
    if (i + 1 < sources.size()) CONVENE_RETURN_IF_ERROR(writer.Append({kDocumentSeparator}, {}));
    CONVENE_RETURN_IF_ERROR(writer.EndDocument());
  }
  return writer.Finish();
}

// REQUIRES: the caller holds the lock of `path`, so that the temporary name is its own.
absl::Status MakeTokenFile(const std::vector<SourceFile>& sources, uint64_t key,
                           const std::string& path, const PrepareOptions& options) {
  const std::string temporary = absl::StrCat(path, ".tmp");
  absl::Status status = WriteTokens(sources, key, temporary, options);
  if (status.ok()) status = RenameFile(temporary, path);
  if (status.ok()) status = SyncDirectory(options.cache_directory);
  if (!status.ok()) TokenFileWriter::Discard(temporary);
  return status;
}

// The lock lasts as long as the descriptor: the kernel frees it when its owner dies. The lock file
// stays, because removing it would let two processes lock two files of one name.
absl::StatusOr<UniqueFd> Lock(const std::string& path, const PrepareOptions& options) {
  CONVENE_ASSIGN_OR_RETURN(UniqueFd fd, OpenFile(path, O_RDWR | O_CREAT));
  const MonotonicTime deadline = options.clock->Now() + options.wait_timeout;
  while (flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) return ErrnoStatus(errno, absl::StrCat("lock ", path));
    if (options.clock->Now() >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("data: waited ", absl::FormatDuration(options.wait_timeout),
                       " for the process that holds ", path,
                       " to make the token file; see who it is with: fuser ", path));
    }
    options.clock->SleepFor(kLockPollInterval);
  }
  return fd;
}

bool IsWhole(const std::string& path, uint64_t key) {
  const auto file = TokenFile::Open(path);
  return file.ok() && (*file)->source_key() == key;
}

}  // namespace

absl::StatusOr<std::string> PrepareTokenFile(const PrepareOptions& options) {
  CONVENE_ASSIGN_OR_RETURN(const std::vector<SourceFile> sources, ListSources(options.patterns));
  const uint64_t key = KeyOf(sources);
  const std::string path =
      absl::StrCat(options.cache_directory, "/tokens_", absl::Hex(key, absl::kZeroPad16), ".bin");
  if (IsWhole(path, key)) return path;
  CONVENE_RETURN_IF_ERROR(MakeDirectories(options.cache_directory));
  CONVENE_ASSIGN_OR_RETURN(const UniqueFd lock, Lock(absl::StrCat(path, ".lock"), options));
  if (IsWhole(path, key)) return path;  // made while this process waited
  CONVENE_RETURN_IF_ERROR(MakeTokenFile(sources, key, path, options));
  return path;
}

}  // namespace convene::worker
