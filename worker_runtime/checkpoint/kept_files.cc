#include "worker_runtime/checkpoint/kept_files.h"

#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include <cerrno>
#include <set>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "tools/base/files.h"
#include "tools/base/status_macros.h"
#include "tools/base/unique_fd.h"
#include "worker_runtime/checkpoint/step_directory.h"

namespace convene::worker {
namespace {

// Compares piece by piece: a vocabulary has tens of megabytes, and each checkpoint asks.
bool Holds(const std::string& path, const NamedFile& file) {
  if (!IsFile(path)) return false;
  const absl::StatusOr<UniqueFd> fd = OpenFile(path, O_RDONLY);
  if (!fd.ok()) return false;
  absl::string_view rest = file.content;
  std::vector<char> buffer(1 << 18);
  for (;;) {
    const ssize_t n = read(fd->get(), buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    if (n == 0) return rest.empty();
    const absl::string_view piece(buffer.data(), n);
    if (!absl::ConsumePrefix(&rest, piece)) return false;
  }
}

// The folder `name` of another step, the newest; "": no step has it.
absl::StatusOr<std::string> FindTwin(const std::string& directory, int64_t step,
                                     const std::string& name) {
  CONVENE_ASSIGN_OR_RETURN(const std::vector<int64_t> steps, ListSteps(directory));
  for (const int64_t other : steps) {
    std::string folder = absl::StrCat(StepDirectory(directory, other), "/", name);
    if (other != step && IsDirectory(folder)) return folder;
  }
  return std::string();
}

}  // namespace

std::vector<KeptFile> MarksOf(absl::Span<const NamedFile> files) {
  std::vector<KeptFile> marks;
  for (const auto& [name, content] : files) {
    marks.push_back(
        {name, static_cast<int64_t>(content.size()), XXH3_64bits(content.data(), content.size())});
  }
  return marks;
}

std::string KeptDirectory(const std::vector<KeptFile>& files) {
  if (files.empty()) return "";
  std::string all;
  for (const KeptFile& file : files) {
    absl::StrAppend(&all, file.bytes, " ", file.checksum, " ", file.name, "\n");
  }
  return absl::StrCat("tokenizer.",
                      absl::Hex(XXH3_64bits(all.data(), all.size()), absl::kZeroPad16));
}

absl::Status WriteKeptFiles(const std::string& directory, int64_t step,
                            absl::Span<const NamedFile> files) {
  const std::string name = KeptDirectory(MarksOf(files));
  const std::string step_directory = StepDirectory(directory, step);
  const std::string folder = absl::StrCat(step_directory, "/", name);
  CONVENE_RETURN_IF_ERROR(MakeDirectories(folder));
  CONVENE_ASSIGN_OR_RETURN(const std::string twin, FindTwin(directory, step, name));
  std::set<std::string> folders = {folder};
  for (const NamedFile& file : files) {
    const std::string path = absl::StrCat(folder, "/", file.name);
    if (folders.insert(ParentDirectory(path)).second) {
      CONVENE_RETURN_IF_ERROR(MakeDirectories(ParentDirectory(path)));
    }
    if (Holds(path, file)) continue;
    const std::string other = absl::StrCat(twin, "/", file.name);
    // A twin that is damaged must not spread.
    if (!twin.empty() && Holds(other, file)) {
      CONVENE_RETURN_IF_ERROR(RemoveTree(path));
      if (link(other.c_str(), path.c_str()) == 0) continue;
    }
    CONVENE_RETURN_IF_ERROR(WriteFileAtomic(path, file.content));
  }
  for (const std::string& each : folders) CONVENE_RETURN_IF_ERROR(SyncDirectory(each));
  return SyncDirectory(step_directory);
}

absl::Status CheckKeptFiles(const std::string& step_directory, const std::vector<KeptFile>& files) {
  const std::string folder = absl::StrCat(step_directory, "/", KeptDirectory(files));
  for (const KeptFile& file : files) {
    const std::string path = absl::StrCat(folder, "/", file.name);
    const absl::StatusOr<std::string> content = ReadFile(path);
    if (absl::IsNotFound(content.status())) {
      return absl::DataLossError(absl::StrCat(path, " is missing"));
    }
    CONVENE_RETURN_IF_ERROR(content.status());
    if (MarksOf({NamedFile{file.name, *content}}).front() == file) continue;
    return absl::DataLossError(
        absl::StrCat(path, " has another checksum than the manifest says, or another length (",
                     content->size(), " bytes instead of ", file.bytes, ")"));
  }
  return absl::OkStatus();
}

}  // namespace convene::worker
