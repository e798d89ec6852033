#include "agent/warm/warm_record.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "tools/base/clock.h"
#include "tools/base/files.h"
#include "tools/base/status_macros.h"

namespace convene::agent {
namespace {

// Both numbers change with what warm.py writes, too.
constexpr absl::string_view kVersion = "convene-warm 2 ";
constexpr absl::string_view kSuffix = ".2.record";

// Per run, allocation or login: no choice of imports depends on them.
constexpr std::array<absl::string_view, 11> kOfRuns = {
    "CONVENE_", "TORCHELASTIC_", "SLURM",     "OMPI_", "PMI",  "SSH_",
    "PBS_",     "LSB_",          "LS_JOBPID", "PALS_", "FLUX_"};
constexpr absl::string_view kOfSessions =
    " PWD OLDPWD SHLVL _ TERM COLUMNS LINES HOSTNAME DISPLAY WINDOWID TMUX TMUX_PANE TMPDIR "
    "INVOCATION_ID JOURNAL_STREAM DBUS_SESSION_BUS_ADDRESS XDG_RUNTIME_DIR XDG_SESSION_ID "
    "LOCAL_WORLD_SIZE ";

bool MayChooseImports(absl::string_view name) {
  return !absl::StrContains(kOfSessions, absl::StrCat(" ", name, " ")) &&
         std::none_of(kOfRuns.begin(), kOfRuns.end(),
                      [&](absl::string_view prefix) { return absl::StartsWith(name, prefix); });
}

// FNV-1a, which is the same on every machine.
std::string HashOf(absl::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return absl::StrCat(absl::Hex(hash, absl::kZeroPad16));
}

absl::Status CheckOwner(const std::string& path, const struct stat& info) {
  if (info.st_uid == geteuid() && (info.st_mode & (S_IWGRP | S_IWOTH)) == 0) {
    return absl::OkStatus();
  }
  return absl::PermissionDeniedError(
      absl::StrCat(path,
                   " is another user's, or others may write it; remove it, or take the "
                   "right to write from others (chmod go-w)"));
}

}  // namespace

VariableMarks MarksOf(const std::vector<std::string>& environment,
                      const std::set<std::string>& places) {
  VariableMarks marks;
  for (const absl::string_view entry : environment) {
    const size_t equals = entry.find('=');
    if (equals == absl::string_view::npos) continue;
    const std::string name(entry.substr(0, equals));
    // No program reads a name with a line's end.
    if (places.count(name) > 0 || !MayChooseImports(name) || absl::StrContains(name, '\n')) {
      continue;
    }
    marks[name] = HashOf(entry.substr(equals + 1));
  }
  return marks;
}

std::string ChangedVariable(const VariableMarks& before, const VariableMarks& now) {
  for (const VariableMarks* marks : {&before, &now}) {
    for (const auto& [name, mark] : *marks) {
      const VariableMarks& others = marks == &before ? now : before;
      const auto found = others.find(name);
      if (found == others.end() || found->second != mark) return name;
    }
  }
  return "";
}

std::string EncodeWarmRecord(const WarmRecord& record) {
  std::vector<std::string> lines = {absl::StrJoin(record.left_out, ",")};
  for (const auto& [name, mark] : record.variables) lines.push_back(absl::StrCat(mark, " ", name));
  const std::string body = absl::StrCat(absl::StrJoin(lines, "\n"), "\n\n", record.modules);
  return absl::StrCat(kVersion, HashOf(body), "\n", body);
}

absl::StatusOr<WarmRecord> DecodeWarmRecord(absl::string_view text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, absl::MaxSplits('\n', 2));
  if (!absl::StartsWith(text, kVersion) || parts.size() != 3) {
    return absl::DataLossError("it is no record of this version of Convene");
  }
  const absl::string_view body = text.substr(parts[0].size() + 1);
  if (parts[0].substr(kVersion.size()) != HashOf(body)) {
    return absl::DataLossError("it is torn: its content is not the one that was written");
  }
  WarmRecord record;
  record.left_out = absl::StrSplit(parts[1], ',', absl::SkipEmpty());
  absl::string_view rest = parts[2];
  for (size_t end = 0; !absl::StartsWith(rest, "\n"); rest.remove_prefix(end + 1)) {
    end = rest.find('\n');
    if (end == absl::string_view::npos) return absl::DataLossError("its list has no end");
    const std::pair<std::string, std::string> mark =
        absl::StrSplit(rest.substr(0, end), absl::MaxSplits(' ', 1));
    record.variables[mark.second] = mark.first;
  }
  record.modules = std::string(rest.substr(1));
  return record;
}

