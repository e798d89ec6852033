#include "worker_runtime/checkpoint/step_directory.h"

#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "tools/base/files.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/checkpoint/kept_files.h"

namespace convene::worker {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little endian");

constexpr char kStepPrefix[] = "step_";
constexpr char kDataMagic[] = "CNVSHARD";
constexpr uint32_t kDataVersion = 1;

template <typename T>
void Append(T value, std::string* bytes) {
  bytes->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

// Refused before they are opened: a FIFO would block its reader, and a directory cannot be read.
absl::Status CheckIsFile(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) {
    if (errno != ENOTDIR) return ErrnoStatus(errno, absl::StrCat("stat ", path));
    return absl::DataLossError(absl::StrCat(ParentDirectory(path), " is not a directory"));
  }
  if (S_ISREG(info.st_mode)) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(path, " is not a file"));
}

absl::Status CheckLength(const std::string& step_directory, const DataFile& file) {
  const std::string path = absl::StrCat(step_directory, "/", file.name);
  struct stat info;
  if (stat(path.c_str(), &info) != 0) {
    if (errno != ENOENT) return ErrnoStatus(errno, absl::StrCat("stat ", path));
    return absl::DataLossError(absl::StrCat(path, " is missing"));
  }
  if (info.st_size < file.bytes) {
    return absl::DataLossError(
        absl::StrCat(path, " has ", info.st_size, " bytes instead of ", file.bytes));
  }
  return absl::OkStatus();
}

}  // namespace

std::string StepDirectory(const std::string& directory, int64_t step) {
  return absl::StrFormat("%s/%s%08d", directory, kStepPrefix, step);
}

std::optional<int64_t> StepIn(const std::string& directory, const std::string& path) {
  absl::string_view number = path;
  int64_t step = 0;
  if (!absl::ConsumePrefix(&number, absl::StrCat(directory, "/", kStepPrefix)) ||
      !absl::SimpleAtoi(number, &step) || step < 0 || StepDirectory(directory, step) != path) {
    return std::nullopt;
  }
  return step;
}

absl::StatusOr<std::vector<int64_t>> ListSteps(const std::string& directory) {
  const absl::StatusOr<std::vector<std::string>> names = ListDirectory(directory);
  if (absl::IsNotFound(names.status())) return std::vector<int64_t>();
  if (!names.ok()) return names.status();
  std::vector<int64_t> steps;
  for (const std::string& name : *names) {
    const std::optional<int64_t> step = StepIn(directory, absl::StrCat(directory, "/", name));
    if (step.has_value()) steps.push_back(*step);
  }
  std::sort(steps.rbegin(), steps.rend());
  return steps;
}

std::string RankPrefix(int rank) { return absl::StrFormat("rank_%05d.", rank); }

std::string IndexName(int rank) { return RankPrefix(rank) + "index"; }

std::string DataName(int rank, uint64_t attempt) {
  return absl::StrFormat("%s%016x.bin", RankPrefix(rank), attempt);
}

std::string DataHeader(int64_t step, int rank, uint64_t attempt) {
  std::string header(kDataMagic);
  Append(kDataVersion, &header);
  Append(static_cast<uint32_t>(rank), &header);
  Append(static_cast<uint64_t>(step), &header);
  Append(attempt, &header);
  header.resize(kDataHeaderBytes, '\0');
  return header;
}

absl::StatusOr<std::string> DataHeaderOf(int64_t step, const std::string& data_name) {
  int rank = 0;
  unsigned long long attempt = 0;  // what sscanf's %llx takes
  if (std::sscanf(data_name.c_str(), "rank_%d.%llx.bin", &rank, &attempt) != 2 ||
      DataName(rank, attempt) != data_name) {
    return absl::DataLossError(absl::StrCat("'", data_name, "' is not the name of a data file"));
  }
  return DataHeader(step, rank, attempt);
}

absl::StatusOr<Manifest> LoadManifest(ManifestKind kind, const std::string& step_directory,
                                      const std::string& name) {
  const std::string path = absl::StrCat(step_directory, "/", name);
  CONVENE_RETURN_IF_ERROR(CheckIsFile(path));
  CONVENE_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  absl::StatusOr<Manifest> manifest = DecodeManifest(kind, text);
  if (!manifest.ok()) return Annotate(manifest.status(), path);
  for (const DataFile& file : manifest->files) {
    CONVENE_RETURN_IF_ERROR(CheckLength(step_directory, file));
  }
  return manifest;
}

absl::StatusOr<std::set<std::string>> PublishedDataFiles(const std::string& step_directory) {
  const absl::StatusOr<Manifest> manifest =
      LoadManifest(ManifestKind::kManifest, step_directory, kManifestName);
  std::set<std::string> names;
  if (absl::IsNotFound(manifest.status()) || absl::IsDataLoss(manifest.status())) return names;
  if (!manifest.ok()) return manifest.status();
  for (const DataFile& file : manifest->files) names.insert(file.name);
  if (!manifest->tokenizer_files.empty()) names.insert(KeptDirectory(manifest->tokenizer_files));
  return names;
}

absl::Status RemoveFilesBut(const std::string& step_directory, absl::string_view prefix,
                            const std::set<std::string>& keep) {
  CONVENE_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListDirectory(step_directory));
  for (const std::string& name : names) {
    if (!absl::StartsWith(name, prefix) || keep.count(name) > 0) continue;
    CONVENE_RETURN_IF_ERROR(RemoveTree(absl::StrCat(step_directory, "/", name)));
  }
  return absl::OkStatus();
}

}  // namespace convene::worker
