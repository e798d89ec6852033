#include "agent/output/run_logs.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "agent/output/stream_plan.h"
#include "tools/base/claimed_folder.h"
#include "tools/base/files.h"
#include "tools/base/logging.h"
#include "tools/base/random.h"
#include "tools/base/status_macros.h"

namespace convene::agent {
namespace {

constexpr int64_t kLargestErrorFile = 1 << 20;
// Another agent's sweep may take a new folder away before it is claimed.
constexpr int kTries = 3;

// The names of this machine's folders begin so, and its agents sweep no others: on a file system
// that machines share, a lock may hold on one machine alone.
std::string OwnPrefix() { return absl::StrCat("convene_logs_", HostName(), "_"); }

std::string OwnDirectory(const LogOptions& log) {
  if (!log.directory.empty()) return "";
  const char* parent = std::getenv("TMPDIR");
  if (parent == nullptr || *parent == '\0') parent = "/tmp";
  return absl::StrFormat("%s/%s%016x", parent, OwnPrefix(), RandomU64());
}

// `claim` stays empty where the file system has no locks: then no agent removes the folder.
absl::Status MakeOwnDirectory(const std::string& path, UniqueFd* claim) {
  for (int i = 1;; ++i) {
    if (mkdir(path.c_str(), 0700) != 0 && (errno != EEXIST || i == 1)) {
      return ErrnoStatus(errno, absl::StrCat("create directory ", path));
    }
    absl::StatusOr<UniqueFd> claimed = ClaimFolder(path);
    if (claimed.ok()) *claim = *std::move(claimed);
    if (claim->valid() || i == kTries) return absl::OkStatus();
  }
}

// Absolute: a worker may change its directory before it writes its error file.
std::string RunDirectory(const std::string& parent, const std::string& run_id) {
  std::error_code error;
  const std::string absolute = std::filesystem::absolute(parent, error).string();
  // A file name has at most 255 bytes.
  return absl::StrFormat("%s/%s_%08x", error ? parent : absolute,
                         absl::StrReplaceAll(run_id.substr(0, 200), {{"/", "_"}}),
                         static_cast<uint32_t>(RandomU64()));
}

// The content of a worker's error file. The worker may have put any file there: nullopt for one
// that cannot be an error file.
std::optional<std::string> ReadErrorFile(const std::string& path, absl::Time* written) {
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC));
  struct stat info;
  if (!file.valid() || fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode) ||
      info.st_size > kLargestErrorFile) {
    return std::nullopt;
  }
  std::string content(info.st_size, '\0');
  const ssize_t n = read(file.get(), content.data(), content.size());
  if (n < 0) return std::nullopt;
  content.resize(n);
  *written = absl::TimeFromTimespec(info.st_mtim);
  return content;
}

}  // namespace

RunLogs::RunLogs(EventLoop& loop, Options options)
    : loop_(loop),
      options_(std::move(options)),
      writes_files_(WritesFiles(options_.log, options_.local_world_size)),
      own_directory_(OwnDirectory(options_.log)),
      run_directory_(RunDirectory(own_directory_.empty() ? options_.log.directory : own_directory_,
                                  options_.run_id)) {}

RunLogs::~RunLogs() = default;

std::string RunLogs::FolderOf(int local_rank) const {
  return absl::StrCat(attempt_directory_, "/", local_rank);
}

std::string RunLogs::ErrorFile(int local_rank) const {
  return has_error_files_ ? FolderOf(local_rank) + "/error.json" : "";
}

absl::Status RunLogs::BeginEpoch(int attempt) {
  const bool is_first = disk_ == nullptr;
  if (is_first) {
    CONVENE_ASSIGN_OR_RETURN(disk_,
                             LogDisk::Start(loop_, {options_.on_relief, options_.on_trouble}));
  }
  attempt_ = std::max(attempt, attempt_ + 1);
  attempt_directory_ = absl::StrCat(run_directory_, "/attempt_", attempt_);
  CloseFiltered();
  const absl::Status made = MakeFolders(is_first);
  has_error_files_ = made.ok();
  if (is_first && made.ok() && writes_files_) {
    options_.on_say(absl::StrCat("logs of this run: ", run_directory_));
  }
  if (made.ok()) return absl::OkStatus();
  if (is_first && own_directory_.empty() &&
      (absl::IsPermissionDenied(made) || absl::IsNotFound(made) || absl::IsInvalidArgument(made) ||
       absl::IsAlreadyExists(made))) {
    return absl::InvalidArgumentError(absl::StrCat("The log directory ", options_.log.directory,
                                                   " cannot be used: ", made.message(),
                                                   ". Name another one with --log-dir."));
  }
  options_.on_trouble(absl::StrCat("no folder for logs: ", made.message(), "; the workers run on"));
  return absl::OkStatus();
}

