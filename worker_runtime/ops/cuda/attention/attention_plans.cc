#include "worker_runtime/ops/cuda/attention/attention_plans.h"

#include <cuda_runtime.h>
#include <cudnn_frontend.h>

#include <cmath>
#include <cstdint>
#include <exception>
#include <string>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tools/base/check.h"
#include "tools/base/status_macros.h"
#include "tools/base/text.h"
#include "worker_runtime/ops/cuda/attention/workspace_bytes.h"

namespace convene::worker::cuda {
namespace {

namespace fe = cudnn_frontend;
using fe::graph::Graph;
using TensorPointer = std::shared_ptr<fe::graph::Tensor_attributes>;

// Names of a graph's tensors between building and running it.
enum TensorId : int64_t { kQuery = 1, kKey, kValue, kOut, kStats, kDout, kDquery, kDkey, kDvalue };

absl::Status FrontendStatus(fe::error_t error, const char* what) {
  if (error.is_good()) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat("cuDNN attention: ", what, ": ", error.get_message()));
}

// Dimensions and strides are (batch, head, position, element), as cuDNN counts them.
struct Layout {
  std::vector<int64_t> dimensions;
  std::vector<int64_t> strides;
};

// `heads` of the heads of a token in a tensor shaped like qkv: they stay where they are.
Layout PackedHeads(const AttentionShape& shape, int heads) {
  const int64_t width = shape.qkv_width();
  return {{shape.batch, heads, shape.sequence_length, shape.head_size},
          {shape.sequence_length * width, shape.head_size, width, 1}};
}
Layout OutHeads(const AttentionShape& shape) {
  const int64_t width = int64_t{shape.heads} * shape.head_size;
  return {{shape.batch, shape.heads, shape.sequence_length, shape.head_size},
          {shape.sequence_length * width, shape.head_size, width, 1}};
}
Layout Statistics(const AttentionShape& shape) {
  const int64_t length = shape.sequence_length;
  return {{shape.batch, shape.heads, length, 1}, {shape.heads * length, length, 1, 1}};
}

fe::graph::Tensor_attributes Attributes(TensorId id, const char* name, const Layout& layout) {
  return fe::graph::Tensor_attributes()
      .set_name(name)
      .set_uid(id)
      .set_dim(layout.dimensions)
      .set_stride(layout.strides);
}

void MakeOutput(const TensorPointer& tensor, TensorId id, const Layout& layout) {
  tensor->set_output(true).set_uid(id).set_dim(layout.dimensions).set_stride(layout.strides);
}

float Scale(const AttentionShape& shape) {
  return 1.0f / std::sqrt(static_cast<float>(shape.head_size));
}

// cuDNN's statistics are what log_sum_exp has to be: max + ln(sum of exp) of the scaled scores
// (cudnn_frontend/graph_properties.h, SDPA_attributes::set_stats_use_log2, "cuDNN's natural-log
// convention").
void AddForward(const AttentionShape& shape, Graph& graph) {
  const Layout kv = PackedHeads(shape, shape.kv_heads);
  const TensorPointer query =
      graph.tensor(Attributes(kQuery, "query", PackedHeads(shape, shape.heads)));
  const TensorPointer key = graph.tensor(Attributes(kKey, "key", kv));
  const TensorPointer value = graph.tensor(Attributes(kValue, "value", kv));
  const auto options = fe::graph::SDPA_attributes()
                           .set_name("attention_forward")
                           .set_generate_stats(true)
                           .set_attn_scale(Scale(shape))
                           .set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT)
                           .set_diagonal_band_right_bound(0);
  const auto [out, stats] = graph.sdpa(query, key, value, options);
  MakeOutput(out, kOut, OutHeads(shape));
  MakeOutput(stats, kStats, Statistics(shape));
  stats->set_data_type(fe::DataType_t::FLOAT);
}

