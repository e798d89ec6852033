// The names in a step's directory, and the files that may be removed from it.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker_runtime/checkpoint/manifest.h"

namespace convene::worker {

// "`directory`/step_00000100".
std::string StepDirectory(const std::string& directory, int64_t step);

// The step of which `path` is the StepDirectory in `directory`; nullopt: of none.
std::optional<int64_t> StepIn(const std::string& directory, const std::string& path);

// Steps that have a directory in `directory`, published or not, descending. Empty when `directory`
// is absent.
absl::StatusOr<std::vector<int64_t>> ListSteps(const std::string& directory);

constexpr char kManifestName[] = "manifest";
std::string IndexName(int rank);
// A data file's name holds `attempt`, a random number, so that a second attempt at a step writes
// beside the first.
std::string DataName(int rank, uint64_t attempt);
// The beginning of every name of this rank's files: "rank_00003.".
std::string RankPrefix(int rank);

// The first bytes of the data file DataName(rank, attempt) of this step.
constexpr int64_t kDataHeaderBytes = 64;
std::string DataHeader(int64_t step, int rank, uint64_t attempt);
// The header (DataHeader) of the data file with this name; DataLoss for a name that DataName
// never gives.
absl::StatusOr<std::string> DataHeaderOf(int64_t step, const std::string& data_name);

// Reads, decodes, and checks that each data file is at least as long as said. Errors as
// CheckpointReader::Open; the path is in the text.
absl::StatusOr<Manifest> LoadManifest(ManifestKind kind, const std::string& step_directory,
                                      const std::string& name);

// Names of the data files, and of the tokenizer's folder, that a published checkpoint needs; empty
// when there is none, or a damaged one. PermissionDenied and ResourceExhausted when this cannot be
// known.
absl::StatusOr<std::set<std::string>> PublishedDataFiles(const std::string& step_directory);

// Removes the files that begin with `prefix` and are not in `keep`.
absl::Status RemoveFilesBut(const std::string& step_directory, absl::string_view prefix,
                            const std::set<std::string>& keep);

}  // namespace convene::worker
