#include "worker_runtime/ops/cuda/attention/attention_plans.h"

#include <cuda_runtime.h>
#include <cudnn_frontend.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <string>
#include <unordered_map>

#include "absl/strings/str_cat.h"
#include "spdlog/spdlog.h"
#include "tools/base/check.h"
#include "tools/base/status_macros.h"
#include "tools/base/text.h"
#include "worker_runtime/ops/cuda/attention/attention_split.h"

namespace convene::worker::cuda {
namespace {

namespace fe = cudnn_frontend;
using fe::graph::Graph;
using TensorPointer = std::shared_ptr<fe::graph::Tensor_attributes>;

// Names of a graph's tensors between building and running it.
enum TensorId : int64_t {
  kQuery = 1,
  kKey,
  kValue,
  kOut,
  kStats,
  kDout,
  kDquery,
  kDkey,
  kDvalue,
  kQueryLengths,
  kKeyLengths,
  kQueryOffsets,
  kKeyOffsets,
  kValueOffsets,
  kOutOffsets,
  kStatsOffsets
};

absl::Status FrontendStatus(fe::error_t error, const char* what) {
  if (error.is_good()) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat("cuDNN attention: ", what, ": ", error.get_message()));
}

// Dimensions and strides are (sequence, head, position, element), as cuDNN counts them. Of packed
// rows the first stride means nothing: documents begin where their offsets say.
struct Layout {
  std::vector<int64_t> dimensions;
  std::vector<int64_t> strides;
};

// Some of the heads of a token, where they stand.
Layout QueryHeads(const PlanKey& key, const HeadStrides& strides) {
  return {{key.sequences(), key.heads(), key.shape.sequence_length, key.shape.head_size},
          {strides.query_row, key.shape.head_size, strides.query_token, 1}};
}
Layout KeyHeads(const PlanKey& key, const HeadStrides& strides) {
  return {{key.sequences(), key.kv_heads(), key.shape.key_count(), key.shape.head_size},
          {strides.key_row, key.shape.head_size, strides.key_token, 1}};
}
HeadStrides GradientStrides(const PlanKey& key) {
  return key.shape.is_part() ? PartGradientStrides(key.shape) : key.strides;
}
Layout OutHeads(const PlanKey& key) {
  const AttentionShape& shape = key.shape;
  const int64_t width = int64_t{shape.heads} * shape.head_size;
  return {{key.sequences(), key.heads(), shape.sequence_length, shape.head_size},
          {shape.sequence_length * width, shape.head_size, width, 1}};
}
// Of rows that are not packed, tensors without gaps, as cuDNN before 9.26 wants them: a call for
// some heads is for one sequence (SplitAttention).
Layout Statistics(const PlanKey& key) {
  const int64_t token = key.shape.heads;
  const int64_t heads = key.heads();
  const int64_t length = key.shape.sequence_length;
  const std::vector<int64_t> strides = key.shape.packed
                                           ? std::vector<int64_t>{token * length, 1, token, 1}
                                           : std::vector<int64_t>{heads * length, length, 1, 1};
  return {{key.sequences(), heads, length, 1}, strides};
}

// Where documents begin and how long they are; all null of rows that are not packed. A tensor for
// each role, as other users of cuDNN have them, although some lie in the same memory.
struct DocumentTensors {
  TensorPointer query_lengths, key_lengths;
  TensorPointer query_offsets, key_offsets, value_offsets, out_offsets, stats_offsets;
};

DocumentTensors AddDocuments(const PlanKey& key, Graph& graph) {
  if (!key.shape.packed) return {};
  const auto list = [&](TensorId id, const char* name, int64_t count, fe::DataType_t type) {
    return graph.tensor(fe::graph::Tensor_attributes()
                            .set_name(name)
                            .set_uid(id)
                            .set_dim({count, 1, 1, 1})
                            .set_stride({1, 1, 1, 1})
                            .set_data_type(type));
  };
  const int64_t count = key.sequences();
  return {list(kQueryLengths, "query_lengths", count, fe::DataType_t::INT32),
          list(kKeyLengths, "key_lengths", count, fe::DataType_t::INT32),
          list(kQueryOffsets, "query_offsets", count + 1, fe::DataType_t::INT64),
          list(kKeyOffsets, "key_offsets", count + 1, fe::DataType_t::INT64),
          list(kValueOffsets, "value_offsets", count + 1, fe::DataType_t::INT64),
          list(kOutOffsets, "out_offsets", count + 1, fe::DataType_t::INT64),
          list(kStatsOffsets, "stats_offsets", count + 1, fe::DataType_t::INT64)};
}

// `offsets` may be null.
fe::graph::Tensor_attributes Attributes(TensorId id, const char* name, const Layout& layout,
                                        const TensorPointer& offsets) {
  fe::graph::Tensor_attributes attributes;
  attributes.set_name(name).set_uid(id).set_dim(layout.dimensions).set_stride(layout.strides);
  if (offsets != nullptr) attributes.set_ragged_offset(offsets);
  return attributes;
}

void MakeOutput(const TensorPointer& tensor, TensorId id, const Layout& layout,
                const TensorPointer& offsets) {
  tensor->set_output(true).set_uid(id).set_dim(layout.dimensions).set_stride(layout.strides);
  if (offsets != nullptr) tensor->set_ragged_offset(offsets);
}

template <typename Options>
void HideLaterKeys(const AttentionShape& shape, Options& options) {
  if (shape.keys_seen == KeysSeen::kAll) return;
  options.set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT)
      .set_diagonal_band_right_bound(0);
}