void AddBackward(const AttentionShape& shape, Graph& graph) {
  const Layout heads = PackedHeads(shape, shape.heads);
  const Layout kv = PackedHeads(shape, shape.kv_heads);
  const TensorPointer query = graph.tensor(Attributes(kQuery, "query", heads));
  const TensorPointer key = graph.tensor(Attributes(kKey, "key", kv));
  const TensorPointer value = graph.tensor(Attributes(kValue, "value", kv));
  const TensorPointer out = graph.tensor(Attributes(kOut, "out", OutHeads(shape)));
  const TensorPointer dout = graph.tensor(Attributes(kDout, "dout", OutHeads(shape)));
  const TensorPointer stats = graph.tensor(
      Attributes(kStats, "stats", Statistics(shape)).set_data_type(fe::DataType_t::FLOAT));
  const auto options = fe::graph::SDPA_backward_attributes()
                           .set_name("attention_backward")
                           .set_attn_scale(Scale(shape))
                           .set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT)
                           .set_diagonal_band_right_bound(0)
                           .set_deterministic_algorithm(shape.deterministic);
  const auto [dquery, dkey, dvalue] =
      graph.sdpa_backward(query, key, value, out, dout, stats, options);
  MakeOutput(dquery, kDquery, heads);
  MakeOutput(dkey, kDkey, kv);
  MakeOutput(dvalue, kDvalue, kv);
}

absl::Status BuildGraph(const AttentionShape& shape, AttentionPass pass, cudnnHandle_t handle,
                        Graph& graph, size_t& workspace_bytes) {
  graph.set_io_data_type(fe::DataType_t::BFLOAT16)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  if (pass == AttentionPass::kForward) {
    AddForward(shape, graph);
  } else {
    AddBackward(shape, graph);
  }
  CONVENE_RETURN_IF_ERROR(
      FrontendStatus(graph.build(handle, {fe::HeurMode_t::A}), "building the graph"));
  int64_t bytes = 0;
  CONVENE_RETURN_IF_ERROR(FrontendStatus(graph.get_workspace_size(bytes), "its workspace"));
  workspace_bytes = static_cast<size_t>(bytes);
  return absl::OkStatus();
}

}  // namespace

struct AttentionPlans::Plan {
  AttentionShape shape;
  AttentionPass pass = AttentionPass::kForward;
  absl::Status support;
  Graph graph;
  size_t workspace_bytes = 0;
};

struct AttentionPlans::Tensor {
  TensorId id;
  const void* data;
};

AttentionPlans::AttentionPlans(Queue& queue) : queue_(queue) {}

AttentionPlans::~AttentionPlans() {
  if (own_scratch_ == nullptr) return;
  queue_.Report(cudaFreeAsync(own_scratch_, queue_.stream()), "cudaFreeAsync");
}

absl::Status AttentionPlans::Support(const AttentionShape& shape, AttentionPass pass) {
  if (forbidden_) return absl::UnimplementedError("cuDNN attention is switched off");
  return Find(shape, pass).support;
}

size_t AttentionPlans::WorkspaceBytes(const AttentionShape& shape, AttentionPass pass) {
  return Find(shape, pass).workspace_bytes;
}

AttentionPlans::Plan& AttentionPlans::Find(AttentionShape shape, AttentionPass pass) {
  if (pass == AttentionPass::kForward) shape.deterministic = false;  // it always is
  for (const std::unique_ptr<Plan>& plan : plans_) {
    if (plan->shape == shape && plan->pass == pass) return *plan;
  }
  Plan& plan = *plans_.emplace_back(std::make_unique<Plan>());
  plan.shape = shape;
  plan.pass = pass;
  if (shape.deterministic && CudnnScoresBytes(shape) > kLargestScoresBytes) {
    plan.support = absl::UnimplementedError(
        absl::StrCat("cuDNN's deterministic backward pass would keep ",
                     HumanBytes(static_cast<double>(CudnnScoresBytes(shape))), " of scores"));
    return plan;
  }
  const cudnnHandle_t handle = queue_.cudnn();
  if (handle == nullptr) {
    plan.support = absl::UnimplementedError("cuDNN did not start");
    return plan;
  }
  try {
    plan.support = BuildGraph(shape, pass, handle, plan.graph, plan.workspace_bytes);
  } catch (const std::exception& exception) {
    plan.support = absl::UnimplementedError(absl::StrCat("cuDNN attention: ", exception.what()));
  }
  if (!plan.support.ok()) (void)cudaGetLastError();  // a refusal is no error of the next launch
  return plan;
}

