#include "worker_runtime/shard/whole_matrices.h"

#include <algorithm>
#include <numeric>

#include "absl/container/inlined_vector.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/ops/elementwise.h"

namespace convene::worker {
namespace {

static_assert(kParameterAlignment % kFlagBlock == 0, "a slot is whole blocks of flags");

using Matrices = std::vector<std::vector<const PlacedParameter*>>;

Matrices MatricesOf(const Placement& placement, bool are_used) {
  Matrices matrices(placement.buckets.size());
  if (!are_used) return matrices;
  for (const PlacedParameter& parameter : placement.parameters) {
    if (!parameter.is_matrix()) continue;
    const auto holds = [&](const ParameterBucket& bucket) {
      return parameter.flat_offset < bucket.end();
    };
    const auto bucket = std::find_if(placement.buckets.begin(), placement.buckets.end(), holds);
    matrices[bucket - placement.buckets.begin()].push_back(&parameter);
  }
  return matrices;
}

int64_t CountOf(const PlacedParameter& matrix) {
  return matrix.matrix_rows * matrix.global_shape[1];
}

// Over all matrices.
template <typename Size>
int64_t Largest(const Matrices& matrices, const Size& size) {
  int64_t largest = 0;
  for (const auto& of_bucket : matrices) {
    for (const PlacedParameter* matrix : of_bucket) largest = std::max(largest, size(*matrix));
  }
  return largest;
}

int64_t ShorterSide(const PlacedParameter& matrix) {
  return std::min(matrix.matrix_rows, matrix.global_shape[1]);
}

// Of the buckets with matrices.
int64_t LargestBucket(const Matrices& matrices, const Placement& placement) {
  int64_t largest = 0;
  for (size_t i = 0; i < matrices.size(); ++i) {
    if (!matrices[i].empty()) largest = std::max(largest, placement.buckets[i].count);
  }
  return largest;
}

MatrixSizes SizesOf(const Matrices& matrices, const Placement& placement) {
  return {.largest = Largest(matrices, CountOf),
          .shorter_side = Largest(matrices, ShorterSide),
          .bucket = LargestBucket(matrices, placement)};
}

// A product of the iteration takes so many multiplications.
double CostOf(const PlacedParameter& matrix) {
  return static_cast<double>(CountOf(matrix)) * static_cast<double>(ShorterSide(matrix));
}

std::vector<std::vector<MatrixWave>> WavesOfBuckets(const Matrices& matrices,
                                                    const BucketStore::Groups& groups) {
  std::vector<std::vector<MatrixWave>> waves;
  for (const auto& of_bucket : matrices) {
    std::vector<double> costs;
    for (const PlacedParameter* matrix : of_bucket) costs.push_back(CostOf(*matrix));
    waves.push_back(
        WavesOf(costs, groups.tp.size(), groups.dp.size() * groups.dp_replicate.size()));
  }
  return waves;
}

// From float to elements of any type, or back.
void Round(absl::Span<const float> from, Elements to, Stream& stream) {
  const auto count = static_cast<int64_t>(from.size());
  if (to.dtype == DType::kFloat32) return Copy(count, from.data(), to.As<float>().data(), stream);
  ToBFloat16(count, from.data(), to.As<BFloat16>().data(), stream);
}
void Widen(Elements from, absl::Span<float> to, Stream& stream) {
  const auto count = static_cast<int64_t>(to.size());
  if (from.dtype == DType::kFloat32) return Copy(count, from.As<float>().data(), to.data(), stream);
  ToFloat(count, from.As<BFloat16>().data(), to.data(), stream);
}

}  // namespace

std::vector<MatrixWave> WavesOf(absl::Span<const double> costs, int wave_size, int owners) {
  std::vector<int> order(costs.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return costs[a] > costs[b]; });
  std::vector<double> loads(owners);
  std::vector<MatrixWave> waves;
  for (size_t i = 0; i < order.size(); ++i) {
    if (i % wave_size == 0) {
      const auto least = std::min_element(loads.begin(), loads.end());
      *least += costs[order[i]];
      waves.push_back({.matrices = {}, .owner = static_cast<int>(least - loads.begin())});
    }
    waves.back().matrices.push_back(order[i]);
  }
  return waves;
}

WholeMatrices::WholeMatrices(BucketStore& store, const MatrixRule* rule, Device& device,
                             Arena& arena)
    : store_(store),
      rule_(rule),
      device_(device),
      matrices_(MatricesOf(store.placement(), rule != nullptr)),
      waves_(WavesOfBuckets(matrices_, store.groups())),
      memory_(MatrixMemoryOf(SizesOf(matrices_, store.placement()), store.groups().tp.size(),
                             store.dtype())),
      slot_(memory_.slot),
      bucket_(arena.Declare<char>("matrices/bucket", memory_.bucket, ArenaPart::kCollective)),
      wave_(arena.Declare<char>("matrices/whole", memory_.whole, ArenaPart::kCollective)),
      square_(arena.Declare<char>("matrices/square", memory_.square)),
      product_(arena.Declare<float>("matrices/product", memory_.product / sizeof(float))),
      sum_of_squares_(arena.Declare<double>("matrices/sum", rule == nullptr ? 0 : 1)),
      flags_(arena.Declare<uint8_t>("matrices/flags", slot_ / kFlagBlock)),
      workspace_(arena.Declare<char>(
          "matrices/workspace",
          rule == nullptr ? 0 : SumOfSquaresWorkspaceBytes(slot_, device.kind()))) {}