// cuDNN's statistics are what log_sum_exp has to be: max + ln(sum of exp) of the scaled scores
// (cudnn_frontend/graph_properties.h, SDPA_attributes::set_stats_use_log2, "cuDNN's natural-log
// convention").
void AddForward(const PlanKey& plan_key, Graph& graph) {
  const AttentionShape& shape = plan_key.shape;
  const DocumentTensors documents = AddDocuments(plan_key, graph);
  const Layout heads = QueryHeads(plan_key, plan_key.strides);
  const Layout kv = KeyHeads(plan_key, plan_key.strides);
  const TensorPointer query =
      graph.tensor(Attributes(kQuery, "query", heads, documents.query_offsets));
  const TensorPointer key = graph.tensor(Attributes(kKey, "key", kv, documents.key_offsets));
  const TensorPointer value =
      graph.tensor(Attributes(kValue, "value", kv, documents.value_offsets));
  auto options = fe::graph::SDPA_attributes()
                     .set_name("attention_forward")
                     .set_generate_stats(true)
                     .set_attn_scale(shape.scale());
  HideLaterKeys(shape, options);
  // Without a mask the frontend would take another operation than with one (1.32: "unified").
  if (shape.is_part()) options.set_implementation(fe::AttentionImplementation_t::COMPOSITE);
  if (shape.packed) {
    options.set_padding_mask(true)
        .set_seq_len_q(documents.query_lengths)
        .set_seq_len_kv(documents.key_lengths);
  }
  const auto [out, stats] = graph.sdpa(query, key, value, options);
  MakeOutput(out, kOut, OutHeads(plan_key), documents.out_offsets);
  MakeOutput(stats, kStats, Statistics(plan_key), documents.stats_offsets);
  stats->set_data_type(fe::DataType_t::FLOAT);
}

void AddBackward(const PlanKey& plan_key, Graph& graph) {
  const AttentionShape& shape = plan_key.shape;
  const DocumentTensors documents = AddDocuments(plan_key, graph);
  const Layout heads = QueryHeads(plan_key, plan_key.strides);
  const Layout kv = KeyHeads(plan_key, plan_key.strides);
  const Layout outs = OutHeads(plan_key);
  const TensorPointer query =
      graph.tensor(Attributes(kQuery, "query", heads, documents.query_offsets));
  const TensorPointer key = graph.tensor(Attributes(kKey, "key", kv, documents.key_offsets));
  const TensorPointer value =
      graph.tensor(Attributes(kValue, "value", kv, documents.value_offsets));
  const TensorPointer out = graph.tensor(Attributes(kOut, "out", outs, documents.out_offsets));
  const TensorPointer dout = graph.tensor(Attributes(kDout, "dout", outs, documents.out_offsets));
  const TensorPointer stats =
      graph.tensor(Attributes(kStats, "stats", Statistics(plan_key), documents.stats_offsets)
                       .set_data_type(fe::DataType_t::FLOAT));
  auto options = fe::graph::SDPA_backward_attributes()
                     .set_name("attention_backward")
                     .set_attn_scale(shape.scale())
                     .set_deterministic_algorithm(shape.deterministic);
  HideLaterKeys(shape, options);
  if (shape.packed) {
    // With this, scratch grows with the tokens, not with documents times the longest possible
    // document.
    const int64_t tokens = int64_t{shape.batch} * shape.sequence_length;
    options.set_padding_mask(true)
        .set_seq_len_q(documents.query_lengths)
        .set_seq_len_kv(documents.key_lengths)
        .set_max_total_seq_len_q(tokens)
        .set_max_total_seq_len_kv(tokens);
  }
  const auto [dquery, dkey, dvalue] =
      graph.sdpa_backward(query, key, value, out, dout, stats, options);
  const HeadStrides of_gradients = GradientStrides(plan_key);
  MakeOutput(dquery, kDquery, QueryHeads(plan_key, of_gradients), documents.query_offsets);
  MakeOutput(dkey, kDkey, KeyHeads(plan_key, of_gradients), documents.key_offsets);
  MakeOutput(dvalue, kDvalue, KeyHeads(plan_key, of_gradients), documents.value_offsets);
}

