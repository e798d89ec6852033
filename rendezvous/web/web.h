// The daemon's HTTP pages.
//
//   /          a page for people (page/); for a client that does not take HTML, such as curl, the
//              text of `convene status`
//   /healthz   200 "ok"; 503 while the daemon stops
//   /metrics   for Prometheus; ?run=ID of the runs only that one
//   /status    a StatusReply as JSON; ?run=ID only that job
//   /api/jobs, /api/job?run=ID, /api/logs?run=ID[&rank=N][&feed=F&after=N]
//              what the page asks for (page_json.h); with an ETag
#pragma once

#include <atomic>
#include <functional>
#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "rendezvous/attend/daemon.h"
#include "rendezvous/logs/log_hub.h"
#include "rendezvous/store/store_server.h"
#include "rendezvous/web/history.h"
#include "rendezvous/web/http_request.h"
#include "rendezvous/web/http_server.h"
#include "rendezvous/web/log_feed.h"
#include "rendezvous/web/page_json.h"
#include "rendezvous/web/status_board.h"

namespace convene::rendezvous {

// Thread-safe.
class Web {
 public:
  using StoreCounts = std::function<std::optional<StoreServer::Counts>()>;
  using CertificateEnd = std::function<absl::Time()>;

  // `daemon` and `log_hub` outlive it. `store_counts`: none before the store's first client.
  // `certificate_end`: CertificateMetricText's.
  Web(Daemon* daemon, LogHub* log_hub, StoreCounts store_counts, CertificateEnd certificate_end);

  // Begins to keep the jobs' curves (history.h). At most once; its errors.
  absl::Status Start() { return history_.Start(); }

  HttpResponse Respond(const HttpRequest& request);
  // From now on /healthz answers 503, and the daemon is not looked at any more unless asked.
  void MarkStopping();

 private:
  HttpResponse RespondWithStatus(StatusBoard* board, const HttpRequest& request,
                                 const char* content_type);
  HttpResponse RespondToPage(const HttpRequest& request);
  HttpResponse RespondWithLogs(const HttpRequest& request);
  CurvesOf Curves();

  Daemon* const daemon_;
  const StoreCounts store_counts_;
  const CertificateEnd certificate_end_;
  std::atomic<bool> is_stopping_ = false;
  StatusBoard json_;
  StatusBoard text_;
  StatusBoard metrics_;
  StatusBoard page_jobs_;
  StatusBoard page_job_;
  LogFeeds log_feeds_;
  History history_;  // its thread uses the feeds
};

}  // namespace convene::rendezvous