void WholeMatrices::Bind() {
  const std::vector<uint8_t> flags(flags_.size(), kOwned);
  device_.Copy(flags.data(), At(flags_), flags.size(), device_.compute());
}

void WholeMatrices::CopySlice(const PlacedParameter& matrix, Elements slice, Elements whole,
                              bool to_whole) {
  const int64_t rows = matrix.extent[0];
  const auto columns = static_cast<int>(matrix.extent[1]);
  const int64_t stride = matrix.global_shape[1];
  const int64_t first = (matrix.offset[0] - matrix.matrix_begin) * stride + matrix.offset[1];
  const auto copy = [&](auto* in_slice, auto* in_whole) {
    if (to_whole)
      return CopyRows(rows, columns, in_slice, columns, in_whole, stride, device_.compute());
    CopyRows(rows, columns, in_whole, stride, in_slice, columns, device_.compute());
  };
  if (whole.dtype == DType::kFloat32) {
    return copy(slice.As<float>().data(), whole.As<float>().data() + first);
  }
  copy(slice.As<BFloat16>().data(), whole.As<BFloat16>().data() + first);
}

absl::Status WholeMatrices::TransformWave(absl::Span<const PlacedParameter* const> matrices,
                                          Elements bucket, int64_t bucket_begin) {
  Stream& stream = device_.compute();
  Collective& tp = store_.groups().tp;
  const Elements wave(At(wave_), tp.size() * slot_, store_.dtype());
  const auto slice_of = [&](const PlacedParameter& matrix) {
    return bucket.Slice(matrix.flat_offset - bucket_begin, matrix.count());
  };
  device_.Zero(wave.data, wave.size_bytes(), stream);
  for (size_t i = 0; i < matrices.size(); ++i) {
    // Of copies one counts.
    if (!matrices[i]->owned) continue;
    CopySlice(*matrices[i], slice_of(*matrices[i]), wave.Slice(i * slot_, slot_), true);
  }
  CONVENE_RETURN_IF_ERROR(tp.ReduceScatter(wave, ReduceOp::kSum, stream));
  if (tp.rank() < static_cast<int>(matrices.size())) {
    const PlacedParameter& mine = *matrices[tp.rank()];
    const int64_t count = CountOf(mine);
    device_.Zero(At(product_) + count, (slot_ - count) * sizeof(float), stream);
    device_.Zero(At(sum_of_squares_), sizeof(double), stream);
    rule_->Transform(
        {.rows = static_cast<int>(mine.matrix_rows),
         .columns = static_cast<int>(mine.global_shape[1]),
         .values = wave.Slice(tp.rank() * slot_, slot_),
         .square = Elements(At(square_), square_.size() / SizeOf(wave.dtype), wave.dtype),
         .product = At(product_),
         .sum_of_squares = At(sum_of_squares_),
         .flags = At(flags_),
         .workspace = {At(workspace_), workspace_.size()}},
        stream);
  }
  CONVENE_RETURN_IF_ERROR(tp.AllGather(wave, stream));
  for (size_t i = 0; i < matrices.size(); ++i) {
    CopySlice(*matrices[i], slice_of(*matrices[i]), wave.Slice(i * slot_, slot_), false);
  }
  return absl::OkStatus();
}

absl::Status WholeMatrices::Transform(size_t bucket_index) {
  const ShardPart& part = store_.shard().parts[bucket_index];
  const int64_t begin = part.bucket.begin;
  const auto& matrices = matrices_[bucket_index];
  if (matrices.empty()) return absl::OkStatus();
  Stream& stream = device_.compute();
  const BucketStore::Groups& groups = store_.groups();
  const Elements bucket(At(bucket_), part.bucket.count, store_.dtype());
  const Elements own = bucket.Slice(part.flat_begin - begin, part.count);
  Round(store_.GradientsOf(part), own, stream);
  CONVENE_RETURN_IF_ERROR(groups.dp_gather.AllGather(bucket, stream));
  const int me = groups.dp.rank() + groups.dp.size() * groups.dp_replicate.rank();
  absl::InlinedVector<const PlacedParameter*, 16> wave;
  for (const auto& [members, owner] : waves_[bucket_index]) {
    wave.clear();
    for (const int number : members) wave.push_back(matrices[number]);
    if (owner == me) {
      CONVENE_RETURN_IF_ERROR(TransformWave(wave, bucket, begin));
      continue;
    }
    for (const PlacedParameter* matrix : wave) {
      const Elements slice = bucket.Slice(matrix->flat_offset - begin, matrix->count());
      device_.Zero(slice.data, slice.size_bytes(), stream);
    }
  }
  CONVENE_RETURN_IF_ERROR(groups.dp.ReduceScatter(bucket, ReduceOp::kSum, stream));
  CONVENE_RETURN_IF_ERROR(groups.dp_replicate.AllReduce(own, ReduceOp::kSum, stream));
  Widen(own, store_.GradientsOf(part), stream);
  return absl::OkStatus();
}

}  // namespace convene::worker
