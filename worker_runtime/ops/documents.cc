#include "worker_runtime/ops/documents.h"

#include <bit>
#include <cstring>

#include "tools/base/check.h"
#include "tools/base/rounding.h"
#include "worker_runtime/ops/attention.h"

namespace convene::worker {
namespace {

// Where the arrays of a table for `count` documents stand, in bytes from its start.
struct TableLayout {
  explicit TableLayout(int64_t count) {
    lengths = Take(count * sizeof(int32_t));
    qkv_offsets = Take((count + 1) * sizeof(int64_t));
    out_offsets = Take((count + 1) * sizeof(int64_t));
    log_sum_exp_offsets = Take((count + 1) * sizeof(int64_t));
  }

  size_t lengths, qkv_offsets, out_offsets, log_sum_exp_offsets;
  size_t bytes = 0;

 private:
  size_t Take(size_t wanted) {
    const size_t place = bytes;
    bytes += RoundUp(wanted, kDocumentTableAlignment);
    return place;
  }
};

int64_t TokenCount(const AttentionShape& shape) {
  return int64_t{shape.batch} * shape.sequence_length;
}

bool BeginsDocument(const AttentionShape& shape, const int32_t* begin, int64_t token) {
  return begin[token] == token % shape.sequence_length;
}

// Rounding keeps the number of different graphs low; the empty documents at the end cost next to
// nothing.
int64_t RoundedCount(int64_t documents) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(documents)));
}

}  // namespace

size_t DocumentTableBytes(const AttentionShape& shape) {
  return TableLayout(RoundedCount(TokenCount(shape))).bytes;
}

size_t WriteDocumentTable(const AttentionShape& shape, const int32_t* begin, void* table,
                          const void* device_table, Documents* result) {
  const int64_t tokens = TokenCount(shape);
  int64_t documents = 0;
  for (int64_t token = 0; token < tokens; ++token) {
    documents += BeginsDocument(shape, begin, token) ? 1 : 0;
  }
  CONVENE_CHECK(documents >= shape.batch);  // each row begins one
  const int64_t count = RoundedCount(documents);
  const TableLayout layout(count);
  char* const host = static_cast<char*>(table);
  const char* const device = static_cast<const char*>(device_table);
  auto* const lengths = reinterpret_cast<int32_t*>(host + layout.lengths);
  auto* const qkv_offsets = reinterpret_cast<int64_t*>(host + layout.qkv_offsets);
  auto* const out_offsets = reinterpret_cast<int64_t*>(host + layout.out_offsets);
  auto* const log_sum_exp_offsets = reinterpret_cast<int64_t*>(host + layout.log_sum_exp_offsets);

  const auto place = [&](int64_t document, int64_t token) {
    qkv_offsets[document] = token * shape.qkv_width();
    out_offsets[document] = token * shape.heads * shape.head_size;
    log_sum_exp_offsets[document] = token * shape.heads;
  };
  std::memset(lengths, 0, count * sizeof(int32_t));
  int64_t document = -1;
  for (int64_t token = 0; token < tokens; ++token) {
    if (BeginsDocument(shape, begin, token)) place(++document, token);
    ++lengths[document];
  }
  while (++document <= count) place(document, tokens);

  result->count = static_cast<int>(count);
  result->lengths = reinterpret_cast<const int32_t*>(device + layout.lengths);
  result->qkv_offsets = reinterpret_cast<const int64_t*>(device + layout.qkv_offsets);
  result->out_offsets = reinterpret_cast<const int64_t*>(device + layout.out_offsets);
  result->log_sum_exp_offsets =
      reinterpret_cast<const int64_t*>(device + layout.log_sum_exp_offsets);
  return layout.bytes;
}

}  // namespace convene::worker
