#include "worker_runtime/ops/documents.h"

#include <catch2/catch.hpp>
#include <cstddef>
#include <vector>

#include "worker_runtime/ops/attention.h"

namespace convene::worker {
namespace {

AttentionShape Shape(int batch, int sequence_length) {
  return {.batch = batch,
          .sequence_length = sequence_length,
          .heads = 6,
          .kv_heads = 2,
          .head_size = 8,
          .packed = true};
}

// The table that a device would read: its memory is the host's here.
class Table {
 public:
  Table(const AttentionShape& shape, const std::vector<int32_t>& begins)
      : memory_(DocumentTableBytes(shape) / sizeof(Line) + 1) {
    memory_.back().bytes[0] = 'x';
    documents_.begin = begins.data();
    bytes_ = WriteDocumentTable(shape, begins.data(), memory_.data(), memory_.data(), &documents_);
    CHECK(bytes_ <= DocumentTableBytes(shape));
    CHECK(bytes_ % kDocumentTableAlignment == 0);
    CHECK(memory_.back().bytes[0] == 'x');
    CHECK(documents_.begin == begins.data());
  }

  std::vector<int32_t> lengths() const {
    return {documents_.lengths, documents_.lengths + documents_.count};
  }
  std::vector<int64_t> Offsets(const int64_t* offsets) const {
    return {offsets, offsets + documents_.count + 1};
  }
  const Documents& documents() const { return documents_; }
  size_t bytes() const { return bytes_; }

 private:
  struct alignas(kDocumentTableAlignment) Line {
    char bytes[kDocumentTableAlignment];
  };
  std::vector<Line> memory_;
  Documents documents_;
  size_t bytes_ = 0;
};

TEST_CASE("the list names every document in order, then empty ones up to a power of two") {
  const Table table(Shape(2, 5), {0, 0, 0, 3, 4, 0, 1, 1, 1, 1});
  CHECK(table.documents().count == 8);
  CHECK(table.lengths() == std::vector<int32_t>{3, 1, 1, 1, 4, 0, 0, 0});
  CHECK(table.Offsets(table.documents().log_sum_exp_offsets) ==
        std::vector<int64_t>{0, 18, 24, 30, 36, 60, 60, 60, 60});
  CHECK(table.Offsets(table.documents().out_offsets) ==
        std::vector<int64_t>{0, 144, 192, 240, 288, 480, 480, 480, 480});
  CHECK(table.Offsets(table.documents().qkv_offsets) ==
        std::vector<int64_t>{0, 240, 320, 400, 480, 800, 800, 800, 800});
}

TEST_CASE("rows of one document each are a list of rows") {
  const Table table(Shape(4, 3), std::vector<int32_t>(12, 0));
  CHECK(table.lengths() == std::vector<int32_t>{3, 3, 3, 3});
}

TEST_CASE("a document for each token fills the room that was planned, and no more") {
  const AttentionShape shape = Shape(3, 4);
  const Table table(shape, {0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3});
  CHECK(table.documents().count == 16);
  CHECK(table.bytes() == DocumentTableBytes(shape));
}

TEST_CASE("pointers are those of the device, the bytes the host's") {
  const AttentionShape shape = Shape(1, 2);
  const std::vector<int32_t> begins = {0, 1};
  alignas(kDocumentTableAlignment) char host[1024];
  alignas(kDocumentTableAlignment) char device[1024];
  REQUIRE(DocumentTableBytes(shape) <= sizeof(host));
  Documents documents;
  WriteDocumentTable(shape, begins.data(), host, device, &documents);
  const auto at = [&](const void* pointer) { return static_cast<const char*>(pointer) - device; };
  CHECK(at(documents.lengths) == 0);
  CHECK(reinterpret_cast<const int64_t*>(host + at(documents.out_offsets))[2] == 2 * 6 * 8);
}

TEST_CASE("only cuDNN wants the list") {
  CHECK(NeedsDocumentTable(DeviceKind::kCuda, DType::kBFloat16));
  CHECK_FALSE(NeedsDocumentTable(DeviceKind::kCuda, DType::kFloat32));
  CHECK_FALSE(NeedsDocumentTable(DeviceKind::kCpu, DType::kBFloat16));
}

}  // namespace
}  // namespace convene::worker
