// Attention on a GPU, by cuDNN and by our own kernels.
#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <type_traits>
#include <vector>

#include "tools/base/testing/status_testing.h"
#include "worker_runtime/device/cuda/queue.h"
#include "worker_runtime/device/cuda/testing/cuda_testing.h"
#include "worker_runtime/device/cuda/testing/gpu_testing.h"
#include "worker_runtime/device/dtype.h"
#include "worker_runtime/ops/attention.h"
#include "worker_runtime/ops/cuda/attention/attention_plans.h"
#include "worker_runtime/ops/cuda/attention/attention_split.h"
#include "worker_runtime/ops/cuda/attention/workspace_bytes.h"
#include "worker_runtime/ops/cuda/cuda_ops.h"
#include "worker_runtime/ops/cuda/testing/kernel_testing.h"
#include "worker_runtime/ops/testing/ops_testing.h"
#include "worker_runtime/ops/testing/reference/attention.h"

namespace convene::worker::cuda {
namespace {

using convene::testing::HasGpuOrSkips;
using testing::TestQueue;
using worker::testing::As;
using worker::testing::Distance;
using worker::testing::DocumentBegins;
using worker::testing::kBackward;
using worker::testing::kForward;
using worker::testing::Load;
using worker::testing::NumbersOf;
using worker::testing::Outputs;
using worker::testing::Store;

size_t Tokens(const AttentionShape& shape) {
  return size_t{1} * shape.batch * shape.sequence_length;
}
size_t QkvCount(const AttentionShape& shape) { return Tokens(shape) * shape.qkv_width(); }
size_t OutCount(const AttentionShape& shape) {
  return Tokens(shape) * shape.heads * shape.head_size;
}
size_t StatisticsCount(const AttentionShape& shape) { return Tokens(shape) * shape.heads; }

// dqkv as three outputs, each judged alone: their scales differ.
template <typename Real>
Outputs<Real> SplitQkv(const AttentionShape& shape, const std::vector<Real>& qkv) {
  Outputs<Real> parts(3);
  const std::array<int, 3> widths = {shape.heads * shape.head_size,
                                     shape.kv_heads * shape.head_size,
                                     shape.kv_heads * shape.head_size};
  size_t begin = 0;
  while (begin < qkv.size()) {
    for (size_t part = 0; part < parts.size(); ++part) {
      parts[part].insert(parts[part].end(), qkv.begin() + begin,
                         qkv.begin() + begin + widths[part]);
      begin += widths[part];
    }
  }
  return parts;
}

// The arrays that the host writes for packed rows.
struct HostDocuments {
  HostDocuments(const AttentionShape& shape, const std::vector<int32_t>& begins)
      : begins(begins), table(shape.packed ? DocumentTableBytes(shape) / sizeof(int64_t) : 0) {}

  std::vector<int32_t> begins;
  std::vector<int64_t> table;
};

// The same on the GPU.
class DocumentsOnGpu {
 public:
  DocumentsOnGpu(const AttentionShape& shape, HostDocuments host)
      : begins_(host.begins), table_(host.table.size()) {
    if (!shape.packed) return;
    const size_t bytes = WriteDocumentTable(shape, host.begins.data(), host.table.data(),
                                            table_.data(), &documents_);
    Gpu().Copy(host.table.data(), table_.data(), bytes, Gpu().compute());
    REQUIRE_OK(Gpu().Synchronize(absl::Seconds(60)));
    documents_.begin = begins_.data();
  }
  const Documents& get() const { return documents_; }

