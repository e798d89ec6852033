// Tensor-parallel layers with their sums and gathers beside the products, and without.
#include "worker_runtime/parallel/linear.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "tools/base/status_macros.h"
#include "tools/base/testing/status_testing.h"
#include "worker_runtime/comm/bootstrap.h"
#include "worker_runtime/comm/collective.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/device/stream.h"
#include "worker_runtime/mesh/mesh.h"
#include "worker_runtime/testing/device_array.h"
#include "worker_runtime/testing/forwarding_collective.h"
#include "worker_runtime/testing/places.h"

namespace convene::worker {
namespace {

using testing::DeviceArray;

constexpr LinearShape kShape = {.rows = 6, .out = 6, .in = 7};
constexpr Layout kLayout = {.tp = 2};

std::vector<float> Numbers(int count, double step) {
  std::vector<float> numbers;
  for (int i = 0; i < count; ++i) numbers.push_back(static_cast<float>(std::sin(step * (i + 1))));
  return numbers;
}

struct Outcome {
  std::vector<float> dx = std::vector<float>(kShape.rows * kShape.in, NAN);
  std::vector<float> dweight = std::vector<float>(kShape.out * kShape.in, NAN);
  // By the stream that products are queued in: while the sum is called for, and at the end.
  int left_free_in_sum = -1;
  int left_free = -1;
};

// A GPU's product that leaves multiprocessors to a sum may be another one than alone.
bool AreSame(const std::vector<float>& left, const std::vector<float>& right) {
  if (!testing::OnGpus()) return left == right;
  return std::equal(left.begin(), left.end(), right.begin(), right.end(),
                    [](float a, float b) { return std::abs(a - b) < 1e-5f; });
}

// Notes what products leave free when it is called.
class WatchedSum : public testing::ForwardingCollective {
 public:
  WatchedSum(std::unique_ptr<Collective> base, const Stream& products, int* left_free)
      : ForwardingCollective(std::move(base)), products_(products), left_free_(left_free) {}

  absl::Status Call(const CollectiveCall& call, Stream& stream) override {
    *left_free_ = products_.left_free();
    return ForwardingCollective::Call(call, stream);
  }

