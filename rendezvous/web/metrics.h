// PURE. The daemon's state as Prometheus reads it: the text format 0.0.4.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "rendezvous/attend/daemon_counters.h"
#include "rendezvous/quorum/job_view.h"
#include "rendezvous/store/store_server.h"
#include "rendezvous/web/curves.h"
#include "rendezvous/web/process_usage.h"

namespace convene::rendezvous {

inline constexpr char kMetricsContentType[] = "text/plain; version=0.0.4; charset=utf-8";

// Of a job with more ranks, the single ranks have no samples.
inline constexpr int kMostRanksMeasured = 64;
// In all jobs together: later ones have no samples of single ranks.
inline constexpr int kMostRanksMeasuredInAll = 1024;

// At most JobTable::kMostJobs values of the label `run`, StoreServer::kRunsCounted of the label
// `keys` (the beginning of a run's keys), and kMostRanksMeasured of the label `rank`, in
// kMostRanksMeasuredInAll series a metric; no other label grows. A number that no worker tells
// has no sample. `store`: none before its first client.
std::string MetricsText(const std::vector<JobView>& views, const DaemonCounters& counters,
                        const std::optional<StoreServer::Counts>& store,
                        const ProcessUsage& process, const CurvesOf& curves_of);

// The end of the daemon's certificates; "" for InfiniteFuture, which says that it has none.
std::string CertificateMetricText(absl::Time end);

}  // namespace convene::rendezvous
