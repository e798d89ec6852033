#include "worker_runtime/data/prepare/byte_stream.h"

#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tools/base/check.h"
#include "tools/base/files.h"
#include "tools/base/status_macros.h"
#include "tools/base/unique_fd.h"
#include "worker_runtime/data/prepare/command_stream.h"

namespace convene::worker {
namespace {

constexpr size_t kPackedBytes = 256 << 10;
constexpr size_t kSkipBytes = 256 << 10;
// A frame that needs a larger window (`zstd --long=28` and above) would break the bound of memory.
constexpr int kZstdWindowLogMax = 27;

// The file as it lies on the disk.
class PlainStream : public ByteStream {
 public:
  PlainStream(const SourceFile& source, UniqueFd fd) : ByteStream(source), fd_(std::move(fd)) {}

  int64_t file_offset() const override { return offset_; }

  // By a seek: a file that ends before the place gives no byte there, which Read tells.
  absl::Status Skip(int64_t bytes) override {
    if (bytes > source_.bytes - offset_) return SourceChanged(source_);
    offset_ += bytes;
    return absl::OkStatus();
  }

  absl::StatusOr<size_t> ReadSome(char* buffer, size_t size) override {
    ssize_t n = 0;
    do {
      n = pread(fd_.get(), buffer, size, offset_);
    } while (n < 0 && errno == EINTR);
    if (n < 0) return ErrnoStatus(errno, absl::StrCat("data: read ", source_.path));
    offset_ += n;
    if (offset_ > source_.bytes || (n == 0 && offset_ != source_.bytes)) {
      return SourceChanged(source_);
    }
    if (n == 0) CONVENE_RETURN_IF_ERROR(CheckUnchanged(fd_.get(), source_));
    return n;
  }

 private:
  const UniqueFd fd_;
  int64_t offset_ = 0;
};

// The two packed formats share a buffer of packed bytes.
class PackedStream : public ByteStream {
 public:
  PackedStream(const SourceFile& source, std::unique_ptr<PlainStream> file)
      : ByteStream(source), file_(std::move(file)), packed_(kPackedBytes) {}

  int64_t file_offset() const override { return file_->file_offset(); }

 protected:
  // Reads more packed bytes when all are used. OK and is_at_end() when the file has no more.
  absl::Status Refill() {
    if (used_ < size_ || at_end_) return absl::OkStatus();
    used_ = 0;
    CONVENE_ASSIGN_OR_RETURN(size_, file_->ReadSome(packed_.data(), packed_.size()));
    at_end_ = size_ == 0;
    return absl::OkStatus();
  }
  bool is_at_end() const { return at_end_; }

  absl::Status Damaged(absl::string_view kind, absl::string_view why) const {
    const int64_t offset = file_->file_offset() - static_cast<int64_t>(size_ - used_);
    return absl::DataLossError(absl::StrCat("data: ", source_.path, ": the ", kind,
                                            " data is damaged at byte ", offset, " of ",
                                            source_.bytes, " (", why, "); get the file again"));
  }
  absl::Status Truncated(absl::string_view kind) const {
    return absl::DataLossError(absl::StrCat("data: ", source_.path, ": the ", kind,
                                            " data ends too early, at byte ", source_.bytes,
                                            "; the file was cut short, get it again"));
  }

  const std::unique_ptr<PlainStream> file_;
  std::vector<char> packed_;
  size_t used_ = 0, size_ = 0;  // of packed_

 private:
  bool at_end_ = false;
};

class GzipStream : public PackedStream {
 public:
  GzipStream(const SourceFile& source, std::unique_ptr<PlainStream> file)
      : PackedStream(source, std::move(file)) {
    // 16: the gzip wrapper, whose checksum zlib then proves.
    CONVENE_CHECK(inflateInit2(&inflate_, MAX_WBITS + 16) == Z_OK);
  }
  ~GzipStream() override { inflateEnd(&inflate_); }

  absl::StatusOr<size_t> ReadSome(char* buffer, size_t size) override {
    size = std::min<size_t>(size, 1 << 30);
    while (true) {
      CONVENE_RETURN_IF_ERROR(Refill());
      if (is_at_end()) {
        if (is_between_) return 0;
        return Truncated("gzip");
      }
      // The zeros with which tapes fill their last block belong to no part.
      if (is_between_ && has_part_ && packed_[used_] == 0) {
        ++used_;
        continue;
      }
      is_between_ = false;
      inflate_.next_in = reinterpret_cast<Bytef*>(packed_.data() + used_);
      inflate_.avail_in = static_cast<uInt>(size_ - used_);
      inflate_.next_out = reinterpret_cast<Bytef*>(buffer);
      inflate_.avail_out = static_cast<uInt>(size);
      const int result = inflate(&inflate_, Z_NO_FLUSH);
      used_ = size_ - inflate_.avail_in;
      if (result == Z_STREAM_END) {
        is_between_ = has_part_ = true;
        inflateReset(&inflate_);
      } else if (result != Z_OK && result != Z_BUF_ERROR) {
        return Damaged("gzip", inflate_.msg == nullptr ? "no memory" : inflate_.msg);
      }
      if (inflate_.avail_out < size) return size - inflate_.avail_out;
    }
  }

 private:
  z_stream inflate_ = {};
  bool is_between_ = true;  // two packed parts
  bool has_part_ = false;   // a whole one was read
};

class ZstdStream : public PackedStream {
 public:
  ZstdStream(const SourceFile& source, std::unique_ptr<PlainStream> file)
      : PackedStream(source, std::move(file)), context_(ZSTD_createDCtx()) {
    CONVENE_CHECK(context_ != nullptr);
    ZSTD_DCtx_setParameter(context_.get(), ZSTD_d_windowLogMax, kZstdWindowLogMax);
  }

