#include "rendezvous/journal/file_journal.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "rendezvous/journal/frame.h"
#include "rendezvous/journal/record_wire.h"
#include "tools/base/files.h"
#include "tools/base/logging.h"
#include "tools/base/status_macros.h"

namespace convene::rendezvous {
namespace {

constexpr char kMagic[] = "convene-journal ";
constexpr int kFormat = 1;
constexpr int64_t kMostDead = 4;  // times what lives, before the file is written anew

constexpr char kStartAnew[] =
    "; to begin without its memory (running jobs then restart once, at a checkpoint where they "
    "can) "
    "move the file away";

constexpr char kTermFile[] = "/term";

// Of a file with this name: the term of the daemon that wrote it, 0 where it took no turns; none
// where it is no whole journal.
std::optional<int64_t> TermOfJournal(absl::string_view name) {
  int64_t term = 0;
  const bool is_journal = name == "journal" ||
                          (absl::ConsumePrefix(&name, "journal.") && absl::SimpleAtoi(name, &term));
  return is_journal ? std::optional<int64_t>(term) : std::nullopt;
}

std::string FileHeader() { return absl::StrCat(kMagic, kFormat, "\n"); }

// The size of the file's header: the first frame begins after it. FailedPrecondition, DataLoss.
absl::StatusOr<size_t> CheckFileHeader(absl::string_view content, const std::string& path) {
  const size_t end = content.substr(0, 64).find('\n');
  int format = 0;
  if (end == absl::string_view::npos || !absl::StartsWith(content, kMagic) ||
      !absl::SimpleAtoi(content.substr(sizeof(kMagic) - 1, end - (sizeof(kMagic) - 1)), &format) ||
      format < 1) {
    return absl::DataLossError(
        absl::StrCat(path, " is no journal of convened: it does not begin with \"", kMagic,
                     "\". Restore it from where it came, or give another --state-dir", kStartAnew));
  }
  if (format > kFormat) {
    return absl::FailedPreconditionError(absl::StrCat(
        path, " has format ", format, ", and this convened knows formats up to ", kFormat,
        ": a newer one has written it. Start that one, or give another --state-dir", kStartAnew));
  }
  return end + 1;
}

// Only the file's owner may read it: an agent's incarnation is a secret (quorum/agent_id.h).
absl::StatusOr<UniqueFd> OpenPrivately(const std::string& path, int flags) {
  CONVENE_ASSIGN_OR_RETURN(UniqueFd fd, OpenFile(path, flags, 0600));
  // A journal of an earlier version may be readable for others.
  if (fchmod(fd.get(), 0600) != 0) return ErrnoStatus(errno, absl::StrCat("fchmod ", path));
  return fd;
}

// Syncs the data and the length; a reader needs no more.
absl::Status SyncData(int fd, const std::string& path) {
  if (const int error = FileFault(FileOp::kSync, path)) {
    return ErrnoStatus(error, absl::StrCat("fdatasync ", path));
  }
  if (fdatasync(fd) != 0) return ErrnoStatus(errno, absl::StrCat("fdatasync ", path));
  return absl::OkStatus();
}

absl::Status WriteFrame(int fd, const std::string& entry, const std::string& path) {
  CONVENE_RETURN_IF_ERROR(WriteAll(fd, FrameHeader(entry), path));
  return WriteAll(fd, entry, path);
}

// Another program may have made something else than a file: opening a FIFO would wait for its other
// end, for ever.
absl::Status CheckIsFile(const std::string& path) {
  struct stat status;
  if (lstat(path.c_str(), &status) != 0 || S_ISREG(status.st_mode)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(path, " is no regular file: give another --state-dir", kStartAnew));
}

absl::StatusOr<uint64_t> NumberOf(const std::string& directory) {
  struct stat status;
  if (stat(directory.c_str(), &status) == 0) return status.st_ino;
  return ErrnoStatus(errno, absl::StrCat("stat ", directory));
}

}  // namespace

absl::StatusOr<uint64_t> FileJournal::MakeDirectory(const std::string& directory) {
  CONVENE_RETURN_IF_ERROR(MakeDirectories(directory));
  return NumberOf(directory);
}

// Where a file system is not mounted for a while, an empty directory may stand in its place: a
// daemon must not begin there what another one leads.
absl::Status FileJournal::CheckDirectory() const {
  CONVENE_ASSIGN_OR_RETURN(const uint64_t number, NumberOf(options_.directory));
  if (number == options_.directory_number) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("the state directory ", options_.directory,
                   " is not the one that this daemon began with. Is its file system mounted? Where "
                   "the directory was replaced, start this daemon anew"));
}

