#include "agent/output/rotating_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/base/files.h"
#include "tools/base/status_macros.h"

namespace convene::agent {
namespace {

constexpr size_t kSlice = 256 * 1024;
// zlib's fastest: the workers need the processor more than the disk needs the last tenth.
constexpr char kGzipMode[] = "wb1";

bool MoveFile(const std::string& from, const std::string& to) {
  return rename(from.c_str(), to.c_str()) == 0;
}

}  // namespace

RotatingFile::~RotatingFile() {
  if (compress_to_ != nullptr) EndCompression(/*succeeded=*/false);
}

std::string RotatingFile::OldPath(int number, bool compressed) const {
  return absl::StrCat(options_.path, ".", number, compressed ? ".gz" : "");
}

absl::Status RotatingFile::Append(absl::string_view bytes, size_t* done) {
  *done = 0;
  while (!bytes.empty()) {
    if (!file_.valid()) CONVENE_RETURN_IF_ERROR(OpenFile());
    const absl::string_view part = PartForThisFile(bytes);
    if (part.empty()) {
      CONVENE_RETURN_IF_ERROR(Rotate());
      continue;
    }
    if (const int error = FileFault(FileOp::kWrite, options_.path)) {
      return ErrnoStatus(error, absl::StrCat("write ", options_.path));
    }
    const ssize_t n = write(file_.get(), part.data(), part.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, absl::StrCat("write ", options_.path));
    CountWritten(part.substr(0, n));
    *done += n;
    bytes.remove_prefix(n);
  }
  return absl::OkStatus();
}

absl::string_view RotatingFile::PartForThisFile(absl::string_view bytes) const {
  const int64_t room = options_.max_bytes - size_;
  if (options_.max_bytes <= 0 || static_cast<int64_t>(bytes.size()) <= room) return bytes;
  if (room > 0) {
    const size_t last_end = bytes.rfind('\n', room - 1);
    if (last_end != absl::string_view::npos) return bytes.substr(0, last_end + 1);
  }
  if (size_ > 0 && (at_line_start() || open_line_bytes_ >= kLongestLine)) return {};
  // The open line goes on, also when it is longer than a whole file.
  const size_t line_end = bytes.find('\n');
  const size_t line = line_end == absl::string_view::npos ? bytes.size() : line_end + 1;
  return bytes.substr(0, std::min<size_t>(line, kLongestLine));
}

void RotatingFile::CountWritten(absl::string_view bytes) {
  size_ += bytes.size();
  const size_t last_end = bytes.rfind('\n');
  open_line_bytes_ = last_end == absl::string_view::npos ? open_line_bytes_ + bytes.size()
                                                         : bytes.size() - last_end - 1;
}

absl::Status RotatingFile::OpenFile() {
  if (const int error = FileFault(FileOp::kOpen, options_.path)) {
    return ErrnoStatus(error, absl::StrCat("open ", options_.path));
  }
  CONVENE_RETURN_IF_ERROR(MakeDirectories(ParentDirectory(options_.path)));
  file_.Reset(
      open(options_.path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0644));
  struct stat info;
  if (!file_.valid() || fstat(file_.get(), &info) != 0) {
    return ErrnoStatus(errno, absl::StrCat("open ", options_.path));
  }
  size_ = info.st_size;
  return absl::OkStatus();
}

absl::Status RotatingFile::Rotate() {
  if (compress_to_ != nullptr && uncompressed_.front() == options_.max_old_files) {
    EndCompression(/*succeeded=*/false);  // It is removed below.
  }
  const int last = options_.max_old_files;
  if (last > 0) {
    for (const bool compressed : {false, true}) unlink(OldPath(last, compressed).c_str());
  }
  for (int number = last - 1; number >= 1; --number) {
    for (const bool compressed : {false, true}) {
      MoveFile(OldPath(number, compressed), OldPath(number + 1, compressed));
    }
  }
  for (int& number : uncompressed_) ++number;
  while (!uncompressed_.empty() && uncompressed_.front() > last) uncompressed_.pop_front();
  if (last > 0 ? !MoveFile(options_.path, OldPath(1, false)) : unlink(options_.path.c_str()) != 0) {
    // A person cleared the folder, so there is no file to keep.
    if (errno != ENOENT) return ErrnoStatus(errno, absl::StrCat("rotate ", options_.path));
  } else if (last > 0) {
    uncompressed_.push_back(1);
  }
  file_.Reset();
  open_line_bytes_ = 0;
  return absl::OkStatus();
}

bool RotatingFile::StartCompression() {
  const std::string from = OldPath(uncompressed_.front(), false);
  const std::string to = options_.path + ".gz.tmp";
  compress_from_.Reset(open(from.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!compress_from_.valid() || FileFault(FileOp::kOpen, to) != 0) return false;
  UniqueFd file(open(to.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644));
  if (!file.valid()) return false;
  compress_to_ = gzdopen(file.get(), kGzipMode);
  if (compress_to_ == nullptr) return false;
  static_cast<void>(file.Release());  // gzclose closes it.
  return true;
}

void RotatingFile::CompressSome() {
  if (uncompressed_.empty()) return;
  if (compress_to_ == nullptr && !StartCompression()) return EndCompression(/*succeeded=*/false);
  std::vector<char> slice(kSlice);
  const ssize_t n = read(compress_from_.get(), slice.data(), slice.size());
  if (n < 0 && errno == EINTR) return;
  if (n == 0) return EndCompression(/*succeeded=*/true);
  if (n < 0 || gzwrite(compress_to_, slice.data(), n) != n) EndCompression(/*succeeded=*/false);
}

void RotatingFile::EndCompression(bool succeeded) {
  const std::string temporary = options_.path + ".gz.tmp";
  const int number = uncompressed_.front();
  compress_from_.Reset();
  if (compress_to_ != nullptr) succeeded = gzclose(compress_to_) == Z_OK && succeeded;
  compress_to_ = nullptr;
  if (succeeded && MoveFile(temporary, OldPath(number, true))) {
    unlink(OldPath(number, false).c_str());
  } else {
    unlink(temporary.c_str());
  }
  uncompressed_.pop_front();
}

}  // namespace convene::agent
