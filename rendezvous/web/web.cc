#include "rendezvous/web/web.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "rendezvous/web/metrics.h"
#include "rendezvous/web/process_usage.h"
#include "rendezvous/web/status_page.h"
#include "rendezvous/wire/status_json.h"
#include "tools/base/clock.h"

namespace convene::rendezvous {
namespace {

HttpResponse PlainText(int code, std::string text) {
  return {.code = code, .body = std::make_shared<const std::string>(std::move(text))};
}

StatusBoard::Source ViewsOf(Daemon* daemon) {
  return [daemon](const std::string& job_id) { return daemon->Views(job_id); };
}

}  // namespace

Web::Web(Daemon* daemon, StoreCounts store_counts)
    : daemon_(daemon),
      store_counts_(std::move(store_counts)),
      json_(
          ViewsOf(daemon),
          [](const std::vector<JobView>& views) { return absl::StrCat(StatusJson(views), "\n"); },
          &Clock::Real()),
      page_(ViewsOf(daemon), StatusPage, &Clock::Real()),
      metrics_(
          ViewsOf(daemon),
          [this](const std::vector<JobView>& views) {
            return MetricsText(views, daemon_->Counters(), store_counts_(), ReadProcessUsage());
          },
          &Clock::Real()) {}

HttpResponse Web::Respond(const HttpRequest& request) {
  if (request.path == "/healthz") {
    return is_stopping_ ? PlainText(503, "stopping\n") : PlainText(200, "ok\n");
  }
  if (request.path == "/metrics") return RespondWithStatus(&metrics_, request, kMetricsContentType);
  if (request.path == "/status") return RespondWithStatus(&json_, request, "application/json");
  if (request.path == "/") return RespondWithStatus(&page_, request, "text/html; charset=utf-8");
  return PlainText(404, "no such page; there are /, /healthz, /metrics and /status\n");
}

HttpResponse Web::RespondWithStatus(StatusBoard* board, const HttpRequest& request,
                                    const char* content_type) {
  const auto run = request.query.find("run");
  absl::StatusOr<StatusBoard::Text> text =
      board->Get(run == request.query.end() ? "" : run->second);
  if (!text.ok()) return PlainText(404, absl::StrCat(text.status().message(), "\n"));
  return {.content_type = content_type, .body = *std::move(text)};
}

}  // namespace convene::rendezvous