 private:
  const Stream& products_;
  int* const left_free_;
};

absl::Status Backward(testing::Place& place, bool is_split, bool beside, int chunks,
                      Outcome& outcome) {
  Device& device = *place.device;
  std::unique_ptr<Collective>& tp = place.communicators.tp;
  tp = std::make_unique<WatchedSum>(std::move(tp), device.compute(), &outcome.left_free_in_sum);
  const double own = tp->rank() + 1;
  const DeviceArray<float> x(Numbers(kShape.rows * kShape.in, 0.3), device);
  const DeviceArray<float> weight(Numbers(kShape.out * kShape.in, 0.7 * own), device);
  const DeviceArray<float> dy(Numbers(kShape.rows * kShape.out, 0.9 * own), device);
  const DeviceArray<float> dx(outcome.dx, device);
  const DeviceArray<float> dweight(outcome.dweight, device);
  ChunkedRows rows(kShape.rows, kShape.in, is_split, *tp, chunks, beside ? &device : nullptr);
  const Linear<float> layer = {.shape = kShape, .weight = weight.data()};
  CONVENE_RETURN_IF_ERROR(ColumnParallelBackward(layer, x.data(), dy.data(), dx.data(),
                                                 {.data = dweight.data(), .adds = false}, rows,
                                                 device.compute()));
  CONVENE_RETURN_IF_ERROR(rows.Finish(dx.data(), device.compute()));
  outcome.left_free = device.compute().left_free();
  outcome.dx = dx.Fetch();
  outcome.dweight = dweight.Fetch();
  return absl::OkStatus();
}

std::vector<Outcome> OnAllRanks(bool is_split, bool beside, int chunks = 1) {
  const auto places = testing::Places::Make(kLayout);
  REQUIRE_OK(places);
  std::vector<Outcome> outcomes(kLayout.world_size());
  for (const absl::Status& end : (*places)->OnEveryRank([&](int rank) {
         return Backward((**places)[rank], is_split, beside, chunks, outcomes[rank]);
       })) {
    REQUIRE_OK(end);
  }
  return outcomes;
}

TEST_CASE("a sum beside the weight's gradient gives the bits of one before it") {
  if (!testing::HasPlacesOrSkips(kLayout.world_size())) return;
  const std::vector<Outcome> beside = OnAllRanks(/*is_split=*/false, true);
  const std::vector<Outcome> before = OnAllRanks(/*is_split=*/false, false);
  for (int rank = 0; rank < 2; ++rank) {
    CHECK(beside[rank].dx == before[rank].dx);
    CHECK(AreSame(beside[rank].dweight, before[rank].dweight));
  }
  CHECK(beside[0].dx == beside[1].dx);  // the sum, on both
  CHECK(beside[0].dweight != beside[1].dweight);
  CHECK(beside[0].left_free_in_sum == kCollectiveMultiprocessors);
  CHECK(beside[0].left_free == 0);  // again
  CHECK(before[0].left_free_in_sum == 0);
  for (const Outcome& outcome : beside) {
    for (const float value : outcome.dx) CHECK(std::isfinite(value));
    for (const float value : outcome.dweight) CHECK(std::isfinite(value));
  }
}

TEST_CASE("a rank with half of the rows has its half of the sum, and can gather the other") {
  if (!testing::HasPlacesOrSkips(kLayout.world_size())) return;
  const std::vector<Outcome> whole = OnAllRanks(/*is_split=*/false, true);
  const std::vector<Outcome> split = OnAllRanks(/*is_split=*/true, true);
  constexpr int kHalf = kShape.rows * kShape.in / 2;
  for (int rank = 0; rank < 2; ++rank) {
    CHECK(split[rank].dweight == whole[rank].dweight);
    for (int i = rank * kHalf; i < (rank + 1) * kHalf; ++i) {
      CHECK(split[rank].dx[i] == whole[rank].dx[i]);
    }
  }
  const auto places = testing::Places::Make(kLayout);
  REQUIRE_OK(places);
  std::vector<std::vector<float>> gathered(2, std::vector<float>(kHalf * 2, NAN));
  for (const absl::Status& end : (*places)->OnEveryRank([&](int rank) -> absl::Status {
         auto& [device, communicators, memory] = (**places)[rank];
         const ResidualRows rows(kShape.rows, kShape.in, /*is_split=*/true, *communicators.tp);
         const auto first = whole[0].dx.begin() + static_cast<ptrdiff_t>(rank) * kHalf;
         const DeviceArray<float> all(gathered[rank], *device);
         testing::Put(std::vector<float>(first, first + kHalf), rows.Own(all.data()), *device);
         CONVENE_RETURN_IF_ERROR(rows.Gather(all.data(), device->compute()));
         gathered[rank] = all.Fetch();
         return absl::OkStatus();
       })) {
    REQUIRE_OK(end);
  }
  for (const std::vector<float>& all : gathered) CHECK(all == whole[0].dx);
}

// Results of a rank's layers: the rows that it holds, by their number among all rows, of what is
// summed; all rows of the rest.
struct LayersOutcome {
  std::map<int, std::vector<float>> sum_forward, sum_backward;
  std::vector<float> column_forward, row_dx, row_dweight, column_dweight;
  std::vector<float> row_adapter, column_adapter;  // gradients of all A, and of all B
};

std::map<int, std::vector<float>> OwnRows(const ChunkedRows& rows, const std::vector<float>& all,
                                          int columns) {
  std::map<int, std::vector<float>> own;
  for (int c = 0; c < rows.chunks(); ++c) {
    const ptrdiff_t first = (rows.Own(all.data(), c) - all.data()) / columns;
    for (ptrdiff_t row = first; row < first + rows.chunk().own(); ++row) {
      const auto begin = all.begin() + row * columns;
      own[static_cast<int>(row)] = {begin, begin + columns};
    }
  }
  return own;
}

// Small whole numbers, so that sums are the same in any order: a product of fewer rows may be
// another one of the library's.
std::vector<float> WholeNumbers(int count, int factor) {
  std::vector<float> numbers;
  for (int i = 0; i < count; ++i) numbers.push_back(static_cast<float>((i * factor) % 11 - 5));
  return numbers;
}

// Two adapters of rank 2, on the first and on the last third of the outputs, with their scratch.
class Adapters {
 public:
  Adapters(const LinearShape& shape, int factor, Device& device)
      : part_(shape.out / 3),
        a_(WholeNumbers(4 * shape.in, factor), device),
        b_(WholeNumbers(4 * part_, factor + 1), device),
        da_(std::vector<float>(4 * shape.in, NAN), device),
        db_(std::vector<float>(4 * part_, NAN), device),
        scratch_(std::vector<float>(8 * (shape.out + shape.rows) + 4 * part_, NAN), device),
        parts_{{0, part_, 0, 0}, {shape.out - part_, part_, part_, 2}},
        low_rank_({.parts = parts_, .rank = 2, .ranks = 4, .scale = 2}) {
    low_rank_.a = a_.data();
    low_rank_.b = b_.data();
    low_rank_.da = {.data = da_.data(), .adds = false};
    low_rank_.db = {.data = db_.data(), .adds = false};
    low_rank_.spread = scratch_.data();
    low_rank_.inner = low_rank_.spread + 4 * shape.out;
    low_rank_.inner_gradient = low_rank_.inner + 4 * shape.rows;
    low_rank_.spread_gradient = low_rank_.inner_gradient + 4 * shape.rows;
    low_rank_.b_gradient = low_rank_.spread_gradient + 4 * shape.out;
    low_rank_.device = &device;
  }