absl::Status FileJournal::Lock() {
  const std::string path = options_.directory + "/lock";
  CONVENE_RETURN_IF_ERROR(CheckIsFile(path));
  CONVENE_ASSIGN_OR_RETURN(lock_, OpenPrivately(path, O_RDWR | O_CREAT));
  if (flock(lock_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return ErrnoStatus(errno, absl::StrCat("flock ", path));
    const absl::StatusOr<std::string> holder = ReadFile(path);
    return absl::AlreadyExistsError(absl::StrCat(
        "the state directory ", options_.directory, " is in use by process ",
        holder.ok() ? std::string(absl::StripAsciiWhitespace(*holder)) : "unknown",
        ": two daemons must not share one. Stop that one, give this one another --state-dir, or "
        "let all of them take turns (--standby)"));
  }
  if (ftruncate(lock_.get(), 0) != 0) return ErrnoStatus(errno, absl::StrCat("truncate ", path));
  return WriteAll(lock_.get(), absl::StrCat(getpid(), " on ", HostName(), "\n"), path);
}

std::string FileJournal::path() const {
  return absl::StrCat(options_.directory, "/journal", term_ > 0 ? absl::StrCat(".", term_) : "");
}

absl::StatusOr<int64_t> FileJournal::LastTerm() const {
  const std::string path = options_.directory + kTermFile;
  CONVENE_RETURN_IF_ERROR(CheckIsFile(path));
  const absl::StatusOr<std::string> text = ReadFile(path);
  if (absl::IsNotFound(text.status())) return 0;
  CONVENE_RETURN_IF_ERROR(text.status());
  int64_t term = 0;
  if (absl::SimpleAtoi(*text, &term) && term > 0) return term;
  return absl::DataLossError(
      absl::StrCat(path, " holds no number of a term; give another --state-dir", kStartAnew));
}

absl::StatusOr<std::string> FileJournal::ClaimTerm() {
  CONVENE_ASSIGN_OR_RETURN(const int64_t last, LastTerm());
  if (!options_.is_shared) {
    if (last == 0) return path();
    return absl::FailedPreconditionError(
        absl::StrCat("daemons take turns with the state directory ", options_.directory,
                     ": start this one with --standby too, or give another --state-dir"));
  }
  const std::string plain = path();
  term_ = last + 1;
  CONVENE_RETURN_IF_ERROR(
      WriteFileAtomic(options_.directory + kTermFile, absl::StrCat(term_, "\n")));
  // From here on no daemon before this one decides anything. The last term may have ended before
  // its file was there.
  CONVENE_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListDirectory(options_.directory));
  int64_t newest = 0;
  for (const std::string& name : names) {
    const std::optional<int64_t> term = TermOfJournal(name);
    if (term.has_value() && *term < term_) newest = std::max(newest, *term);
  }
  return newest > 0 ? absl::StrCat(plain, ".", newest) : plain;
}

// Also of daemons that were killed before they had removed one, or that wrote after their time.
absl::Status FileJournal::RemoveEarlierTerms() const {
  CONVENE_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListDirectory(options_.directory));
  for (const std::string& name : names) {
    const std::optional<int64_t> term = TermOfJournal(absl::StripSuffix(name, ".new"));
    if (!term.has_value() || *term >= term_) continue;
    CONVENE_RETURN_IF_ERROR(RemoveTree(absl::StrCat(options_.directory, "/", name)));
  }
  return absl::OkStatus();
}

// The file is opened, and not looked up: NFS answers a look-up out of its cache. Each directory
// counts its own terms, so the same number in another one says nothing.
absl::Status FileJournal::ReadTerm() const {
  CONVENE_ASSIGN_OR_RETURN(const int64_t last, LastTerm());
  // A file system that cannot tell has not told of another folder.
  const absl::Status seen = NumberOf(options_.directory).status();
  if (!seen.ok() && !absl::IsNotFound(seen)) return seen;
  const absl::Status place = CheckDirectory();
  if (last == term_ && place.ok()) return absl::OkStatus();
  if (!place.ok()) return absl::AbortedError(place.message());
  return absl::AbortedError(absl::StrCat("another daemon has taken over the state directory ",
                                         options_.directory, ", in term ", last));
}

