#include "worker_runtime/planner/measured_ops.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace convene::worker {
namespace {

// Ops of a block's forward pass that go over memory: norms, rotations, sums, copies, activations.
constexpr double kPassesOfBlock = 8;
// Of one sample of passes.
constexpr double kPassesOfSample = 2;

// The x, none below 0, for which each equation's terms times x come nearest to 1: least squares by
// coordinates. So small errors count as shares of what each sample took.
template <size_t n>
std::array<double, n> FitToOne(const std::vector<std::array<double, n>>& equations) {
  constexpr int kSweeps = 5000;
  std::array<double, n> x = {};
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    for (size_t i = 0; i < n; ++i) {
      double along = 0, square = 0;
      for (const std::array<double, n>& terms : equations) {
        double rest = 1;
        for (size_t j = 0; j < n; ++j) rest -= j == i ? 0 : terms[j] * x[j];
        along += terms[i] * rest;
        square += terms[i] * terms[i];
      }
      x[i] = square > 0 ? std::max(0.0, along / square) : 0;
    }
  }
  return x;
}

void UseProducts(const std::vector<OpSample>& samples, DType dtype, Gpu* gpu,
                 Efficiency* efficiency) {
  std::vector<std::array<double, 3>> equations;
  double fastest = 0;
  for (const OpSample& s : samples) {
    const double rate = s.work / s.seconds;
    fastest = std::max(fastest, rate);
    equations.push_back({rate, rate / s.rows, rate / s.width});
  }
  if (equations.empty()) return;
  const auto [a_flop, of_rows, of_width] = FitToOne(equations);
  // No size was slower than another.
  const double rate = a_flop > 0 ? 1 / a_flop : fastest;
  double& peak = SizeOf(dtype) == 4 ? gpu->fp32 : gpu->bf16;
  // A CPU has no data sheet: what it reaches is its peak.
  if (gpu->is_cpu) {
    peak = rate;
    gpu->sustained = 1;
  }
  efficiency->product_share = rate / (gpu->sustained * peak);
  efficiency->half_rows = of_rows * rate;
  efficiency->half_width = of_width * rate;
}

void UsePasses(const std::vector<OpSample>& samples, Gpu* gpu, Efficiency* efficiency) {
  std::vector<std::array<double, 2>> equations;
  for (const OpSample& s : samples) equations.push_back({s.work / s.seconds, 1 / s.seconds});
  if (equations.empty()) return;
  const auto [a_byte, constant] = FitToOne(equations);
  if (a_byte <= 0) return;
  gpu->memory_bandwidth = 1 / a_byte;
  efficiency->memory_share = 1;
  efficiency->pass_seconds = constant / kPassesOfSample * kPassesOfBlock;
}

void UseAttention(const std::vector<OpSample>& samples, const PlanJob& job, const Gpu& gpu,
                  Efficiency* efficiency) {
  const auto distance = [&](const OpSample& s) {
    return std::abs(std::log2(s.rows / static_cast<double>(job.sequence_length)));
  };
  const auto nearest = std::min_element(
      samples.begin(), samples.end(),
      [&](const OpSample& a, const OpSample& b) { return distance(a) < distance(b); });
  if (nearest == samples.end()) return;
  std::vector<std::array<double, 2>> equations;
  double fastest = 0;
  for (const OpSample& s : samples) {
    if (s.rows != nearest->rows) continue;
    const double rate = s.work / s.seconds;
    fastest = std::max(fastest, rate);
    equations.push_back({rate, rate / s.width});
  }
  const auto [a_flop, of_head] = FitToOne(equations);
  const double rate = a_flop > 0 ? 1 / a_flop : fastest;
  const double peak = gpu.sustained * (SizeOf(job.dtype) == 4 ? gpu.fp32 : gpu.bf16);
  efficiency->attention_share = rate / peak;
  efficiency->half_head = of_head * rate;
}

}  // namespace

void UseMeasured(const std::vector<MeasuredOps>& measured, const PlanJob& job, Gpu* gpu,
                 Efficiency* efficiency) {
  for (const MeasuredOps& ops : measured) {
    if (ops.dtype != job.dtype) continue;
    UseProducts(ops.products, job.dtype, gpu, efficiency);
    UsePasses(ops.passes, gpu, efficiency);
    UseAttention(ops.attention, job, *gpu, efficiency);
  }
}

}  // namespace convene::worker
