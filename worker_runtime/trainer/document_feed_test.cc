#include "worker_runtime/trainer/document_feed.h"

#include <catch2/catch.hpp>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "tools/base/testing/status_testing.h"
#include "worker_runtime/device/arena.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/testing/device_array.h"
#include "worker_runtime/testing/places.h"

namespace convene::worker {
namespace {

constexpr int kMicrobatches = 3;
constexpr int kRows = 2;
constexpr int kSequenceLength = 4;

// Of one step: three microbatches of two rows.
const std::vector<int32_t> kBegins = {0, 0, 2, 2, 0, 0, 0, 0,  //
                                      0, 1, 2, 3, 0, 1, 2, 3,  //
                                      0, 0, 0, 3, 0, 0, 0, 0};

class Fed {
 public:
  Fed(bool packed, bool needs_table)
      : feed_({.shape = {.batch = kRows,
                         .sequence_length = kSequenceLength,
                         .heads = 2,
                         .kv_heads = 1,
                         .head_size = 4,
                         .packed = packed},
               .cut = {.sequence_length = kSequenceLength},
               .needs_table = needs_table,
               .microbatches = kMicrobatches},
              *device_, arena_, staging_) {
    REQUIRE_OK(arena_.Build());
    REQUIRE_OK(staging_.Build());
  }

  DocumentFeed& feed() { return feed_; }

  std::vector<int32_t> BeginsOf(const Documents& documents) {
    return Fetch(documents.begin, kRows * kSequenceLength);
  }
  std::vector<int32_t> LengthsOf(const Documents& documents) {
    return Fetch(documents.lengths, documents.count);
  }
  std::vector<int64_t> OffsetsOf(const Documents& documents) {
    return Fetch(documents.log_sum_exp_offsets, documents.count + 1);
  }

 private:
  template <typename T>
  std::vector<T> Fetch(const T* data, int count) {
    return testing::Fetch(absl::Span<const T>(data, count), *device_);
  }

  const std::unique_ptr<Device> device_ = testing::MakeTestDevice();
  Arena arena_{"device", device_->memory()};
  Arena staging_{"host", device_->staging()};
  DocumentFeed feed_;
};

TEST_CASE("each microbatch gets where its own documents begin") {
  if (!testing::HasPlacesOrSkips(1)) return;
  Fed fed(/*packed=*/true, /*needs_table=*/false);
  const Documents* documents = fed.feed().Feed(kBegins.data(), kMicrobatches);
  REQUIRE(documents != nullptr);
  for (int m = 0; m < kMicrobatches; ++m) {
    const auto first = kBegins.begin() + static_cast<ptrdiff_t>(m) * kRows * kSequenceLength;
    CHECK(fed.BeginsOf(documents[m]) ==
          std::vector<int32_t>(first, first + kRows * kSequenceLength));
    CHECK(documents[m].count == 0);
    CHECK(documents[m].lengths == nullptr);
  }
}

TEST_CASE("lists of different lengths stand one behind the other") {
  if (!testing::HasPlacesOrSkips(1)) return;
  Fed fed(/*packed=*/true, /*needs_table=*/true);
  // The step before had longer lists.
  std::vector<int32_t> each_alone;
  for (size_t i = 0; i < kBegins.size(); ++i) each_alone.push_back(i % kSequenceLength);
  CHECK(fed.LengthsOf(fed.feed().Feed(each_alone.data(), kMicrobatches)[2]) ==
        std::vector<int32_t>(8, 1));
  const Documents* documents = fed.feed().Feed(kBegins.data(), kMicrobatches);
  CHECK(fed.LengthsOf(documents[0]) == std::vector<int32_t>{2, 2, 4, 0});
  CHECK(fed.LengthsOf(documents[1]) == std::vector<int32_t>{1, 1, 1, 1, 1, 1, 1, 1});
  CHECK(fed.LengthsOf(documents[2]) == std::vector<int32_t>{3, 1, 4, 0});
  CHECK(fed.OffsetsOf(documents[2])[1] == 3 * 2);
  CHECK(fed.OffsetsOf(documents[2])[4] == 8 * 2);
}

TEST_CASE("a validation may have fewer microbatches") {
  if (!testing::HasPlacesOrSkips(1)) return;
  Fed fed(/*packed=*/true, /*needs_table=*/true);
  const Documents* documents = fed.feed().Feed(kBegins.data(), 1);
  CHECK(fed.LengthsOf(documents[0]) == std::vector<int32_t>{2, 2, 4, 0});
}

TEST_CASE("rows that are not packed take no memory and say nothing") {
  const std::unique_ptr<Device> device = Device::Cpu();
  Arena arena("device");
  Arena staging("host");
  DocumentFeed feed({.shape = {.batch = kRows, .sequence_length = kSequenceLength},
                     .needs_table = true,
                     .microbatches = kMicrobatches},
                    *device, arena, staging);
  CHECK(arena.total_bytes() == 0);
  CHECK(staging.total_bytes() == 0);
  CHECK(feed.Feed(nullptr, kMicrobatches) == nullptr);
}

}  // namespace
}  // namespace convene::worker