absl::Status FileJournal::CheckTerm() {
  if (tenure_ == nullptr) return absl::OkStatus();
  absl::Status status = ReadTerm();
  if (status.ok()) {
    blind_since_.reset();
    return status;
  }
  if (!absl::IsAborted(status)) {
    const MonotonicTime now = options_.clock->Now();
    if (!blind_since_.has_value()) blind_since_ = now;
    if (now - *blind_since_ < kMostBlind) return status;
    status = absl::AbortedError(absl::StrCat(
        "the state directory ", options_.directory, " could not be looked into for ",
        absl::FormatDuration(kMostBlind), ", and another daemon may lead: ", status.message()));
  }
  tenure_->End();
  options_.on_lost();
  return status;
}

absl::StatusOr<Journal::Opened> FileJournal::Open(const Options& options) {
  Options own = options;
  if (own.directory_number == 0) {
    CONVENE_ASSIGN_OR_RETURN(own.directory_number, MakeDirectory(own.directory));
  }
  Opened opened;
  auto* const file_journal = new FileJournal(own);
  opened.journal.reset(file_journal);
  FileJournal& journal = *file_journal;
  CONVENE_RETURN_IF_ERROR(journal.CheckDirectory());
  CONVENE_RETURN_IF_ERROR(journal.Lock());
  CONVENE_ASSIGN_OR_RETURN(const std::string from, journal.ClaimTerm());
  CONVENE_RETURN_IF_ERROR(RemoveTree(journal.FreshPath()));
  CONVENE_ASSIGN_OR_RETURN(opened.cut_bytes, journal.Load(from));
  if (options.is_shared) {
    opened.tenure = journal.tenure_ =
        std::make_shared<Tenure>(journal.term_, MonotonicTime::InfiniteFuture());
    CONVENE_RETURN_IF_ERROR(journal.Rewrite());
    CONVENE_RETURN_IF_ERROR(journal.RemoveEarlierTerms());
  }
  for (const auto& [id, wire] : journal.jobs_) {
    CONVENE_ASSIGN_OR_RETURN(JobRecord record, FromWire(wire, options.wall_now()));
    opened.jobs.push_back(std::move(record));
  }
  return opened;
}

absl::StatusOr<int64_t> FileJournal::Load(const std::string& from) {
  CONVENE_RETURN_IF_ERROR(CheckIsFile(from));
  absl::StatusOr<std::string> content = ReadFile(from);
  if (absl::IsNotFound(content.status())) {
    if (!options_.is_shared) CONVENE_RETURN_IF_ERROR(Rewrite());
    return 0;
  }
  CONVENE_RETURN_IF_ERROR(content.status());
  CONVENE_ASSIGN_OR_RETURN(size_t offset, CheckFileHeader(*content, from));
  while (offset < content->size()) {
    const absl::string_view rest = absl::string_view(*content).substr(offset);
    const std::optional<absl::string_view> entry = FirstEntry(rest);
    if (!entry.has_value()) {
      if (!HoldsWholeFrame(rest.substr(1))) break;
      return absl::DataLossError(absl::StrCat(
          from, " is damaged at byte ", offset, " of ", content->size(),
          ": whole records follow a broken one, and no crash does that. Look at the disk and "
          "restore the file from a copy",
          kStartAnew));
    }
    v1::JournalEntry parsed;
    if (!parsed.ParseFromArray(entry->data(), static_cast<int>(entry->size()))) {
      return absl::DataLossError(absl::StrCat(from, " has a whole record at byte ", offset,
                                              " that is no JournalEntry", kStartAnew));
    }
    Apply(std::move(parsed));
    offset += kFrameHeaderBytes + entry->size();
  }
  const int64_t cut_bytes = static_cast<int64_t>(content->size() - offset);
  if (options_.is_shared) return cut_bytes;  // The term's own file is written instead.
  size_bytes_ = static_cast<int64_t>(offset);
  CONVENE_ASSIGN_OR_RETURN(file_, OpenPrivately(path(), O_WRONLY));
  if (cut_bytes > 0) {
    if (ftruncate(file_.get(), size_bytes_) != 0) {
      return ErrnoStatus(errno, absl::StrCat("truncate ", path()));
    }
    CONVENE_RETURN_IF_ERROR(SyncData(file_.get(), path()));
  }
  if (lseek(file_.get(), size_bytes_, SEEK_SET) < 0) {
    return ErrnoStatus(errno, absl::StrCat("seek ", path()));
  }
  return cut_bytes;
}

