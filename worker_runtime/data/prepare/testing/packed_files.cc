#include "worker_runtime/data/prepare/testing/packed_files.h"

#include <zlib.h>
#include <zstd.h>

#include "tools/base/check.h"
#include "tools/base/files.h"

namespace convene::worker {

std::string Gzip(const std::string& text) {
  z_stream stream = {};
  CONVENE_CHECK(deflateInit2(&stream, 6, Z_DEFLATED, MAX_WBITS + 16, 8, Z_DEFAULT_STRATEGY) ==
                Z_OK);
  std::string packed(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  CONVENE_CHECK(deflate(&stream, Z_FINISH) == Z_STREAM_END);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

std::string Zstd(const std::string& text) {
  std::string packed(ZSTD_compressBound(text.size()), '\0');
  const size_t size = ZSTD_compress(packed.data(), packed.size(), text.data(), text.size(), 3);
  CONVENE_CHECK(!ZSTD_isError(size));
  packed.resize(size);
  return packed;
}

SourceFile PutSource(const std::string& path, const std::string& content) {
  CONVENE_CHECK(WriteFileAtomic(path, content).ok());
  const auto sources = ListSources({path});
  CONVENE_CHECK(sources.ok());
  return (*sources)[0];
}

}  // namespace convene::worker
