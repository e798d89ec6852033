// The daemon's HTTP pages.
//
//   /         a page for people
//   /healthz  200 "ok"; 503 while the daemon stops
//   /metrics  for Prometheus; ?run=ID of the runs only that one
//   /status   a StatusReply as JSON; ?run=ID only that job
#pragma once

#include <atomic>
#include <functional>
#include <optional>

#include "rendezvous/attend/daemon.h"
#include "rendezvous/store/store_server.h"
#include "rendezvous/web/http_request.h"
#include "rendezvous/web/http_server.h"
#include "rendezvous/web/status_board.h"

namespace convene::rendezvous {

// Thread-safe.
class Web {
 public:
  using StoreCounts = std::function<std::optional<StoreServer::Counts>()>;

  // `daemon` outlives it. `store_counts`: none before the store's first client.
  Web(Daemon* daemon, StoreCounts store_counts);

  HttpResponse Respond(const HttpRequest& request);
  // From now on /healthz answers 503.
  void MarkStopping() { is_stopping_ = true; }

 private:
  HttpResponse RespondWithStatus(StatusBoard* board, const HttpRequest& request,
                                 const char* content_type);

  Daemon* const daemon_;
  const StoreCounts store_counts_;
  std::atomic<bool> is_stopping_ = false;
  StatusBoard json_;
  StatusBoard page_;
  StatusBoard metrics_;
};

}  // namespace convene::rendezvous