void RunLogs::CloseFiltered() {
  for (auto& filtered : filtered_) {
    if (filtered != nullptr) disk_->Close(std::exchange(filtered, nullptr));
  }
}

absl::Status RunLogs::MakeFolders(bool is_first) {
  std::vector<std::string> folders;
  for (int i = 0; i < options_.local_world_size; ++i) folders.push_back(FolderOf(i));
  struct Made {
    absl::Status status;
    UniqueFd claim;
  };
  const auto made = std::make_shared<Made>();
  const bool done = disk_->Do(
      [made, folders, own = own_directory_, is_first, stays = writes_files_] {
        if (is_first && !own.empty()) made->status = MakeOwnDirectory(own, &made->claim);
        for (const std::string& folder : folders) {
          if (made->status.ok()) made->status = MakeDirectories(folder);
        }
        // With folders in it no sweep removes it any more.
        if (stays && made->claim.valid()) {
          unlink(absl::StrCat(own, kClaimName).c_str());
          made->claim = UniqueFd();
        }
      },
      kPatience);
  if (!done) return absl::UnavailableError("the log disk hangs");
  if (made->claim.valid()) {
    claim_ = std::move(made->claim);
    disk_->Do(
        [parent = ParentDirectory(own_directory_)] {
          SweepFolders(parent, OwnPrefix(),
                       [](const std::string& dead) { RemoveTree(dead).IgnoreError(); });
        },
        absl::ZeroDuration());
  }
  return made->status;
}

std::shared_ptr<LogDisk::File> RunLogs::OpenFile(const std::string& path) const {
  return disk_->Open({path, options_.log.max_file_bytes, options_.log.max_old_files});
}

StreamOutput RunLogs::OutputOf(OutputStream stream, const LineSource& source) {
  const bool is_out = stream == OutputStream::kStdout;
  const StreamPlan plan = PlanStream(options_.log, stream, source.local_rank);
  StreamOutput output;
  output.disk = disk_.get();
  output.rank = source.rank;
  output.local_rank = source.local_rank;
  output.on_console = plan.on_console;
  output.in_place = plan.on_console && source.rank == 0;
  if (plan.has_prefix) output.prefix = LinePrefix(options_.log.prefix_template, source);
  if (plan.in_file) {
    output.file = OpenFile(FolderOf(source.local_rank) + (is_out ? "/stdout.log" : "/stderr.log"));
  }
  if (plan.filtered) {
    std::shared_ptr<LogDisk::File>& filtered = filtered_[is_out ? 0 : 1];
    if (filtered == nullptr) {
      filtered = OpenFile(
          absl::StrCat(attempt_directory_, "/filtered_", is_out ? "stdout.log" : "stderr.log"));
    }
    output.filtered = filtered;
    output.filters = is_out ? options_.log.stdout_filters : options_.log.stderr_filters;
  }
  return output;
}

std::map<int, ErrorRecord> RunLogs::ReadErrors() {
  if (!has_error_files_) return {};
  const auto records = std::make_shared<std::map<int, ErrorRecord>>();
  std::vector<std::string> paths;
  for (int i = 0; i < options_.local_world_size; ++i) paths.push_back(ErrorFile(i));
  const bool done = disk_->Do(
      [records, paths] {
        for (size_t i = 0; i < paths.size(); ++i) {
          absl::Time written;
          const auto content = ReadErrorFile(paths[i], &written);
          if (!content.has_value()) continue;
          auto record = ParseErrorRecord(*content);
          if (!record.has_value()) continue;
          record->written = written;
          record->path = paths[i];
          records->emplace(static_cast<int>(i), *std::move(record));
        }
      },
      kPatience);
  return done ? *records : std::map<int, ErrorRecord>();
}

void RunLogs::HandOnError(int local_rank, int error_code, const std::string& path) {
  if (!has_error_files_) return;
  const auto status = std::make_shared<absl::Status>();
  const bool done = disk_->Do(
      [status, from = ErrorFile(local_rank), error_code, path] {
        absl::Time written;
        const auto content = ReadErrorFile(from, &written);
        if (content.has_value())
          *status = WriteFileAtomic(path, WithErrorCode(*content, error_code));
      },
      kPatience);
  if (done && status->ok()) return;
  options_.on_trouble(absl::StrCat("$TORCHELASTIC_ERROR_FILE is not written: ",
                                   done ? status->message() : "the disk hangs"));
}

bool RunLogs::Finish(absl::Duration patience, bool keeps_errors) {
  if (disk_ == nullptr) return true;
  CloseFiltered();
  if (claim_.valid()) {
    disk_->Do([gone = keeps_errors ? absl::StrCat(own_directory_, kClaimName)
                                   : own_directory_] { RemoveTree(gone).IgnoreError(); },
              kPatience);
  }
  return disk_->Finish(patience);
}

}  // namespace convene::agent