absl::Status BuildGraph(const PlanKey& key, cudnnHandle_t handle, Graph& graph,
                        size_t& workspace_bytes) {
  graph.set_io_data_type(fe::DataType_t::BFLOAT16)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  if (key.pass == AttentionPass::kForward) {
    AddForward(key, graph);
  } else {
    AddBackward(key, graph);
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
  PlanKey key;
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

absl::Status AttentionPlans::Support(const AttentionShape& shape, const HeadStrides& strides,
                                     int document_count, AttentionPass pass) {
  if (forbidden_) return absl::UnimplementedError("cuDNN attention is switched off");
  return Find(shape, strides, document_count, pass).support;
}

size_t AttentionPlans::WorkspaceBytes(const AttentionShape& shape, const HeadStrides& strides,
                                      int document_count, AttentionPass pass) {
  return Find(shape, strides, document_count, pass).workspace_bytes;
}

AttentionPlans::Plan& AttentionPlans::Find(const AttentionShape& shape, const HeadStrides& strides,
                                           int document_count, AttentionPass pass) {
  const PlanKey key = MakePlanKey(shape, strides, document_count, pass, scores_bytes_max_);
  for (const std::unique_ptr<Plan>& plan : plans_) {
    if (plan->key == key) return *plan;
  }
  Plan& plan = *plans_.emplace_back(std::make_unique<Plan>());
  plan.key = key;
  plan.support = Build(plan);
  if (!plan.support.ok()) Warn(plan);
  return plan;
}

absl::Status AttentionPlans::Build(Plan& plan) {
  if (!plan.key.split.has_value()) {
    return absl::UnimplementedError(
        absl::StrCat("its deterministic backward pass would keep more than ",
                     HumanBytes(static_cast<double>(scores_bytes_max_)),
                     " of scores even for the smallest part that it can be called for"));
  }
  if (plan.key.shape.packed && plan.key.document_count == 0) {
    return absl::UnimplementedError("the list of the packed documents is missing");
  }
  const cudnnHandle_t handle = queue_.cudnn();
  if (handle == nullptr) return absl::UnimplementedError("cuDNN did not start");
  absl::Status status;
  try {
    status = BuildGraph(plan.key, handle, plan.graph, plan.workspace_bytes);
  } catch (const std::exception& exception) {
    status = absl::UnimplementedError(absl::StrCat("cuDNN attention: ", exception.what()));
  }
  if (!status.ok()) (void)cudaGetLastError();  // a refusal is no error of the next launch
  // For head sizes that are no multiple of 16, and in older versions, cuDNN counts documents times
  // the longest possible document instead of tokens.
  if (status.ok() && plan.key.shape.packed &&
      plan.workspace_bytes > CudnnWorkspaceBytes(plan.key.shape) + kLargestScoresBytes) {
    return absl::UnimplementedError(
        absl::StrCat("cuDNN would take ", HumanBytes(static_cast<double>(plan.workspace_bytes)),
                     " of scratch for ", plan.key.document_count, " documents"));
  }
  return status;
}

// Warns once for a shape and pass, however many documents are packed.
void AttentionPlans::Warn(const Plan& refused) const {
  const auto is_told = [&](const std::unique_ptr<Plan>& plan) {
    return plan.get() != &refused && !plan->support.ok() && plan->key.pass == refused.key.pass &&
           plan->key.shape == refused.key.shape;
  };
  if (std::any_of(plans_.begin(), plans_.end(), is_told)) return;
  spdlog::warn("attention ({}): cuDNN cannot do it here: {}. Our own kernel does, much slower",
               ToText(refused.key), std::string(refused.support.message()));
}

// Room for `bytes`; null after an error, which is reported.
void* AttentionPlans::Place(const Workspace& workspace, size_t bytes) {
  const auto address = reinterpret_cast<uintptr_t>(workspace.data);
  const size_t padding = (kCudnnAlignment - address % kCudnnAlignment) % kCudnnAlignment;
  if (workspace.data != nullptr && padding + bytes <= workspace.bytes) {
    return static_cast<char*>(workspace.data) + padding;
  }
  if (bytes <= own_scratch_bytes_) return own_scratch_;
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  queue_.Report(cudaStreamIsCapturing(queue_.stream(), &capture), "cudaStreamIsCapturing");
  if (capture != cudaStreamCaptureStatusNone) {
    queue_.Report(absl::FailedPreconditionError(
        "attention: cuDNN's scratch would grow while a graph is captured"));
    return nullptr;
  }
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

void AttentionPlans::Execute(Plan& plan, const Documents& documents,
                             const std::vector<Tensor>& tensors, const Workspace& workspace) {
  CONVENE_CHECK(plan.support.ok());
  void* const scratch = plan.workspace_bytes > 0 ? Place(workspace, plan.workspace_bytes) : nullptr;
  if (plan.workspace_bytes > 0 && scratch == nullptr) return;
  std::unordered_map<int64_t, void*> pointers;
  const auto give = [&](const Tensor& tensor) {
    pointers[tensor.id] = const_cast<void*>(tensor.data);
  };
  for (const Tensor& tensor : tensors) give(tensor);
  if (plan.key.shape.packed) {
    give({kQueryLengths, documents.lengths});
    give({kKeyLengths, documents.lengths});
    give({kQueryOffsets, documents.qkv_offsets});
    give({kKeyOffsets, documents.qkv_offsets});
    give({kValueOffsets, documents.qkv_offsets});
    give({kOutOffsets, documents.out_offsets});
    give({kStatsOffsets, documents.log_sum_exp_offsets});
  }
  try {
    const absl::Status status =
        FrontendStatus(plan.graph.execute(queue_.cudnn(), pointers, scratch), "execution");
    if (!status.ok()) queue_.Report(absl::InternalError(status.message()));
  } catch (const std::exception& exception) {
    queue_.Report(absl::InternalError(absl::StrCat("cuDNN attention: ", exception.what())));
  }
}

void AttentionPlans::Forward(const AttentionShape& shape, const Documents& documents,
                             const QueriesKeysValues<const BFloat16>& qkv, BFloat16* out,
                             float* log_sum_exp, const Workspace& workspace) {
  Execute(Find(shape, StridesOf(qkv), documents.count, AttentionPass::kForward), documents,
          {{kQuery, qkv.queries.data},
           {kKey, qkv.keys.data},
           {kValue, qkv.values.data},
           {kOut, out},
           {kStats, log_sum_exp}},
          workspace);
}

void AttentionPlans::Backward(const AttentionShape& shape, const Documents& documents,
                              const QueriesKeysValues<const BFloat16>& qkv, const BFloat16* out,
                              const float* log_sum_exp, const BFloat16* dout,
                              const QueriesKeysValues<BFloat16>& gradients,
                              const Workspace& workspace) {
  Plan& plan = Find(shape, StridesOf(qkv), documents.count, AttentionPass::kBackward);
  CONVENE_CHECK(plan.support.ok());
  CONVENE_CHECK(StridesOf(gradients) == GradientStrides(plan.key));
  const AttentionSplit split = *plan.key.split;
  const ptrdiff_t group = shape.heads / shape.kv_heads;
  for (int sequence = 0; sequence < shape.batch; sequence += split.batch) {
    const ptrdiff_t row = ptrdiff_t{sequence} * shape.sequence_length;
    for (int kv_head = 0; kv_head < shape.kv_heads; kv_head += split.kv_heads) {
      const ptrdiff_t head = kv_head * group;
      const auto at = [&](const auto& heads, ptrdiff_t first) {
        return heads.data + sequence * heads.row_stride + first * shape.head_size;
      };
      const ptrdiff_t of_out = (row * shape.heads + head) * shape.head_size;
      // (token, head) of packed rows, else (sequence, head, position).
      const ptrdiff_t of_stats =
          row * shape.heads + head * (shape.packed ? 1 : shape.sequence_length);
      Execute(plan, documents,
              {{kQuery, at(qkv.queries, head)},
               {kKey, at(qkv.keys, kv_head)},
               {kValue, at(qkv.values, kv_head)},
               {kOut, out + of_out},
               {kStats, log_sum_exp + of_stats},
               {kDout, dout + of_out},
               {kDquery, at(gradients.queries, head)},
               {kDkey, at(gradients.keys, kv_head)},
               {kDvalue, at(gradients.values, kv_head)}},
              workspace);
    }
  }
}

}  // namespace convene::worker::cuda
