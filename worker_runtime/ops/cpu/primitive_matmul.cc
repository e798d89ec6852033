#include "worker_runtime/ops/cpu/primitive_matmul.h"

#include <omp.h>

#include <algorithm>
#include <cstddef>
#include <dnnl.hpp>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

#include "tools/base/check.h"
#include "worker_runtime/device/dtype.h"
#include "worker_runtime/ops/cpu/thread_count.h"
#include "worker_runtime/ops/instantiate.h"

namespace convene::worker::cpu {
namespace {

// Shapes a thread remembers, of each pair of types. A model has a dozen.
constexpr size_t kProductsMax = 256;

struct ProductKey {
  ProductShape shape;
  bool adds;
  int threads;  // for which the primitive cuts the product when it is made

  auto Tie() const {
    return std::tie(shape.transpose_a, shape.transpose_b, shape.m, shape.n, shape.k, shape.lda,
                    shape.ldb, shape.ldc, adds, threads);
  }
  bool operator<(const ProductKey& other) const { return Tie() < other.Tie(); }
};

struct Product {
  dnnl::matmul matmul;
  // Puts b into the order that the primitive reads; empty where that is b's own.
  std::optional<dnnl::reorder> reorder;
  dnnl::memory a, b, ordered_b, c, scratch;
  size_t scratch_bytes;
};

// The working memory of all products of a thread: they run one after the other. Grows to the
// largest and stays: no allocation in a steady state.
class Room {
 public:
  void* Of(size_t bytes) {
    constexpr size_t kAlignment = 64;
    if (room_ < bytes + kAlignment) {
      memory_.reset();  // the old one goes first
      room_ = bytes + kAlignment;
      memory_ = std::make_unique_for_overwrite<std::byte[]>(room_);
    }
    void* start = memory_.get();
    size_t left = room_;
    return std::align(kAlignment, bytes, start, left);
  }