 private:
  OnGpu<int32_t> begins_;
  OnGpu<int64_t> table_;
  Documents documents_;
};

// Of packed rows a token's heads lie side by side on a GPU, in the reference never.
std::vector<float> HeadsFirst(const AttentionShape& shape, const std::vector<float>& statistics) {
  if (!shape.packed) return statistics;
  std::vector<float> result;
  for (int batch = 0; batch < shape.batch; ++batch) {
    for (int head = 0; head < shape.heads; ++head) {
      for (int position = 0; position < shape.sequence_length; ++position) {
        const size_t token = size_t{1} * batch * shape.sequence_length + position;
        result.push_back(statistics[token * shape.heads + head]);
      }
    }
  }
  return result;
}

// Forward and backward pass: out, log_sum_exp, dquery, dkey, dvalue.
template <typename T>
Outputs<float> AttentionOnGpu(TestQueue& queue, const AttentionShape& shape,
                              const std::vector<float>& qkv, const std::vector<float>& dout,
                              const std::vector<int32_t>& begins = {}, bool has_workspace = true) {
  OnGpu<T> gpu_qkv(Store<T>(qkv));
  OnGpu<T> gpu_dout(Store<T>(dout));
  OnGpu<T> gpu_out(OutCount(shape));
  OnGpu<T> gpu_dqkv(QkvCount(shape));
  OnGpu<float> log_sum_exp(StatisticsCount(shape));
  const size_t workspace_bytes = has_workspace ? AttentionWorkspaceBytes<T>(shape) : 0;
  OnGpu<char> memory(workspace_bytes);
  const Workspace workspace = {memory.data(), workspace_bytes};
  const DocumentsOnGpu documents(shape, HostDocuments(shape, begins));
  Stream stream = queue.stream();
  const auto heads = Fused<const T>(shape, gpu_qkv.data());
  cuda::AttentionForward(shape, documents.get(), {}, heads, gpu_out.data(), log_sum_exp.data(),
                         workspace, stream);
  cuda::AttentionBackward<T>(shape, documents.get(), {}, heads, gpu_out.data(), log_sum_exp.data(),
                             gpu_dout.data(), /*adds=*/false, Fused(shape, gpu_dqkv.data()),
                             workspace, stream);
  queue.Finish();
  Outputs<float> outputs = SplitQkv(shape, Load(gpu_dqkv.Read()));
  outputs.insert(outputs.begin(), {Load(gpu_out.Read()), HeadsFirst(shape, log_sum_exp.Read())});
  return outputs;
}

template <typename Real>
Outputs<Real> Reference(const AttentionShape& shape, const std::vector<float>& qkv,
                        const std::vector<float>& dout, const std::vector<int32_t>& begins) {
  std::vector<Real> out(OutCount(shape));
  std::vector<Real> log_sum_exp(StatisticsCount(shape));
  std::vector<Real> dqkv(QkvCount(shape));
  const int32_t* const document_begin = shape.packed ? begins.data() : nullptr;
  const auto values = As<Real>(qkv);
  const auto heads = Fused(shape, values.data());
  reference::AttentionForward(shape, document_begin, {}, heads, out.data(), log_sum_exp.data());
  reference::AttentionBackwardAdd(shape, document_begin, {}, heads, out.data(), log_sum_exp.data(),
                                  As<Real>(dout).data(), Fused(shape, dqkv.data()));
  Outputs<Real> outputs = SplitQkv(shape, dqkv);
  outputs.insert(outputs.begin(), {out, log_sum_exp});
  return outputs;
}

float Rounded(float value) { return static_cast<float>(BFloat16(value)); }

// The plain computation in bfloat16, as a framework without fused attention makes it: each matrix
// that it stores (scores, weights, their gradients, the results) is rounded, sums are in float.
Outputs<float> PlainBFloat16(const AttentionShape& shape, const std::vector<float>& qkv,
                             const std::vector<float>& dout, const std::vector<int32_t>& begins) {
  const int32_t* const document_begin = shape.packed ? begins.data() : nullptr;
  const float scale = 1.0f / std::sqrt(static_cast<float>(shape.head_size));
  const auto heads = Fused(shape, qkv.data());
  std::vector<float> out(OutCount(shape));
  std::vector<float> log_sum_exp(StatisticsCount(shape));
  std::vector<float> dqkv(QkvCount(shape), 0.0f);
  const auto gradients = Fused(shape, dqkv.data());
  for (int batch = 0; batch < shape.batch; ++batch) {
    for (int head = 0; head < shape.heads; ++head) {
      const reference::AttentionRow<float> row = {shape, document_begin, {}, heads, batch, head};
      for (ptrdiff_t i = 0; i < shape.sequence_length; ++i) {
        const std::vector<ptrdiff_t> keys = row.SeenKeys(i);
        std::vector<float> weights(i + 1);
        std::vector<float> dweights(i + 1);
        float largest = -INFINITY;
        for (const ptrdiff_t j : keys) {
          weights[j] =
              Rounded(scale * reference::AttentionDot(shape.head_size, row.Query(i), row.Key(j)));
          dweights[j] =
              Rounded(reference::AttentionDot(shape.head_size, &dout[row.Out(i)], row.Value(j)));
          largest = std::max(largest, weights[j]);
        }
        float sum = 0;
        for (const ptrdiff_t j : keys) {
          sum += weights[j] = std::exp(weights[j] - largest);
        }
        log_sum_exp[row.LogSumExp(i)] = largest + std::log(sum);
        float delta = 0;
        for (const ptrdiff_t j : keys) {
          weights[j] = Rounded(weights[j] / sum);
          delta += weights[j] * dweights[j];
        }
        float* const result = &out[row.Out(i)];
        for (const ptrdiff_t j : keys) {
          for (ptrdiff_t d = 0; d < shape.head_size; ++d) result[d] += weights[j] * row.Value(j)[d];
        }
        std::transform(result, result + shape.head_size, result, Rounded);
        for (const ptrdiff_t j : keys) {
          const float dscore = Rounded(weights[j] * (dweights[j] - delta));
          for (ptrdiff_t d = 0; d < shape.head_size; ++d) {
            row.Head(gradients.queries, i, head)[d] += scale * dscore * row.Key(j)[d];
            row.Head(gradients.keys, j, row.kv_head())[d] += scale * dscore * row.Query(i)[d];
            row.Head(gradients.values, j, row.kv_head())[d] += weights[j] * dout[row.Out(i) + d];
          }
        }
      }
    }
  }
  for (float& value : dqkv) value = Rounded(value);
  Outputs<float> outputs = SplitQkv(shape, dqkv);
  outputs.insert(outputs.begin(), {out, log_sum_exp});
  return outputs;
}

template <typename T>
void CheckAttention(TestQueue& queue, AttentionShape shape,
                    const std::vector<int>& document_lengths = {}) {
  CAPTURE(shape.batch, shape.sequence_length, shape.heads, shape.kv_heads, shape.head_size,
          shape.deterministic, document_lengths);
  std::vector<int32_t> begins;
  if (!document_lengths.empty()) {
    shape.packed = true;
    begins = DocumentBegins(shape.batch, shape.sequence_length, document_lengths);
  }
  const auto qkv = NumbersOf<T>(QkvCount(shape), 1, 2.0f);
  const auto dout = NumbersOf<T>(OutCount(shape), 2);
  const Outputs<double> truth = Reference<double>(shape, qkv, dout, begins);
  const Outputs<float> plain = std::is_same_v<T, float> ? Reference<float>(shape, qkv, dout, begins)
                                                        : PlainBFloat16(shape, qkv, dout, begins);
  const Outputs<float> actual = AttentionOnGpu<T>(queue, shape, qkv, dout, begins);
  for (size_t output = 0; output < truth.size(); ++output) {
    CAPTURE(output);
    const double factor = output < 2 ? kForward : kBackward;
    // One unit in the last place: where the plain computation happens to be exact.
    const bool is_float = output == 1 || std::is_same_v<T, float>;
    const double unit = is_float ? 0x1p-23 : 0x1p-8;
    const double floor = unit * Distance(std::vector<double>(truth[output].size()), truth[output]);
    CHECK(Distance(actual[output], truth[output]) <=
          factor * Distance(plain[output], truth[output]) + floor);
  }
  if (shape.deterministic) CHECK(AttentionOnGpu<T>(queue, shape, qkv, dout, begins) == actual);
}

std::vector<AttentionShape> Shapes() {
  std::vector<AttentionShape> shapes;
  for (const auto& [batch, length, heads, kv_heads, head_size] : std::vector<std::array<int, 5>>{
           {1, 3, 1, 1, 64},
           {1, 128, 2, 2, 64},
           {2, 256, 4, 2, 64},
           {2, 192, 4, 1, 128},
           {3, 37, 4, 2, 64},
           {1, 129, 6, 2, 128},
           {2, 100, 2, 1, 256},
           {1, 65, 3, 3, 80},
           {2, 33, 4, 2, 18},
           {1, 50, 2, 2, 2},
       }) {
    for (const bool deterministic : {false, true}) {
      shapes.push_back({batch, length, heads, kv_heads, head_size, deterministic});
    }
  }
  return shapes;
}

// At the edges of tiles (16 and 32 tokens, cuDNN's of 64 and 128), one beside them and far from
// them.
std::vector<std::vector<int>> DocumentLengths() {
  return {{2, 1, 13, 5}, {16}, {32}, {33, 31}, {64, 1, 63}, {129}, {1000}};
}

// A case that goes through cuDNN is [slow]: it compiles graphs for seconds, and under
// compute-sanitizer (tools/gpu) for minutes, to watch kernels that are not ours.

TEST_CASE("one document a row has the bits of rows that are not packed, by our own kernels") {
  if (!HasGpuOrSkips()) return;
  TestQueue queue;
  queue.queue().plans<AttentionPlans>().ForbidCudnn();
  AttentionShape shape = {2, 145, 4, 2, 64};
  const auto qkv = NumbersOf<float>(QkvCount(shape), 1, 2.0f);
  const auto dout = NumbersOf<float>(OutCount(shape), 2);
  const auto plain = AttentionOnGpu<float>(queue, shape, qkv, dout);
  shape.packed = true;
  const auto begins = DocumentBegins(shape.batch, shape.sequence_length, {145});
  CHECK(AttentionOnGpu<float>(queue, shape, qkv, dout, begins) == plain);
}

TEST_CASE("cuDNN takes packed Llamas with one document and with many, within the planned scratch",
          "[slow][cudnn]") {
  if (!HasGpuOrSkips()) return;
  TestQueue queue;
  auto& plans = queue.queue().plans<AttentionPlans>();
  AttentionShape shape = {4, 2048, 32, 8, 64};
  shape.packed = true;
  for (const int count : {4, 64, 1024}) {
    CAPTURE(count);
    for (const AttentionPass pass : {AttentionPass::kForward, AttentionPass::kBackward}) {
      CHECK_OK(plans.Support(shape, FusedStrides(shape), count, pass));
      CHECK(plans.WorkspaceBytes(shape, FusedStrides(shape), count, pass) <=
            CudnnWorkspaceBytes(shape));
    }
  }
}

TEST_CASE("our own attention agrees with the reference, in fp32 and bf16, with the same bits twice",
          "[many-barriers]") {
  if (!HasGpuOrSkips()) return;
  TestQueue queue;
  queue.queue().plans<AttentionPlans>().ForbidCudnn();
  for (const AttentionShape& shape : Shapes()) {
    CheckAttention<float>(queue, shape);
    CheckAttention<BFloat16>(queue, shape);
    // Our kernels do the same either way; with the flag they run a second time.
    if (!shape.deterministic) continue;
    for (const std::vector<int>& lengths : DocumentLengths()) {
      CheckAttention<float>(queue, shape, lengths);
      CheckAttention<BFloat16>(queue, shape, lengths);
    }
  }
}

TEST_CASE("windows of any length agree with the reference, of rows and of packed documents",
          "[many-barriers]") {
  if (!HasGpuOrSkips()) return;
  TestQueue queue;
  for (const int window : {2, 5, 16, 33, 64, 130, 500}) {
    AttentionShape shape = {2, 145, 4, 2, 64, /*deterministic=*/true};
    shape.window = window;
    CAPTURE(window);
    CheckAttention<float>(queue, shape);
    CheckAttention<BFloat16>(queue, shape);
    CheckAttention<BFloat16>(queue, shape, {64, 1, 63});
  }
}

TEST_CASE("capped scores agree with the reference, of rows and of packed documents",
          "[many-barriers]") {
  if (!HasGpuOrSkips()) return;
  TestQueue queue;
  for (const float cap : {0.5f, 50.0f}) {
    AttentionShape shape = {2, 145, 4, 2, 64, /*deterministic=*/true};
    shape.score_cap = cap;
    CAPTURE(cap);
    CheckAttention<float>(queue, shape);
    CheckAttention<BFloat16>(queue, shape);
    CheckAttention<BFloat16>(queue, shape, {64, 1, 63});
  }
}

// The sweep: a hundred of cuDNN's graphs. tools/gpu_check runs it apart from the other cases.
TEST_CASE("bf16 attention agrees with the reference by whichever way it goes",
          "[slow][cudnn][sweep]") {
  if (!HasGpuOrSkips()) return;
  TestQueue queue;
  auto& plans = queue.queue().plans<AttentionPlans>();
  // Each new number of documents is a graph of its own, and takes up to seconds to build: a shape
  // meets one list of lengths, deterministic or not.
  const std::vector<std::vector<int>> lengths = DocumentLengths();
  size_t turn = 0;
  for (const AttentionShape& shape : Shapes()) {
    std::printf(
        "batch %d, length %d, heads %d/%d of %d%s: forward %s, backward %s\n", shape.batch,
        shape.sequence_length, shape.heads, shape.kv_heads, shape.head_size,
        shape.deterministic ? ", deterministic" : "",
        plans.Support(shape, FusedStrides(shape), 0, AttentionPass::kForward).ToString().c_str(),
        plans.Support(shape, FusedStrides(shape), 0, AttentionPass::kBackward).ToString().c_str());
    CheckAttention<BFloat16>(queue, shape);
    CheckAttention<BFloat16>(queue, shape, lengths[turn++ / 2 % lengths.size()]);
  }
}

TEST_CASE("cuDNN takes a deterministic backward pass in several calls, and gets the same gradients",
          "[slow][cudnn]") {
  if (!HasGpuOrSkips()) return;
  for (const AttentionShape& shape : {AttentionShape{4, 96, 8, 2, 64, /*deterministic=*/true},
                                      AttentionShape{3, 64, 8, 2, 128, /*deterministic=*/true}}) {
    for (const bool packed : {false, true}) {
      // One key-value head a call; then, of rows that are not packed, one sequence.
      const size_t head = CudnnScoresBytes(shape, packed ? 8 : 1) / shape.kv_heads;
      for (const size_t limit : {head, shape.kv_heads * head}) {
        TestQueue queue;
        queue.queue().plans<AttentionPlans>().LimitScores(limit);
        CheckAttention<BFloat16>(queue, shape,
                                 packed ? std::vector<int>{50, 78} : std::vector<int>{});
      }
    }
  }
}

TEST_CASE("without a workspace cuDNN's scratch is the queue's own, long enough for each shape",
          "[slow][cudnn]") {
  if (!HasGpuOrSkips()) return;
  TestQueue queue;
  for (const int length : {40, 80, 24}) {
    const AttentionShape shape = {2, length, 4, 2, 64, /*deterministic=*/true};
    const auto qkv = NumbersOf<BFloat16>(QkvCount(shape), 1, 2.0f);
    const auto dout = NumbersOf<BFloat16>(OutCount(shape), 2);
    CHECK(AttentionOnGpu<BFloat16>(queue, shape, qkv, dout, {}, /*has_workspace=*/false) ==
          AttentionOnGpu<BFloat16>(queue, shape, qkv, dout));
  }
}

TEST_CASE("cuDNN takes no deterministic backward pass whose smallest part keeps too much",
          "[slow][cudnn]") {
  if (!HasGpuOrSkips()) return;
  TestQueue queue;
  auto& plans = queue.queue().plans<AttentionPlans>();
  const AttentionShape shape = {1, 16384, 32, 8, 64, /*deterministic=*/true};
  CHECK_STATUS(plans.Support(shape, FusedStrides(shape), 0, AttentionPass::kBackward),
               absl::StatusCode::kUnimplemented, "of scores even for the smallest part");
}

TEST_CASE("a lone token attends to itself alone") {
  if (!HasGpuOrSkips()) return;
  TestQueue queue;
  queue.queue().plans<AttentionPlans>().ForbidCudnn();
  const AttentionShape shape = {
      .batch = 3, .sequence_length = 1, .heads = 1, .kv_heads = 1, .head_size = 64};
  const auto qkv = NumbersOf<float>(QkvCount(shape), 1);
  const auto dout = NumbersOf<float>(OutCount(shape), 2);
  const Outputs<float> outputs = AttentionOnGpu<float>(queue, shape, qkv, dout);
  CHECK(outputs[0] == SplitQkv(shape, qkv)[2]);
  for (size_t i = 0; i < dout.size(); ++i) CHECK(outputs[4][i] == Approx(dout[i]).epsilon(1e-5));
  // Its weight is 1 whatever its query and key are: gradients of rounding alone.
  for (const size_t output : {size_t{2}, size_t{3}}) {
    for (const float value : outputs[output]) CHECK(std::abs(value) < 1e-5f);
  }
}

TEST_CASE("cuDNN takes the shapes of Llamas, within the scratch that was planned",
          "[slow][cudnn]") {
  if (!HasGpuOrSkips()) return;
  TestQueue queue;
  auto& plans = queue.queue().plans<AttentionPlans>();
  for (const auto& [batch, length, heads, kv_heads, head_size] :
       std::vector<std::array<int, 5>>{{4, 2048, 32, 8, 64},
                                       {1, 8192, 32, 8, 64},
                                       {2, 4096, 24, 8, 128},
                                       {8, 1024, 12, 12, 64}}) {
    for (const bool deterministic : {false, true}) {
      const AttentionShape shape = {batch, length, heads, kv_heads, head_size, deterministic};
      CAPTURE(batch, length, heads, kv_heads, head_size, deterministic);
      for (const AttentionPass pass : {AttentionPass::kForward, AttentionPass::kBackward}) {
        CHECK_OK(plans.Support(shape, FusedStrides(shape), 0, pass));
        CHECK(plans.WorkspaceBytes(shape, FusedStrides(shape), 0, pass) <=
              CudnnWorkspaceBytes(shape));
      }
    }
  }
}

TEST_CASE("the two ways give the same log_sum_exp, so either may go backward", "[slow]") {
  if (!HasGpuOrSkips()) return;
  const AttentionShape shape = {
      .batch = 1, .sequence_length = 256, .heads = 4, .kv_heads = 2, .head_size = 64};
  const auto qkv = NumbersOf<BFloat16>(QkvCount(shape), 1, 2.0f);
  const auto dout = NumbersOf<BFloat16>(OutCount(shape), 2);
  TestQueue with_cudnn;
  TestQueue without;
  without.queue().plans<AttentionPlans>().ForbidCudnn();
  const auto left = AttentionOnGpu<BFloat16>(with_cudnn, shape, qkv, dout)[1];
  const auto right = AttentionOnGpu<BFloat16>(without, shape, qkv, dout)[1];
  REQUIRE(left.size() == right.size());
  for (size_t i = 0; i < left.size(); ++i) CHECK(left[i] == Approx(right[i]).margin(1e-3));
}

TEST_CASE("a head size that nobody can do is an error of the queue") {
  if (!HasGpuOrSkips()) return;
  TestQueue queue;
  const AttentionShape shape = {
      .batch = 1, .sequence_length = 8, .heads = 1, .kv_heads = 1, .head_size = 258};
  OnGpu<float> qkv(QkvCount(shape));
  OnGpu<float> out(OutCount(shape));
  OnGpu<float> log_sum_exp(StatisticsCount(shape));
  Stream stream = queue.stream();
  cuda::AttentionForward(shape, {}, {}, Fused<const float>(shape, qkv.data()), out.data(),
                         log_sum_exp.data(), {}, stream);
  CHECK_STATUS(queue.queue().status(), absl::StatusCode::kInvalidArgument, "258");
}

TEST_CASE("a token does not see what comes after it, not even a NaN") {
  if (!HasGpuOrSkips()) return;
  TestQueue queue;
  queue.queue().plans<AttentionPlans>().ForbidCudnn();
  const AttentionShape shape = {
      .batch = 1, .sequence_length = 40, .heads = 1, .kv_heads = 1, .head_size = 64};
  auto qkv = NumbersOf<float>(QkvCount(shape), 1);
  const auto dout = NumbersOf<float>(OutCount(shape), 2);
  const size_t last_token = static_cast<size_t>(39) * shape.qkv_width();
  const auto before = AttentionOnGpu<float>(queue, shape, qkv, dout)[0];
  std::fill(qkv.begin() + last_token, qkv.end(), std::nanf(""));
  const auto after = AttentionOnGpu<float>(queue, shape, qkv, dout)[0];
  const size_t last_out = static_cast<size_t>(39) * shape.head_size;
  CHECK(std::equal(before.begin(), before.begin() + last_out, after.begin()));
  CHECK(std::all_of(after.begin() + last_out, after.end(),
                    [](float value) { return std::isnan(value); }));
}

}  // namespace
}  // namespace convene::worker::cuda
