// Several documents packed into one row of tokens: attention never looks back across a document's
// start, and rotary positions begin anew there. (Megatron: --reset-attention-mask
// --reset-position-ids; torchtitan: block causal.)
#pragma once

#include <cstddef>
#include <cstdint>

#include "worker_runtime/device/dtype.h"
#include "worker_runtime/device/stream.h"

namespace convene::worker {

struct AttentionShape;

// The documents of one microbatch. All pointers are into the device's memory. `begin` null: each
// row is one document.
struct Documents {
  // (batch, sequence_length): the position in its row at which the token's document begins. Along a
  // row it never falls and never passes the token's own position; where it rises, it is that
  // position. Where the tokens are a part of a longer row (ops/attention.h): of the queries, and a
  // document may begin at a position that is none of theirs.
  const int32_t* begin = nullptr;

  // The same as a list of whole rows, where NeedsDocumentTable; else 0 and null. `count`: of
  // documents, rounded up to a power of two, so that few different counts occur; the added
  // documents at the end are empty.
  int count = 0;
  const int32_t* lengths = nullptr;  // (count): tokens
  // (count + 1): where each begins, counted in elements of the tensor; the last is the end of all.
  const int64_t* qkv_offsets = nullptr;
  const int64_t* out_offsets = nullptr;
  const int64_t* log_sum_exp_offsets = nullptr;
};

// Whether this device's attention reads the list: cuDNN does.
constexpr bool NeedsDocumentTable(DeviceKind device, DType dtype) {
  return device == DeviceKind::kCuda && dtype == DType::kBFloat16;
}

// PURE. The most bytes that the table of one microbatch takes: each token is a document.
size_t DocumentTableBytes(const AttentionShape& shape);

inline constexpr size_t kDocumentTableAlignment = 64;

// PURE. Writes the list of the documents that `begin` (in host memory, else as Documents::begin)
// tells of into `table`, in host memory, of DocumentTableBytes(shape). *result gets count and
// pointers as they will be once the bytes lie at `device_table`; its `begin` is left alone. Returns
// how many bytes were written: a multiple of kDocumentTableAlignment, as `device_table` must be.
// REQUIRES: `table` at a multiple of 8.
size_t WriteDocumentTable(const AttentionShape& shape, const int32_t* begin, void* table,
                          const void* device_table, Documents* result);

}  // namespace convene::worker