  absl::StatusOr<size_t> ReadSome(char* buffer, size_t size) override {
    while (true) {
      CONVENE_RETURN_IF_ERROR(Refill());
      // Bytes that are unpacked already may wait for room without any further input.
      ZSTD_inBuffer in = {packed_.data(), size_, used_};
      ZSTD_outBuffer out = {buffer, size, 0};
      if (is_at_end() && is_between_) return 0;
      const size_t result = ZSTD_decompressStream(context_.get(), &out, &in);
      used_ = in.pos;
      if (ZSTD_isError(result)) return Refusal(result);
      is_between_ = result == 0;
      if (out.pos > 0) return out.pos;
      if (is_at_end() && !is_between_) return Truncated("zstd");
    }
  }

 private:
  struct Free {
    void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
  };
  absl::Status Refusal(size_t result) const {
    if (ZSTD_getErrorCode(result) != ZSTD_error_frameParameter_windowTooLarge) {
      return Damaged("zstd", ZSTD_getErrorName(result));
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "data: ", source_.path, " was packed with a window of more than ",
        (int64_t{1} << kZstdWindowLogMax) >> 20,
        " MiB (zstd --long=28 or above), which this program does not keep in memory. Let zstd "
        "unpack it: convene data prepare --through 'zstd -dc --long=31 {}'"));
  }

  const std::unique_ptr<ZSTD_DCtx, Free> context_;
  bool is_between_ = true;  // two frames
};

// The name of a format whose bytes are no text, or "". `head`: sixteen bytes, or all of them. No
// mark may begin a text.
std::string ForeignFormat(absl::string_view head) {
  // A length of eight bytes, then JSON.
  if (head.size() > 9 && head.substr(5, 5) == absl::string_view("\0\0\0{\"", 5)) {
    return "a safetensors file";
  }
  struct Mark {
    absl::string_view bytes;
    const char* name;
  };
  static constexpr Mark kMarks[] = {
      {kParquetMark, "a Parquet file"},
      {{"ARROW1\0", 7}, "an Arrow file"},
      {"\x93NUMPY", "an array of NumPy"},
      {{"GGUF\2\0\0", 7}, "a GGUF file"},
      {{"GGUF\3\0\0", 7}, "a GGUF file"},
      {"\x89HDF\r\n", "an HDF5 file"},
      {"\x80\2", "a pickle of Python"},
      {"\x80\4", "a pickle of Python"},
      {"Obj\1", "an Avro file"},
      {"PK\x03\x04", "a zip archive"},
      {"\xFD"
       "7zXZ",
       "packed by xz"},
      {"BZh91AY&", "packed by bzip2"},
      {"\x04\x22\x4D\x18", "packed by lz4"},
      {"\xFF\xFE", "text in UTF-16 or UTF-32"},
      {"\xFE\xFF", "text in UTF-16"},
  };
  for (const Mark& mark : kMarks) {
    if (absl::StartsWith(head, mark.bytes)) return mark.name;
  }
  return "";
}

}  // namespace

absl::StatusOr<std::unique_ptr<ByteStream>> ByteStream::Open(const SourceFile& source) {
  if (!source.command.empty()) return OpenCommand(source);
  absl::StatusOr<UniqueFd> fd = OpenFile(source.path, O_RDONLY);
  if (!fd.ok()) return Annotate(fd.status(), "data");
  CONVENE_RETURN_IF_ERROR(CheckUnchanged(fd->get(), source));
  std::string head(16, '\0');
  const ssize_t n = pread(fd->get(), head.data(), head.size(), 0);
  if (n < 0) return ErrnoStatus(errno, absl::StrCat("data: read ", source.path));
  head.resize(n);
  if (const std::string format = ForeignFormat(head); !format.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data: ", source.path, " is ", format,
        "; only UTF-8 text and JSON lines, as they are or packed by gzip or zstd, can "
        "be read. Convert the file first, or name a command that writes its text: --through "
        "'COMMAND {}'"));
  }
  auto file = std::make_unique<PlainStream>(source, *std::move(fd));
  if (absl::StartsWith(head, "\x1F\x8B")) {
    return std::make_unique<GzipStream>(source, std::move(file));
  }
  // A frame, or one of the sixteen kinds that are skipped.
  const bool is_skippable =
      head.size() >= 4 && (head[0] & 0xF0) == 0x50 && head.substr(1, 3) == "\x2A\x4D\x18";
  if (absl::StartsWith(head, "\x28\xB5\x2F\xFD") || is_skippable) {
    return std::make_unique<ZstdStream>(source, std::move(file));
  }
  return file;
}

absl::StatusOr<size_t> ByteStream::Read(char* buffer, size_t size) {
  size_t done = 0;
  while (done < size) {
    CONVENE_ASSIGN_OR_RETURN(const size_t n, ReadSome(buffer + done, size - done));
    if (n == 0) break;
    done += n;
  }
  return done;
}

absl::Status ByteStream::Skip(int64_t bytes) {
  std::vector<char> block(kSkipBytes);
  while (bytes > 0) {
    const size_t wanted = std::min<int64_t>(bytes, kSkipBytes);
    CONVENE_ASSIGN_OR_RETURN(const size_t n, Read(block.data(), wanted));
    if (n < wanted) {
      return absl::DataLossError(
          absl::StrCat("data: ", source_.path, " has less content than when it was read before"));
    }
    bytes -= static_cast<int64_t>(n);
  }
  return absl::OkStatus();
}

}  // namespace convene::worker
