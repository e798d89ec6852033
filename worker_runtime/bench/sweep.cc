#include "worker_runtime/bench/sweep.h"

#include <algorithm>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/bench/expected.h"

namespace convene::worker {
namespace {

bool IsInPlace(CollectiveKind kind) {
  return kind != CollectiveKind::kAllToAll && kind != CollectiveKind::kShift;
}

// Ranks' buffers are cut into equal shards, of one element at least.
int64_t CountOf(CollectiveKind kind, int64_t bytes, DType dtype, int ranks) {
  const int64_t elements = std::max<int64_t>(bytes / static_cast<int64_t>(SizeOf(dtype)), 1);
  const bool is_whole = kind == CollectiveKind::kBroadcast || kind == CollectiveKind::kShift;
  return is_whole ? elements : std::max<int64_t>(elements / ranks, 1) * ranks;
}

std::vector<char> ToBytes(const std::vector<float>& values, DType dtype) {
  std::vector<char> bytes(values.size() * SizeOf(dtype));
  if (dtype == DType::kFloat32) {
    std::copy(values.begin(), values.end(), reinterpret_cast<float*>(bytes.data()));
  } else {
    std::transform(values.begin(), values.end(), reinterpret_cast<BFloat16*>(bytes.data()),
                   [](float value) { return BFloat16(value); });
  }
  return bytes;
}

float ElementAt(const std::vector<char>& bytes, int64_t index, DType dtype) {
  return dtype == DType::kFloat32
             ? reinterpret_cast<const float*>(bytes.data())[index]
             : static_cast<float>(reinterpret_cast<const BFloat16*>(bytes.data())[index]);
}

}  // namespace

int PartnerOf(int own, int size, int round) {
  // The last of an even number of seats stays, and the others go round. Of an odd number of members
  // nobody has that seat.
  const int turning = size + size % 2 - 1;
  if (own >= size) return own;
  if (own == turning) return round % turning;
  const int opposite = (2 * round - own + 2 * turning) % turning;
  const int partner = opposite == own ? turning : opposite;
  return partner < size ? partner : own;
}

absl::StatusOr<std::unique_ptr<Sweep>> Sweep::Make(const BenchFlags& flags,
                                                   const CommunicatorSet& communicators,
                                                   Device& device, Memory& memory, Clock& clock) {
  // The smallest size may be less than an element for each rank.
  const int64_t least = int64_t{8} * communicators.world->size();
  const int64_t buffer_bytes = std::max(MostBytes(flags), least);
  std::unique_ptr<Sweep> sweep(
      new Sweep(flags, communicators, device, memory, clock, buffer_bytes));
  CONVENE_ASSIGN_OR_RETURN(sweep->input_, memory.Allocate(buffer_bytes));
  CONVENE_ASSIGN_OR_RETURN(sweep->output_, memory.Allocate(buffer_bytes));
  return sweep;
}

Sweep::~Sweep() {
  Synchronize().IgnoreError();
  if (input_ != nullptr) memory_.Free(input_, buffer_bytes_);
  if (output_ != nullptr) memory_.Free(output_, buffer_bytes_);
}

absl::Status Sweep::Synchronize() {
  CONVENE_RETURN_IF_ERROR(device_.Synchronize(flags_.timeout));
  return communicators_.world->Check();
}

absl::Status Sweep::Call(CollectiveKind kind, int64_t count) {
  const auto elements = static_cast<size_t>(count);
  const Elements input(input_, elements, flags_.dtype);
  const Elements output(IsInPlace(kind) ? input_ : output_, elements, flags_.dtype);
  return communicators_.world->Call({kind, input, output, flags_.op, flags_.root},
                                    device_.compute());
}

absl::StatusOr<double> Sweep::MeanSeconds(absl::FunctionRef<absl::Status()> call) {
  for (int i = 0; i < flags_.warmup_iterations; ++i) CONVENE_RETURN_IF_ERROR(call());
  CONVENE_RETURN_IF_ERROR(Synchronize());
  Stream host = Stream::Cpu();
  CONVENE_RETURN_IF_ERROR(communicators_.host->Barrier(host));
  const MonotonicTime begin = clock_.Now();
  for (int i = 0; i < flags_.iterations; ++i) CONVENE_RETURN_IF_ERROR(call());
  CONVENE_RETURN_IF_ERROR(Synchronize());
  return absl::ToDoubleSeconds(clock_.Now() - begin) / flags_.iterations;
}

absl::StatusOr<int64_t> Sweep::CountWrong(CollectiveKind kind, int64_t count) {
  const Collective& world = *communicators_.world;
  const ExpectedResult expected(kind, flags_.op, flags_.dtype, flags_.root, world.size(), count);
  std::vector<float> given(count);
  for (int64_t i = 0; i < count; ++i) given[i] = expected.Given(world.rank(), i);
  std::vector<char> bytes = ToBytes(given, flags_.dtype);
  Stream& stream = device_.compute();
  device_.Copy(bytes.data(), input_, bytes.size(), stream);
  device_.Zero(output_, bytes.size(), stream);
  CONVENE_RETURN_IF_ERROR(Synchronize());
  CONVENE_RETURN_IF_ERROR(Call(kind, count));
  device_.Copy(IsInPlace(kind) ? input_ : output_, bytes.data(), bytes.size(), stream);
  CONVENE_RETURN_IF_ERROR(Synchronize());
  int64_t wrong = 0;
  const ExpectedResult::Part part = expected.FilledPart(world.rank());
  for (int64_t i = part.begin; i < part.end; ++i) {
    if (ElementAt(bytes, i, flags_.dtype) != expected.Right(world.rank(), i)) ++wrong;
  }
  return wrong;
}

absl::StatusOr<BenchRow> Sweep::Time(const std::string& operation, int64_t bytes) {
  const CollectiveKind kind = *OperationNamed(operation);
  const int64_t count = CountOf(kind, bytes, flags_.dtype, communicators_.world->size());
  BenchRow row = {.operation = operation,
                  .bytes = count * static_cast<int64_t>(SizeOf(flags_.dtype)),
                  .count = count};
  Stream host = Stream::Cpu();
  if (flags_.check) {
    CONVENE_ASSIGN_OR_RETURN(const int64_t wrong, CountWrong(kind, count));
    auto all_wrong = static_cast<double>(wrong);
    CONVENE_RETURN_IF_ERROR(
        communicators_.host->AllReduce(absl::MakeSpan(&all_wrong, 1), ReduceOp::kSum, host));
    row.wrong = static_cast<int64_t>(all_wrong);
  }
  CONVENE_ASSIGN_OR_RETURN(row.seconds, MeanSeconds([&] { return Call(kind, count); }));
  CONVENE_RETURN_IF_ERROR(
      communicators_.host->AllReduce(absl::MakeSpan(&row.seconds, 1), ReduceOp::kMax, host));
  return row;
}

absl::StatusOr<double> Sweep::TimeExchange(int partner, int64_t bytes) {
  Collective& world = *communicators_.world;
  const auto count = static_cast<int32_t>(bytes / static_cast<int64_t>(SizeOf(DType::kFloat32)));
  // Everything goes to the partner, and as much comes back: no message to any other rank.
  const bool has_partner = partner != world.rank();
  std::vector<int32_t> begin(world.size() + 1, 0);
  if (has_partner) std::fill(begin.begin() + partner + 1, begin.end(), count);
  const RowCut cut = {begin.data(), 1};
  const auto length = static_cast<size_t>(has_partner ? count : 0);
  const Elements input(input_, length, DType::kFloat32), output(output_, length, DType::kFloat32);
  return MeanSeconds([&] { return world.AllToAllV(input, cut, output, cut, device_.compute()); });
}

absl::StatusOr<PairTable> Sweep::TimePairs(const std::vector<int>& members,
                                           const std::vector<std::string>& names) {
  const int size = static_cast<int>(members.size());
  const int64_t most = MostBytes(flags_) / 4 * 4, least = std::max<int64_t>(flags_.least_bytes, 4);
  PairTable table = {.members = names, .bytes = most};
  table.bytes_per_second.resize(size * size);
  table.latency_seconds.resize(size * size);
  const int rank = communicators_.world->rank();
  const int own =
      static_cast<int>(std::find(members.begin(), members.end(), rank) - members.begin());
  for (int round = 0; round < PairRounds(size); ++round) {
    const int partner = PartnerOf(own, size, round);
    const bool rests = partner == own;
    const int peer = rests ? rank : members[partner];
    CONVENE_ASSIGN_OR_RETURN(const double latency, TimeExchange(peer, least));
    CONVENE_ASSIGN_OR_RETURN(const double seconds, TimeExchange(peer, most));
    if (rests) continue;
    table.latency_seconds[own * size + partner] = latency;
    table.bytes_per_second[own * size + partner] = static_cast<double>(most) / seconds;
  }
  Stream host = Stream::Cpu();
  for (std::vector<double>* values : {&table.bytes_per_second, &table.latency_seconds}) {
    CONVENE_RETURN_IF_ERROR(
        communicators_.host->AllReduce(absl::MakeSpan(*values), ReduceOp::kSum, host));
  }
  return table;
}

}  // namespace convene::worker