// Room for `bytes`; null after an error, which is reported.
void* AttentionPlans::Place(const Workspace& workspace, size_t bytes) {
  const auto address = reinterpret_cast<uintptr_t>(workspace.data);
  const size_t padding = (kCudnnAlignment - address % kCudnnAlignment) % kCudnnAlignment;
  if (workspace.data != nullptr && padding + bytes <= workspace.bytes) {
    return static_cast<char*>(workspace.data) + padding;
  }
  if (bytes <= own_scratch_bytes_) return own_scratch_;
  if (own_scratch_ != nullptr) {
    queue_.Report(cudaFreeAsync(own_scratch_, queue_.stream()), "cudaFreeAsync");
  }
  own_scratch_ = nullptr;
  own_scratch_bytes_ = 0;
  const cudaError_t error = cudaMallocAsync(&own_scratch_, bytes, queue_.stream());
  queue_.Report(error, "attention: cudaMallocAsync of cuDNN's scratch");
  if (error != cudaSuccess) own_scratch_ = nullptr;
  if (own_scratch_ != nullptr) own_scratch_bytes_ = bytes;
  return own_scratch_;
}

void AttentionPlans::Execute(Plan& plan, const std::vector<Tensor>& tensors,
                             const Workspace& workspace) {
  CONVENE_CHECK(plan.support.ok());
  void* const scratch = plan.workspace_bytes > 0 ? Place(workspace, plan.workspace_bytes) : nullptr;
  if (plan.workspace_bytes > 0 && scratch == nullptr) return;
  std::unordered_map<int64_t, void*> pointers;
  for (const Tensor& tensor : tensors) pointers[tensor.id] = const_cast<void*>(tensor.data);
  try {
    const absl::Status status =
        FrontendStatus(plan.graph.execute(queue_.cudnn(), pointers, scratch), "execution");
    if (!status.ok()) queue_.Report(absl::InternalError(status.message()));
  } catch (const std::exception& exception) {
    queue_.Report(absl::InternalError(absl::StrCat("cuDNN attention: ", exception.what())));
  }
}

void AttentionPlans::Forward(const AttentionShape& shape, const BFloat16* qkv, BFloat16* out,
                             float* log_sum_exp, const Workspace& workspace) {
  const BFloat16* const key = qkv + ptrdiff_t{shape.heads} * shape.head_size;
  const BFloat16* const value = key + ptrdiff_t{shape.kv_heads} * shape.head_size;
  Execute(Find(shape, AttentionPass::kForward),
          {{kQuery, qkv}, {kKey, key}, {kValue, value}, {kOut, out}, {kStats, log_sum_exp}},
          workspace);
}

void AttentionPlans::Backward(const AttentionShape& shape, const BFloat16* qkv, const BFloat16* out,
                              const float* log_sum_exp, const BFloat16* dout, BFloat16* dqkv,
                              const Workspace& workspace) {
  const ptrdiff_t key = ptrdiff_t{shape.heads} * shape.head_size;
  const ptrdiff_t value = key + ptrdiff_t{shape.kv_heads} * shape.head_size;
  Execute(Find(shape, AttentionPass::kBackward),
          {{kQuery, qkv},
           {kKey, qkv + key},
           {kValue, qkv + value},
           {kOut, out},
           {kStats, log_sum_exp},
           {kDout, dout},
           {kDquery, dqkv},
           {kDkey, dqkv + key},
           {kDvalue, dqkv + value}},
          workspace);
}

}  // namespace convene::worker::cuda
