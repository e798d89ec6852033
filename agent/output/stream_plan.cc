#include "agent/output/stream_plan.h"

namespace convene::agent {
namespace {

bool Has(Streams streams, OutputStream stream) {
  const Streams one = stream == OutputStream::kStdout ? Streams::kStdout : Streams::kStderr;
  return (static_cast<int>(streams) & static_cast<int>(one)) != 0;
}

}  // namespace

StreamPlan PlanStream(const LogOptions& options, OutputStream stream, int local_rank) {
  const bool redirected = Has(options.redirects.Of(local_rank), stream);
  const bool teed = Has(options.tee.Of(local_rank), stream);
  const bool shown =
      options.shown_local_ranks.empty() || options.shown_local_ranks.count(local_rank) > 0;
  const bool has_filters = stream == OutputStream::kStdout ? !options.stdout_filters.empty()
                                                           : !options.stderr_filters.empty();
  StreamPlan plan;
  plan.on_console = shown && (teed || !redirected);
  plan.has_prefix = teed || options.prefix_all;
  plan.in_file = redirected || teed;
  plan.filtered = teed && shown && has_filters;
  return plan;
}

std::optional<int> TerminalWorker(const InputFacts& own, int local_world_size,
                                  std::optional<int> debug_rank) {
  if (!own.is_terminal || !own.in_foreground) return std::nullopt;
  const int chosen = debug_rank.value_or(0);
  const bool is_alone = debug_rank.has_value() || local_world_size == 1;
  return is_alone && chosen < local_world_size ? std::optional(chosen) : std::nullopt;
}

bool WritesFiles(const LogOptions& options, int local_world_size) {
  for (int local_rank = 0; local_rank < local_world_size; ++local_rank) {
    for (const OutputStream stream : {OutputStream::kStdout, OutputStream::kStderr}) {
      if (PlanStream(options, stream, local_rank).in_file) return true;
    }
  }
  return false;
}

}  // namespace convene::agent
