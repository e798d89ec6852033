// How near products and attention come to what the libraries can do:
// libraries_bench [--json FILE] [--only BEGINNING].
//
// A product of 8192 x 8192 x 8192 comes first: nearly all that the GPU can do in bfloat16.
// Products in bfloat16 of one layer of Llama 1B and 3B, forward, for the input's gradient and for
// the weight's (fp32, added to): ours beside the best of all algorithms that cuBLASLt proposes,
// each timed in the same way. Attention: its own figure, counting the full T x T and the causal
// half. Median of 25 samples by CUDA events; buffers take turns and together outgrow the L2 cache.
#include <cublasLt.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/device/cuda/first_error.h"
#include "worker_runtime/device/cuda/queue.h"
#include "worker_runtime/device/dtype.h"
#include "worker_runtime/device/stream.h"
#include "worker_runtime/device/workspace.h"
#include "worker_runtime/ops/attention.h"
#include "worker_runtime/ops/cuda/attention/attention_plans.h"
#include "worker_runtime/ops/cuda/bench_support.h"
#include "worker_runtime/ops/cuda/cuda_ops.h"
#include "worker_runtime/ops/cuda/matmul/candidate_timer.h"
#include "worker_runtime/ops/cuda/matmul/plan_choice.h"
#include "worker_runtime/ops/cuda/matmul/problem.h"

