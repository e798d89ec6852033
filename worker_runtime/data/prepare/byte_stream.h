// The content of an input file, unpacked where gzip or zstd packed it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker_runtime/data/prepare/sources.h"

namespace convene::worker {

// A Parquet file begins with it.
inline constexpr char kParquetMark[] = "PAR1\x15";

// Reads a file from its beginning to its end, once. The packing is known by the file's first bytes
// (RFC 1952 section 2.3.1, RFC 8878 section 3.1.1), not by its name; several packed parts one
// behind the other are one content, as for gunzip and unzstd. Not thread-safe.
class ByteStream {
 public:
  virtual ~ByteStream() = default;

  // FailedPrecondition: the file is not what `source` says any more. InvalidArgument: a format that
  // holds no text as it is (zip, xz, bzip2, UTF-16), by name. Else as OpenFile. Where the source
  // has a command: OpenCommand (command_stream.h).
  static absl::StatusOr<std::unique_ptr<ByteStream>> Open(const SourceFile& source);

  // Fills `buffer` with the next `size` bytes; fewer only at the end of the content. DataLoss: the
  // packed data is damaged or ends too early (file and offset). FailedPrecondition: the file
  // changed meanwhile. InvalidArgument: zstd's data need a window of more than 128 MiB.
  absl::StatusOr<size_t> Read(char* buffer, size_t size);

  // Reads past the next `bytes`. DataLoss where there are not so many, else as Read.
  virtual absl::Status Skip(int64_t bytes);

  // Bytes of the file, as it lies on the disk, that were read.
  virtual int64_t file_offset() const = 0;

 protected:
  explicit ByteStream(const SourceFile& source) : source_(source) {}
  // At least one byte, 0 at the end.
  virtual absl::StatusOr<size_t> ReadSome(char* buffer, size_t size) = 0;

  const SourceFile source_;
};

}  // namespace convene::worker