  const LowRank<float>& low_rank() const { return low_rank_; }
  std::vector<float> Gradients() const {
    std::vector<float> gradients = da_.Fetch();
    for (const float value : db_.Fetch()) gradients.push_back(value);
    return gradients;
  }

 private:
  const int part_;
  const DeviceArray<float> a_, b_, da_, db_, scratch_;
  const std::vector<LowRankPart> parts_;
  LowRank<float> low_rank_;
};

// Each product reads what a collective beside brings, and each collective what a product makes.
absl::Status RunLayers(testing::Place& place, bool is_split, int chunks, bool beside,
                       LayersOutcome& outcome) {
  Device& device = *place.device;
  Stream& stream = device.compute();
  Collective& tp = *place.communicators.tp;
  constexpr LinearShape kColumn = {.rows = 12, .out = 6, .in = 7};
  constexpr LinearShape kRow = {.rows = 12, .out = 7, .in = 6};
  const int own = tp.rank() + 1;
  const DeviceArray<float> wide(WholeNumbers(12 * 7, 3), device);  // the same on all ranks
  const DeviceArray<float> narrow(WholeNumbers(12 * 6, 4 + own), device);
  const DeviceArray<float> weight(WholeNumbers(7 * 6, 7 + own), device);
  const Adapters column_adapters(kColumn, 2 + own, device), row_adapters(kRow, 3, device);
  const Linear<float> column = {
      .shape = kColumn, .weight = weight.data(), .low_rank = column_adapters.low_rank()};
  const Linear<float> row = {
      .shape = kRow, .weight = weight.data(), .low_rank = row_adapters.low_rank()};
  const std::vector<float> none_wide(12 * 7, NAN), none_narrow(12 * 6, NAN), none_weight(42, NAN);
  const DeviceArray<float> y(none_narrow, device), sum(none_wide, device), dx(none_wide, device),
      gathered(none_wide, device), row_dx(none_narrow, device), row_dweight(none_weight, device),
      column_dweight(none_weight, device);
  ChunkedRows rows(12, 7, is_split, tp, chunks, beside ? &device : nullptr);
  for (int c = 0; c < chunks; ++c) {
    device.Copy(rows.Own(wide.data(), c), rows.Own(gathered.data(), c),
                rows.chunk().own_count() * sizeof(float), stream);
    CONVENE_RETURN_IF_ERROR(rows.StartGather(gathered.data(), c, stream));
  }
  CONVENE_RETURN_IF_ERROR(ColumnParallelForward(column, gathered.data(), y.data(), rows, stream));
  CONVENE_RETURN_IF_ERROR(RowParallelForward(row, narrow.data(), sum.data(), rows, stream));
  CONVENE_RETURN_IF_ERROR(rows.Finish(sum.data(), stream));
  CONVENE_RETURN_IF_ERROR(rows.StartGather(gathered.data(), stream));
  CONVENE_RETURN_IF_ERROR(RowParallelBackward(row, narrow.data(), gathered.data(), row_dx.data(),
                                              {row_dweight.data(), false}, rows, stream));
  CONVENE_RETURN_IF_ERROR(ColumnParallelBackward(column, gathered.data(), narrow.data(), dx.data(),
                                                 {column_dweight.data(), false}, rows, stream));
  CONVENE_RETURN_IF_ERROR(rows.Finish(dx.data(), stream));
  outcome = {OwnRows(rows, sum.Fetch(), 7),
             OwnRows(rows, dx.Fetch(), 7),
             y.Fetch(),
             row_dx.Fetch(),
             row_dweight.Fetch(),
             column_dweight.Fetch(),
             row_adapters.Gradients(),
             column_adapters.Gradients()};
  return absl::OkStatus();
}

std::vector<LayersOutcome> LayersOnAllRanks(bool is_split, int chunks, bool beside) {
  const auto places = testing::Places::Make(kLayout);
  REQUIRE_OK(places);
  std::vector<LayersOutcome> outcomes(kLayout.world_size());
  for (const absl::Status& end : (*places)->OnEveryRank([&](int rank) {
         return RunLayers((**places)[rank], is_split, chunks, beside, outcomes[rank]);
       })) {
    REQUIRE_OK(end);
  }
  return outcomes;
}

TEST_CASE("layers whose rows go in chunks give what whole rows give") {
  if (!testing::HasPlacesOrSkips(kLayout.world_size())) return;
  const std::vector<LayersOutcome> whole = LayersOnAllRanks(/*is_split=*/false, 1, false);
  for (const bool is_split : {false, true}) {
    for (const int chunks : {1, 2, 3}) {
      for (const bool beside : {false, true}) {
        if (testing::OnGpus() && !beside) continue;
        INFO((is_split ? "split, " : "") << chunks << (beside ? ", beside" : ""));
        const std::vector<LayersOutcome> cut = LayersOnAllRanks(is_split, chunks, beside);
        std::set<int> held;
        for (int rank = 0; rank < kLayout.world_size(); ++rank) {
          for (const auto& [row, values] : cut[rank].sum_forward) {
            held.insert(row);
            CHECK(values == whole[rank].sum_forward.at(row));
            CHECK(cut[rank].sum_backward.at(row) == whole[rank].sum_backward.at(row));
          }
          CHECK(cut[rank].sum_forward.size() == (is_split ? 6 : 12));
          CHECK(cut[rank].column_forward == whole[rank].column_forward);
          CHECK(cut[rank].row_dx == whole[rank].row_dx);
          CHECK(cut[rank].row_dweight == whole[rank].row_dweight);
          CHECK(cut[rank].column_dweight == whole[rank].column_dweight);
          CHECK(cut[rank].row_adapter == whole[rank].row_adapter);
          CHECK(cut[rank].column_adapter == whole[rank].column_adapter);
        }
        CHECK(held.size() == 12);
      }
    }
  }
}

}  // namespace
}  // namespace convene::worker