namespace convene::worker::cuda {
namespace {

constexpr int kDocumentLength = 512;  // of packed rows

// Larger than any L2 cache: runs that take turns on as many bytes read them from memory.
constexpr size_t kRotatedBytes = size_t{256} << 20;

// Gives device memory back.
struct CudaFree {
  void operator()(void* data) const { (void)cudaFree(data); }
};
using DeviceBlock = std::unique_ptr<void, CudaFree>;

// `bytes` of memory filled with bfloat16 numbers between -1 and 1, the same each time: zeros would
// run faster than real data. Their bits are finite floats as well.
absl::StatusOr<DeviceBlock> RandomBlock(size_t bytes) {
  constexpr size_t kPattern = size_t{1} << 20;
  static const std::vector<BFloat16>* const pattern = [] {
    auto* made = new std::vector<BFloat16>;
    uint32_t state = 1;
    for (size_t i = 0; i < kPattern; ++i) {
      state = state * 1664525 + 1013904223;
      made->push_back(BFloat16(static_cast<float>(state >> 8) * 0x1p-23f - 1.0f));
    }
    return made;
  }();
  void* data = nullptr;
  CONVENE_RETURN_IF_ERROR(CudaStatus(cudaMalloc(&data, bytes), "cudaMalloc"));
  DeviceBlock block(data);
  const size_t pattern_bytes = kPattern * sizeof(BFloat16);
  for (size_t begin = 0; begin < bytes; begin += pattern_bytes) {
    CONVENE_RETURN_IF_ERROR(
        CudaStatus(cudaMemcpy(static_cast<char*>(data) + begin, pattern->data(),
                              std::min(pattern_bytes, bytes - begin), cudaMemcpyHostToDevice),
                   "cudaMemcpy"));
  }
  // The benchmark's stream does not wait for the default stream.
  CONVENE_RETURN_IF_ERROR(CudaStatus(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize"));
  return block;
}

struct Model {
  const char* name;
  int batch;
  int sequence_length;
  int hidden;
  int ffn;
  int heads;
  int kv_heads;
  int head_size;

  int tokens() const { return batch * sequence_length; }
  int qkv_width() const { return (heads + 2 * kv_heads) * head_size; }
};

constexpr Model kModels[] = {{"1B", 4, 2048, 2048, 8192, 32, 8, 64},
                             {"1B", 1, 8192, 2048, 8192, 32, 8, 64},
                             {"3B", 2, 4096, 3072, 8192, 24, 8, 128}};

struct Product {
  std::string name;
  Transpose transpose_a;
  Transpose transpose_b;
  int m;
  int n;
  int k;
  bool is_weight_gradient;

  size_t a_bytes() const { return size_t{2} * m * k; }
  size_t b_bytes() const { return size_t{2} * k * n; }
  size_t c_bytes() const { return size_t{1} * m * n * (is_weight_gradient ? 4 : 2); }
  double operations() const { return 2.0 * m * n * k; }
};

// y = x w^T, dx = dy w, dw += dy^T x, with w (outputs, inputs).
std::vector<Product> Products(const Model& model) {
  struct Linear {
    const char* name;
    int outputs;
    int inputs;
  };
  std::vector<Product> products;
  const int tokens = model.tokens();
  for (const Linear& linear : {Linear{"qkv", model.qkv_width(), model.hidden},
                               Linear{"attention out", model.hidden, model.heads * model.head_size},
                               Linear{"gate and up", 2 * model.ffn, model.hidden},
                               Linear{"down", model.hidden, model.ffn}}) {
    const std::string name = absl::StrFormat("%s %s", model.name, linear.name);
    products.push_back({name + ", forward", Transpose::kNo, Transpose::kYes, tokens, linear.outputs,
                        linear.inputs, false});
    products.push_back({name + ", input gradient", Transpose::kNo, Transpose::kNo, tokens,
                        linear.inputs, linear.outputs, false});
    products.push_back({name + ", weight gradient", Transpose::kYes, Transpose::kNo, linear.outputs,
                        linear.inputs, tokens, true});
  }
  return products;
}

// Operands of a product, several times.
struct Operands {
  std::vector<DeviceBlock> a;
  std::vector<DeviceBlock> b;
  std::vector<DeviceBlock> c;

  static absl::StatusOr<Operands> Make(const Product& product) {
    const size_t bytes = product.a_bytes() + product.b_bytes() + product.c_bytes();
    const size_t copies = std::max<size_t>(2, (kRotatedBytes + bytes - 1) / bytes);
    Operands operands;
    for (size_t i = 0; i < copies; ++i) {
      CONVENE_ASSIGN_OR_RETURN(DeviceBlock a, RandomBlock(product.a_bytes()));
      CONVENE_ASSIGN_OR_RETURN(DeviceBlock b, RandomBlock(product.b_bytes()));
      CONVENE_ASSIGN_OR_RETURN(DeviceBlock c, RandomBlock(product.c_bytes()));
      operands.a.push_back(std::move(a));
      operands.b.push_back(std::move(b));
      operands.c.push_back(std::move(c));
    }
    return operands;
  }
  size_t Turn(int run) const { return static_cast<size_t>(run) % a.size(); }
};

void RunOurs(const Product& product, const Operands& operands, size_t turn, Stream& stream) {
  const auto* a = static_cast<const BFloat16*>(operands.a[turn].get());
  const auto* b = static_cast<const BFloat16*>(operands.b[turn].get());
  void* const c = operands.c[turn].get();
  if (product.is_weight_gradient) {
    cuda::MatMul(product.transpose_a, product.transpose_b, product.m, product.n, product.k, a, b,
                 1.0f, static_cast<float*>(c), stream);
  } else {
    cuda::MatMul(product.transpose_a, product.transpose_b, product.m, product.n, product.k, a, b,
                 0.0f, static_cast<BFloat16*>(c), stream);
  }
}

// The library's best algorithm: a short measurement picks the fastest four of all that it proposes,
// and each of these is timed as ours is.
absl::StatusOr<double> BestMilliseconds(const Product& product, const Operands& operands,
                                        Queue& queue) {
  constexpr int kProposals = 100;
  constexpr size_t kFinalists = 4;
  const MatMulProblem problem(
      {.transpose_a = product.transpose_a == Transpose::kYes,
       .transpose_b = product.transpose_b == Transpose::kYes,
       .accumulate = product.is_weight_gradient,
       .m = product.m,
       .n = product.n,
       .k = product.k,
       .in_a = DType::kBFloat16,
       .in_b = DType::kBFloat16,
       .out = product.is_weight_gradient ? DType::kFloat32 : DType::kBFloat16,
       .alignment_a = 256,
       .alignment_b = 256,
       .alignment_c = 256});
  cublasStatus_t status = problem.status();
  std::vector<cublasLtMatmulHeuristicResult_t> candidates;
  if (status == CUBLAS_STATUS_SUCCESS) {
    candidates =
        problem.Candidates(queue.cublaslt(), kProposals, Queue::kMatMulWorkspaceBytes, status);
  }
  if (status != CUBLAS_STATUS_SUCCESS) return absl::InternalError(cublasLtGetStatusString(status));
  CONVENE_ASSIGN_OR_RETURN(
      const std::vector<std::vector<float>> times,
      TimeCandidates(queue, problem, candidates, operands.a[0].get(), operands.b[0].get(),
                     operands.c[0].get(), operands.c[0].get(), 3));
  std::vector<size_t> order;
  for (size_t i = 0; i < times.size(); ++i) {
    if (!times[i].empty()) order.push_back(i);
  }
  std::sort(order.begin(), order.end(), [&](size_t left, size_t right) {
    return *std::min_element(times[left].begin(), times[left].end()) <
           *std::min_element(times[right].begin(), times[right].end());
  });
  if (order.empty()) return absl::InternalError("none of cuBLASLt's algorithms runs");
  order.resize(std::min(order.size(), kFinalists));
  double best = 0;
  for (const size_t candidate : order) {
    const auto launch = [&](int run) {
      const size_t turn = operands.Turn(run);
      queue.Report(
          problem.Launch(queue.cublaslt(), candidates[candidate].algo, operands.a[turn].get(),
                         operands.b[turn].get(), operands.c[turn].get(), operands.c[turn].get(),
                         queue.matmul_workspace(), Queue::kMatMulWorkspaceBytes, queue.stream()),
          "cublasLtMatmul");
    };
    CONVENE_ASSIGN_OR_RETURN(const double milliseconds, MedianMilliseconds(queue, launch));
    best = best == 0 ? milliseconds : std::min(best, milliseconds);
  }
  return best;
}

absl::Status BenchProduct(const Product& product, Queue& queue, Figures& figures) {
  const std::string name = absl::StrCat("product ", product.name);
  if (!figures.Wants(name)) return absl::OkStatus();
  Stream stream = Stream::Cuda(queue);
  CONVENE_ASSIGN_OR_RETURN(const Operands operands, Operands::Make(product));
  const auto ours = [&](int run) { RunOurs(product, operands, operands.Turn(run), stream); };
  CONVENE_ASSIGN_OR_RETURN(const double milliseconds, MedianMilliseconds(queue, ours));
  CONVENE_ASSIGN_OR_RETURN(const double best, BestMilliseconds(product, operands, queue));
  const double tflops = product.operations() / milliseconds * 1e-9;
  const double best_tflops = product.operations() / best * 1e-9;
  std::printf("%-34s %6d %6d %6d %9.3f %9.1f %9.1f %7.3f\n", product.name.c_str(), product.m,
              product.n, product.k, milliseconds, tflops, best_tflops, best / milliseconds);
  std::fflush(stdout);
  figures.Add(name, absl::StrFormat(", \"m\": %d, \"n\": %d, \"k\": %d, \"milliseconds\": %.5f, "
                                    "\"tflops\": %.2f, \"best_tflops\": %.2f, \"ratio\": %.4f",
                                    product.m, product.n, product.k, milliseconds, tflops,
                                    best_tflops, best / milliseconds));
  return absl::OkStatus();
}

// Rows packed with documents of one length, in the GPU's memory. Without any (0) all is null.
class PackedDocuments {
 public:
  static absl::StatusOr<PackedDocuments> Make(const AttentionShape& shape, int document_length) {
    PackedDocuments packed;
    if (document_length == 0) return packed;
    const int tokens = shape.batch * shape.sequence_length;
    std::vector<int32_t> begins(tokens);
    for (int token = 0; token < tokens; ++token) {
      begins[token] = token % shape.sequence_length / document_length * document_length;
    }
    std::vector<int64_t> table(DocumentTableBytes(shape) / sizeof(int64_t));
    const size_t begin_bytes = begins.size() * sizeof(int32_t);
    CONVENE_ASSIGN_OR_RETURN(packed.begins_, RandomBlock(begin_bytes));
    CONVENE_ASSIGN_OR_RETURN(packed.table_, RandomBlock(table.size() * sizeof(int64_t)));
    const size_t bytes = WriteDocumentTable(shape, begins.data(), table.data(), packed.table_.get(),
                                            &packed.documents_);
    packed.documents_.begin = static_cast<const int32_t*>(packed.begins_.get());
    CONVENE_RETURN_IF_ERROR(CudaStatus(
        cudaMemcpy(packed.begins_.get(), begins.data(), begin_bytes, cudaMemcpyHostToDevice),
        "cudaMemcpy"));
    CONVENE_RETURN_IF_ERROR(
        CudaStatus(cudaMemcpy(packed.table_.get(), table.data(), bytes, cudaMemcpyHostToDevice),
                   "cudaMemcpy"));
    // From pageable memory the call may return before the copy is done, and no other stream waits
    // for the copy.
    CONVENE_RETURN_IF_ERROR(CudaStatus(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize"));
    return packed;
  }
  const Documents& get() const { return documents_; }

 private:
  DeviceBlock begins_, table_;
  Documents documents_;
};

void PrintAttention(const Model& model, const char* pass, const char* way, double milliseconds,
                    double full_operations, Figures& figures) {
  const double tflops = full_operations / milliseconds * 1e-9;
  const std::string name = absl::StrFormat("attention %s, %d x %d, %s, %s", model.name, model.batch,
                                           model.sequence_length, pass, way);
  std::printf("%-55s %9.3f %9.1f %9.1f\n", name.c_str(), milliseconds, tflops, tflops / 2);
  std::fflush(stdout);
  figures.Add(name, absl::StrFormat(", \"milliseconds\": %.5f, \"tflops_full\": %.2f, "
                                    "\"tflops_causal\": %.2f",
                                    milliseconds, tflops, tflops / 2));
}

// `document_length`: of packed rows, else 0.
absl::Status BenchAttention(const Model& model, bool deterministic, int document_length,
                            Queue& queue, Figures& figures) {
  const bool packed = document_length > 0;
  const AttentionShape shape = {model.batch,     model.sequence_length, model.heads, model.kv_heads,
                                model.head_size, deterministic,         packed};
  CONVENE_ASSIGN_OR_RETURN(const PackedDocuments packed_documents,
                           PackedDocuments::Make(shape, document_length));
  const Documents& documents = packed_documents.get();
  const size_t qkv_bytes = size_t{2} * model.tokens() * model.qkv_width();
  const size_t out_bytes = size_t{2} * model.tokens() * model.heads * model.head_size;
  const size_t workspace_bytes = AttentionWorkspaceBytes<BFloat16>(shape);
  CONVENE_ASSIGN_OR_RETURN(const DeviceBlock qkv, RandomBlock(qkv_bytes));
  CONVENE_ASSIGN_OR_RETURN(const DeviceBlock dqkv, RandomBlock(qkv_bytes));
  CONVENE_ASSIGN_OR_RETURN(const DeviceBlock out, RandomBlock(out_bytes));
  CONVENE_ASSIGN_OR_RETURN(const DeviceBlock dout, RandomBlock(out_bytes));
  CONVENE_ASSIGN_OR_RETURN(const DeviceBlock statistics,
                           RandomBlock(size_t{4} * model.tokens() * model.heads));
  CONVENE_ASSIGN_OR_RETURN(const DeviceBlock scratch, RandomBlock(workspace_bytes));
  const Workspace workspace = {scratch.get(), workspace_bytes};
  Stream stream = Stream::Cuda(queue);
  auto& plans = queue.plans<AttentionPlans>();
  const auto way = [&](AttentionPass pass) {
    return plans.Support(shape, FusedStrides(shape), documents.count, pass).ok() ? "cuDNN"
                                                                                 : "own kernels";
  };
  const auto* const qkv_data = static_cast<const BFloat16*>(qkv.get());
  auto* const out_data = static_cast<BFloat16*>(out.get());
  auto* const statistics_data = static_cast<float*>(statistics.get());
  const auto forward = [&](int) {
    cuda::AttentionForward(shape, documents, {}, Fused(shape, qkv_data), out_data, statistics_data,
                           workspace, stream);
  };
  const auto backward = [&](int) {
    cuda::AttentionBackward(
        shape, documents, {}, Fused(shape, qkv_data), static_cast<const BFloat16*>(out_data),
        static_cast<const float*>(statistics_data), static_cast<const BFloat16*>(dout.get()),
        /*adds=*/false, Fused(shape, static_cast<BFloat16*>(dqkv.get())), workspace, stream);
  };
  // Two products forward, five backward, of T x T x head_size each; T: a document's length.
  const double product = 2.0 * model.batch * model.heads * model.head_size * model.sequence_length *
                         (packed ? document_length : model.sequence_length);
  CONVENE_ASSIGN_OR_RETURN(const double forward_time, MedianMilliseconds(queue, forward));
  if (!deterministic) {
    PrintAttention(model, packed ? "packed forward" : "forward", way(AttentionPass::kForward),
                   forward_time, 2 * product, figures);
  }
  CONVENE_ASSIGN_OR_RETURN(const double backward_time, MedianMilliseconds(queue, backward));
  PrintAttention(model,
                 packed          ? "packed backward"
                 : deterministic ? "deterministic backward"
                                 : "backward",
                 way(AttentionPass::kBackward), backward_time, 5 * product, figures);
  return absl::OkStatus();
}

absl::Status RunAll(Figures& figures) {
  CONVENE_RETURN_IF_ERROR(CudaStatus(cudaSetDevice(0), "cudaSetDevice"));
  FirstError first_error;
  CONVENE_ASSIGN_OR_RETURN(const std::unique_ptr<Queue> queue, Queue::Create(0, first_error));
  std::printf("%-34s %6s %6s %6s %9s %9s %9s %7s\n", "product", "m", "n", "k", "ms", "TFLOP/s",
              "library's", "ratio");
  const Product ceiling = {
      "8192 x 8192 x 8192", Transpose::kNo, Transpose::kYes, 8192, 8192, 8192, false};
  CONVENE_RETURN_IF_ERROR(BenchProduct(ceiling, *queue, figures));
  for (const Model& model : {kModels[0], kModels[2]}) {
    for (const Product& product : Products(model)) {
      CONVENE_RETURN_IF_ERROR(BenchProduct(product, *queue, figures));
    }
  }
  if (!figures.Wants("attention")) return absl::OkStatus();
  std::printf("\n%-55s %9s %9s %9s\n", "attention", "ms", "full", "causal");
  for (const Model& model : kModels) {
    for (const bool deterministic : {false, true}) {
      CONVENE_RETURN_IF_ERROR(BenchAttention(model, deterministic, 0, *queue, figures));
    }
    CONVENE_RETURN_IF_ERROR(BenchAttention(model, false, kDocumentLength, *queue, figures));
  }
  CONVENE_ASSIGN_OR_RETURN(const std::unique_ptr<Queue> without, Queue::Create(0, first_error));
  without->plans<AttentionPlans>().ForbidCudnn();
  return BenchAttention(kModels[0], false, 0, *without, figures);
}

}  // namespace
}  // namespace convene::worker::cuda

int main(int argc, char** argv) {
  return convene::worker::cuda::BenchMain(argc, argv, "libraries_bench",
                                          convene::worker::cuda::RunAll);
}