 private:
  std::unique_ptr<std::byte[]> memory_;
  size_t room_ = 0;
};

dnnl::engine& Engine() {
  static dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

template <typename T>
constexpr dnnl::memory::data_type kType =
    std::is_same_v<T, float> ? dnnl::memory::data_type::f32 : dnnl::memory::data_type::bf16;

template <typename In, typename Out>
Product MakeProduct(const ProductKey& key) {
  using dnnl::memory;
  const ProductShape& s = key.shape;
  const auto strides = [](Transpose transpose, int leading) {
    return transpose == Transpose::kYes ? memory::dims{1, leading} : memory::dims{leading, 1};
  };
  const memory::desc a({s.m, s.k}, kType<In>, strides(s.transpose_a, s.lda));
  const memory::desc b({s.k, s.n}, kType<In>, strides(s.transpose_b, s.ldb));
  const memory::desc c({s.m, s.n}, kType<Out>, strides(Transpose::kNo, s.ldc));
  dnnl::primitive_attr attributes;
  // Left to oneDNN, each product has working memory of its own.
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (key.adds) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attributes.set_post_ops(sum);
  }
  // Of a weight's gradient: 415 against 427 GFLOP/s, and 336 against 403 where the rows of a begin
  // anywhere (two cores of an AMD EPYC, n 768, k 1024; m 3072, and GPT-2's 50257 words). With AMX
  // tiles are multiplied, and of a tile it saves nothing. Of other products b is the weight, and
  // putting it in order takes longer than it saves.
  const bool orders_b = s.transpose_a == Transpose::kYes && s.transpose_b == Transpose::kNo &&
                        sizeof(In) < 4 && !MultipliesByAmx();
  const memory::desc any_b({s.k, s.n}, kType<In>, memory::format_tag::any);
  const dnnl::matmul::primitive_desc description(dnnl::matmul::desc(a, orders_b ? any_b : b, c),
                                                 attributes, Engine());
  const memory own_b(b, Engine(), DNNL_MEMORY_NONE);
  const memory ordered_b(description.weights_desc(), Engine(), DNNL_MEMORY_NONE);
  std::optional<dnnl::reorder> reorder;
  if (description.weights_desc() != b) reorder.emplace(own_b, ordered_b);
  return {.matmul = dnnl::matmul(description),
          .reorder = std::move(reorder),
          .a = memory(a, Engine(), DNNL_MEMORY_NONE),
          .b = own_b,
          .ordered_b = ordered_b,
          .c = memory(c, Engine(), DNNL_MEMORY_NONE),
          .scratch = memory(description.scratchpad_desc(), Engine(), DNNL_MEMORY_NONE),
          .scratch_bytes = description.scratchpad_desc().get_size()};
}

// The terms of the sum over k that the primitive is given at once where a is transposed: oneDNN
// shares out that sum, and so changes its rounding, when threads outnumber the blocks of c. Never
// seen up to k = 1536 (1 to 64 threads), seen at 2048 from 2 threads on. Shorter sums were faster,
// too. An a that is not transposed is given all: there the sum was never shared out (k to 16384),
// and a second slice, which adds, makes the primitive as slow as sgemm.
constexpr int kSlice = 1024;

template <typename In, typename Out>
void MultiplySlice(const ProductShape& shape, const In* a, const In* b, float beta, Out* c) {
  thread_local std::map<ProductKey, Product> products;
  thread_local dnnl::stream stream(Engine());
  thread_local Room scratch, ordered_b;
  const ProductKey key = {shape, beta != 0, omp_get_max_threads()};
  try {
    auto place = products.find(key);
    if (place == products.end()) {
      if (products.size() >= kProductsMax) products.clear();
      place = products.emplace(key, MakeProduct<In, Out>(key)).first;
    }
    Product& product = place->second;
    product.a.set_data_handle(const_cast<In*>(a));
    product.b.set_data_handle(const_cast<In*>(b));
    product.c.set_data_handle(c);
    product.scratch.set_data_handle(scratch.Of(product.scratch_bytes));
    if (product.reorder.has_value()) {
      product.ordered_b.set_data_handle(ordered_b.Of(product.ordered_b.get_desc().get_size()));
      product.reorder->execute(stream, product.b, product.ordered_b);
    }
    // The C call: the C++ one builds a map of its arguments at each.
    const dnnl_exec_arg_t arguments[] = {
        {DNNL_ARG_SRC, product.a.get()},
        {DNNL_ARG_WEIGHTS, (product.reorder.has_value() ? product.ordered_b : product.b).get()},
        {DNNL_ARG_DST, product.c.get()},
        {DNNL_ARG_SCRATCHPAD, product.scratch.get()}};
    dnnl::error::wrap_c_api(
        dnnl_primitive_execute(product.matmul.get(), stream.get(), std::size(arguments), arguments),
        "matmul");
    stream.wait();
  } catch (const dnnl::error&) {
    CONVENE_CHECK(false);  // a shape or type that oneDNN does not have
  }
}

}  // namespace

bool MultipliesByAmx() {
  static const bool does = dnnl::get_effective_cpu_isa() == dnnl::cpu_isa::avx512_core_amx;
  return does;
}

LibraryTeam ProductTeam(const ProductShape& shape, double nanoseconds, int most) {
  const double multiply_adds = static_cast<double>(shape.m) * shape.n * shape.k;
  return LibraryTeam(nanoseconds * multiply_adds, int64_t{shape.m} * shape.n, most);
}

void Sgemm(const ProductShape& shape, const float* a, const float* b, float beta, float* c) {
  const auto letter = [](Transpose transpose) { return transpose == Transpose::kYes ? 'T' : 'N'; };
  const dnnl_status_t status =
      dnnl_sgemm(letter(shape.transpose_a), letter(shape.transpose_b), shape.m, shape.n, shape.k,
                 1.0f, a, shape.lda, b, shape.ldb, beta, c, shape.ldc);
  CONVENE_CHECK(status == dnnl_success);
}

template <typename In, typename Out>
void PrimitiveMatMul(const ProductShape& shape, const In* a, const In* b, float beta, Out* c) {
  const bool is_sliced = shape.transpose_a == Transpose::kYes && std::is_same_v<Out, float>;
  const int most = is_sliced ? kSlice : shape.k;
  const ptrdiff_t a_step = shape.transpose_a == Transpose::kYes ? shape.lda : 1;
  const ptrdiff_t b_step = shape.transpose_b == Transpose::kYes ? 1 : shape.ldb;
  int first = 0;
  do {  // once where k is 0
    ProductShape slice = shape;
    slice.k = std::min(most, shape.k - first);
    MultiplySlice(slice, a + first * a_step, b + first * b_step, first == 0 ? beta : 1.0f, c);
    first += most;
  } while (first < shape.k);
}

CONVENE_INSTANTIATE_PRODUCT(PrimitiveMatMul);

}  // namespace convene::worker::cpu
