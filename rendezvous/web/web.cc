#include "rendezvous/web/web.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/hash/hash.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "rendezvous/web/metrics.h"
#include "rendezvous/web/page/page.h"
#include "rendezvous/web/process_usage.h"
#include "rendezvous/web/status_text.h"
#include "rendezvous/wire/status_json.h"
#include "tools/base/clock.h"

namespace convene::rendezvous {
namespace {

constexpr size_t kMostTextNodes = 500;
// The page asks every second or two.
constexpr absl::Duration kPageReuse = absl::Seconds(1);

HttpResponse PlainText(int code, std::string text) {
  return {.code = code, .body = std::make_shared<const std::string>(std::move(text))};
}

// With an ETag, and without the text where the client has it already.
HttpResponse Json(const HttpRequest& request, StatusBoard::Text text) {
  const std::string tag =
      absl::StrCat("\"", absl::Hex(absl::Hash<absl::string_view>()(*text)), "\"");
  HttpResponse response = {.content_type = "application/json",
                           .body = std::move(text),
                           .headers = absl::StrCat("ETag: ", tag, "\r\n")};
  if (request.if_none_match == tag) {
    response.code = 304;
    response.body = std::make_shared<const std::string>();
  }
  return response;
}

HttpResponse Page() {
  static const auto* const text =
      new std::shared_ptr<const std::string>(std::make_shared<const std::string>(kPageText));
  return {.content_type = "text/html; charset=utf-8",
          .body = *text,
          .headers = absl::StrCat("Content-Security-Policy: ", kPagePolicy,
                                  "\r\nReferrer-Policy: no-referrer\r\n")};
}

std::string ValueOf(const HttpRequest& request, const char* key) {
  const auto found = request.query.find(key);
  return found == request.query.end() ? "" : found->second;
}

StatusBoard::Source ViewsOf(Daemon* daemon) {
  return [daemon](const std::string& job_id) { return daemon->Views(job_id); };
}

}  // namespace

Web::Web(Daemon* daemon, LogHub* log_hub, StoreCounts store_counts, CertificateEnd certificate_end)
    : daemon_(daemon),
      store_counts_(std::move(store_counts)),
      certificate_end_(std::move(certificate_end)),
      json_(
          ViewsOf(daemon),
          [](const std::vector<JobView>& views) { return absl::StrCat(StatusJson(views), "\n"); },
          &Clock::Real()),
      text_(
          ViewsOf(daemon),
          [](const std::vector<JobView>& views) { return StatusText(views, kMostTextNodes); },
          &Clock::Real()),
      metrics_(
          ViewsOf(daemon),
          [this](const std::vector<JobView>& views) {
            return absl::StrCat(MetricsText(views, daemon_->Counters(), store_counts_(),
                                            ReadProcessUsage(), Curves()),
                                CertificateMetricText(certificate_end_()));
          },
          &Clock::Real()),
      page_jobs_(
          ViewsOf(daemon),
          [this](const std::vector<JobView>& views) { return JobsJson(views, Curves()); },
          &Clock::Real(), kPageReuse),
      page_job_(
          ViewsOf(daemon),
          [this](const std::vector<JobView>& views) {
            return views.empty() ? "{}" : JobJson(views.front(), Curves());
          },
          &Clock::Real(), kPageReuse),
      log_feeds_(log_hub, &Clock::Real()),
      history_([daemon] { return daemon->Views(""); }, [this] { log_feeds_.CloseUnread(); },
               &Clock::Real()) {}

CurvesOf Web::Curves() {
  return [this](const std::string& job_id, absl::FunctionRef<void(const JobCurves::Job*)> use) {
    history_.Read(job_id, use);
  };
}

void Web::MarkStopping() {
  is_stopping_ = true;
  history_.Stop();
}

HttpResponse Web::Respond(const HttpRequest& request) {
  if (request.path == "/healthz") {
    return is_stopping_ ? PlainText(503, "stopping\n") : PlainText(200, "ok\n");
  }
  if (request.path == "/metrics") return RespondWithStatus(&metrics_, request, kMetricsContentType);
  if (request.path == "/status") return RespondWithStatus(&json_, request, "application/json");
  if (request.path == "/") {
    return absl::StrContains(request.accept, "text/html")
               ? Page()
               : RespondWithStatus(&text_, request, "text/plain; charset=utf-8");
  }
  if (absl::StartsWith(request.path, "/api/")) return RespondToPage(request);
  return PlainText(404, "no such page; there are /, /healthz, /metrics and /status\n");
}

HttpResponse Web::RespondToPage(const HttpRequest& request) {
  const bool is_job = request.path == "/api/job";
  if (request.path == "/api/logs") return RespondWithLogs(request);
  if (!is_job && request.path != "/api/jobs") {
    return PlainText(404, "no such page; the page asks for /api/jobs, /api/job and /api/logs\n");
  }
  const std::string run = is_job ? ValueOf(request, "run") : "";
  if (is_job && run.empty()) return PlainText(400, "say which job: /api/job?run=ID\n");
  absl::StatusOr<StatusBoard::Text> text = (is_job ? page_job_ : page_jobs_).Get(run);
  if (!text.ok()) return PlainText(404, absl::StrCat(text.status().message(), "\n"));
  return Json(request, *std::move(text));
}

HttpResponse Web::RespondWithLogs(const HttpRequest& request) {
  LogFeeds::Question question = {.run = ValueOf(request, "run")};
  const std::string rank = ValueOf(request, "rank");
  const bool is_bad_rank =
      !rank.empty() && (!absl::SimpleAtoi(rank, &question.rank) || question.rank < 0);
  if (question.run.empty() || is_bad_rank) {
    return PlainText(400, "say which job, and perhaps which rank: /api/logs?run=ID&rank=0\n");
  }
  // A mark that cannot be read is none.
  (void)absl::SimpleAtoi(ValueOf(request, "feed"), &question.feed);
  (void)absl::SimpleAtoi(ValueOf(request, "after"), &question.after);
  absl::StatusOr<FeedAnswer> answer = log_feeds_.Read(question);
  if (absl::IsFailedPrecondition(answer.status())) {
    // The run is over, and its agents are gone: the words say where its log files are.
    answer = FeedAnswer{.over = std::string(answer.status().message())};
  }
  if (!answer.ok()) {
    return PlainText(absl::IsNotFound(answer.status()) ? 404 : 503,
                     absl::StrCat(answer.status().message(), "\n"));
  }
  return {.content_type = "application/json",
          .body = std::make_shared<const std::string>(LogsJson(*answer))};
}

HttpResponse Web::RespondWithStatus(StatusBoard* board, const HttpRequest& request,
                                    const char* content_type) {
  absl::StatusOr<StatusBoard::Text> text = board->Get(ValueOf(request, "run"));
  if (!text.ok()) return PlainText(404, absl::StrCat(text.status().message(), "\n"));
  return {.content_type = content_type, .body = *std::move(text)};
}

}  // namespace convene::rendezvous