void FileJournal::Apply(v1::JournalEntry entry) {
  for (v1::JobRecord& job : *entry.mutable_jobs()) {
    v1::JobRecord& kept = jobs_[job.founder().job_id()];
    live_bytes_ -= kept.ByteSizeLong();
    kept = std::move(job);
    live_bytes_ += kept.ByteSizeLong();
  }
  for (const std::string& id : entry.forgotten()) {
    live_bytes_ -= jobs_[id].ByteSizeLong();
    jobs_.erase(id);
  }
}

absl::Status FileJournal::Append(const RecordChanges& changes) {
  v1::JournalEntry entry;
  for (const JobRecord& job : changes.jobs) {
    *entry.add_jobs() = ToWire(job, options_.wall_now());
  }
  for (const std::string& id : changes.forgotten) entry.add_forgotten(id);
  const bool fits = entry.ByteSizeLong() <= kMostEntryBytes;
  const std::string bytes = fits ? entry.SerializeAsString() : "";
  Apply(std::move(entry));
  const bool may_extend = is_current_ && fits;
  const bool is_too_long =
      size_bytes_ > std::max(options_.rewrite_bytes, kMostDead * static_cast<int64_t>(live_bytes_));
  absl::Status status;
  if (may_extend && !is_too_long) {
    status = Extend(bytes);
  } else if (status = CheckTerm(); status.ok()) {  // a rename could hit another daemon's file
    absl::StatusOr<Fresh> fresh = WriteFresh();
    // A disk without room for a second file may have room for a frame more.
    status = fresh.ok() ? Install(*std::move(fresh)) : may_extend ? Extend(bytes) : fresh.status();
  }
  // After the write: a daemon that claims its term later reads what was written.
  if (status.ok()) status = CheckTerm();
  if (!status.ok() && is_current_ && tenure_ == nullptr) Empty();
  is_current_ = status.ok();
  return status;
}

void FileJournal::Empty() {
  const auto header = static_cast<int64_t>(FileHeader().size());
  if (ftruncate(file_.get(), header) != 0 || fdatasync(file_.get()) != 0) return;
  size_bytes_ = header;
}

absl::Status FileJournal::Extend(const std::string& entry) {
  CONVENE_RETURN_IF_ERROR(WriteFrame(file_.get(), entry, path()));
  CONVENE_RETURN_IF_ERROR(SyncData(file_.get(), path()));
  size_bytes_ += static_cast<int64_t>(kFrameHeaderBytes + entry.size());
  return absl::OkStatus();
}

absl::Status FileJournal::Rewrite() {
  CONVENE_ASSIGN_OR_RETURN(Fresh fresh, WriteFresh());
  return Install(std::move(fresh));
}

absl::StatusOr<FileJournal::Fresh> FileJournal::WriteFresh() const {
  const std::string fresh_path = FreshPath();
  absl::StatusOr<Fresh> fresh = WriteTo(fresh_path);
  if (!fresh.ok()) unlink(fresh_path.c_str());  // its room may be needed
  return fresh;
}

absl::StatusOr<FileJournal::Fresh> FileJournal::WriteTo(const std::string& fresh_path) const {
  CONVENE_ASSIGN_OR_RETURN(UniqueFd file, OpenPrivately(fresh_path, O_WRONLY | O_CREAT | O_TRUNC));
  Fresh fresh = {std::move(file), static_cast<int64_t>(FileHeader().size())};
  CONVENE_RETURN_IF_ERROR(WriteAll(fresh.file.get(), FileHeader(), fresh_path));
  // Each job has its own frame: nothing reads the file before it is whole.
  for (const auto& [id, job] : jobs_) {
    v1::JournalEntry entry;
    *entry.add_jobs() = job;
    const std::string bytes = entry.SerializeAsString();
    CONVENE_RETURN_IF_ERROR(WriteFrame(fresh.file.get(), bytes, fresh_path));
    fresh.size_bytes += static_cast<int64_t>(kFrameHeaderBytes + bytes.size());
  }
  CONVENE_RETURN_IF_ERROR(SyncFile(fresh.file.get(), fresh_path));
  return fresh;
}

absl::Status FileJournal::Install(Fresh fresh) {
  CONVENE_RETURN_IF_ERROR(RenameFile(FreshPath(), path()));
  // From here on the new file is the journal, even if the directory's sync fails.
  file_ = std::move(fresh.file);
  size_bytes_ = fresh.size_bytes;
  return SyncDirectory(options_.directory);
}

}  // namespace convene::rendezvous