WarmRecordFile::WarmRecordFile(const std::string& cache, const std::string& program,
                               const std::vector<std::string>& arguments,
                               const std::string& directory)
    : folder_(absl::StrCat(cache, "/warm")),
      path_(absl::StrCat(folder_, "/",
                         HashOf(absl::StrCat(program, absl::string_view("\0", 1), directory,
                                             absl::string_view("\0", 1),
                                             absl::StrJoin(arguments, absl::string_view("\0", 1)))),
                         kSuffix)) {}

WarmRecordFile::~WarmRecordFile() {
  if (writer_.joinable()) writer_.Join();
}

bool WarmRecordFile::IsWritten(absl::Duration limit) {
  const MonotonicTime deadline = Clock::Real().Now() + limit;
  MutexLock lock(&mutex_);
  while (is_writing_) {
    const absl::Duration left = deadline - Clock::Real().Now();
    if (left <= absl::ZeroDuration()) break;
    written_.WaitFor(&mutex_, left);
  }
  return !is_writing_;
}

absl::Status WarmRecordFile::MakeFolder() const {
  CONVENE_RETURN_IF_ERROR(MakeDirectories(ParentDirectory(folder_)));
  struct stat info;
  if ((mkdir(folder_.c_str(), 0700) != 0 && errno != EEXIST) ||
      access(folder_.c_str(), W_OK | X_OK) != 0 || lstat(folder_.c_str(), &info) != 0) {
    return ErrnoStatus(errno, absl::StrCat("cannot write into the folder ", folder_));
  }
  return CheckOwner(folder_, info);
}

absl::StatusOr<WarmRecord> WarmRecordFile::Load() const {
  struct stat info;
  CONVENE_ASSIGN_OR_RETURN(const UniqueFd file,
                           OpenFile(path_, O_RDONLY | O_NOFOLLOW | O_NONBLOCK));
  if (fstat(file.get(), &info) != 0) return ErrnoStatus(errno, absl::StrCat("stat ", path_));
  CONVENE_RETURN_IF_ERROR(CheckOwner(path_, info));
  if (!S_ISREG(info.st_mode) || static_cast<size_t>(info.st_size) > kMostBytes) {
    return absl::DataLossError("it is no file, or too long");
  }
  std::string text(info.st_size, '\0');
  if (read(file.get(), text.data(), text.size()) != info.st_size) {
    return absl::DataLossError("it is torn: it became shorter");
  }
  (void)futimens(file.get(), nullptr);  // The files used least lately are removed first.
  return DecodeWarmRecord(text);
}

void WarmRecordFile::Keep(const WarmRecord& record) {
  std::string text = EncodeWarmRecord(record);
  if (text.size() <= kMostBytes) Take(std::move(text));
}

void WarmRecordFile::Take(std::string text) {
  {
    MutexLock lock(&mutex_);
    next_ = std::move(text);
    if (std::exchange(is_writing_, true)) return;
  }
  if (writer_.joinable()) writer_.Join();
  absl::StatusOr<Thread> writer = Thread::Start("warm-record", [this] { WriteThem(); });
  if (writer.ok()) {
    writer_ = *std::move(writer);
    return;
  }
  MutexLock lock(&mutex_);
  is_writing_ = false;
}

void WarmRecordFile::WriteThem() {
  for (;;) {
    std::string text;
    {
      MutexLock lock(&mutex_);
      is_writing_ = next_.has_value();
      if (!is_writing_) return written_.SignalAll();
      text = *std::exchange(next_, std::nullopt);
    }
    if (text.empty()) {
      unlink(path_.c_str());
    } else {
      (void)Write(text);
    }
  }
}

absl::Status WarmRecordFile::Write(const std::string& text) const {
  CONVENE_RETURN_IF_ERROR(MakeFolder());
  CONVENE_RETURN_IF_ERROR(WriteFileAtomic(path_, text));
  if (chmod(path_.c_str(), 0600) != 0) return ErrnoStatus(errno, "chmod");
  CONVENE_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListDirectory(folder_));
  struct stat info;
  std::vector<std::pair<int64_t, std::string>> files;
  for (const std::string& name : names) {
    std::string path = absl::StrCat(folder_, "/", name);
    if (absl::EndsWith(name, ".record") && !absl::EndsWith(name, kSuffix)) {
      unlink(path.c_str());  // Version 1 has values of variables.
    } else if (lstat(path.c_str(), &info) == 0) {
      files.emplace_back(info.st_mtime, std::move(path));
    }
  }
  std::sort(files.begin(), files.end());
  for (size_t i = kMostFiles; i < files.size(); ++i) unlink(files[i - kMostFiles].second.c_str());
  return absl::OkStatus();
}

}  // namespace convene::agent
