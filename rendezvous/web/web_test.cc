#include "rendezvous/web/web.h"

#include <catch2/catch.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "rendezvous/quorum/messages.h"
#include "tools/base/testing/manual_clock.h"

namespace convene::rendezvous {
namespace {

// The incarnations of the two nodes.
constexpr uint64_t kIncarnations[] = {0x1234567812345678, 0x8765432187654321};

class DeafSink final : public StreamSink {
 public:
  void Queue(Item) override {}
  void Flush() override {}
};

// A daemon with one job, "llama", of two nodes.
class WebTest {
 public:
  WebTest() {
    for (const uint64_t incarnation : kIncarnations) {
      const MemberId id = daemon_.Open(std::make_shared<DeafSink>());
      Hello hello;
      hello.job_id = "llama";
      hello.host = "node";
      hello.nodes_min = hello.nodes_max = 2;
      hello.lease = absl::Minutes(5);
      daemon_.Join(id, Incarnation(incarnation), hello);
      daemon_.Receive(id, Incarnation(incarnation), Epoch(), Ready{"node", 1});
    }
  }
  ~WebTest() { daemon_.Shutdown(); }

  HttpResponse Get(const std::string& path, const std::string& run = "",
                   const std::string& if_none_match = "") {
    HttpRequest request;
    request.path = path;
    request.accept = "*/*";
    request.if_none_match = if_none_match;
    if (!run.empty()) request.query["run"] = run;
    return web_.Respond(request);
  }

  ManualClock clock_;
  Daemon daemon_{&clock_, true};
  LogHub hub_{&daemon_};
  Web web_{&daemon_, &hub_,
           [] {
             StoreServer::Counts counts;
             counts.keys = 17;
             return counts;
           },
           [] { return absl::FromUnixSeconds(1796785200); }};
};

TEST_CASE_METHOD(WebTest, "health is well until the daemon stops") {
  CHECK(Get("/healthz").code == 200);
  CHECK(*Get("/healthz").body == "ok\n");
  web_.MarkStopping();
  CHECK(Get("/healthz").code == 503);
}

TEST_CASE_METHOD(WebTest,
                 "status is asked for one run or for all, and an unknown one is not found") {
  CHECK(absl::StrContains(*Get("/status").body, "\"job_id\":\"llama\",\"phase\":\"running\""));
  CHECK(absl::StrContains(*Get("/status", "llama").body, "\"job_id\":\"llama\""));
  CHECK(Get("/status").content_type == "application/json");
  const HttpResponse unknown = Get("/status", "lama");
  CHECK(unknown.code == 404);
  CHECK(absl::StrContains(*unknown.body, "knows no job lama"));
  CHECK(absl::StrContains(*Get("/").body, "job llama: running"));
  CHECK(Get("/favicon.ico").code == 404);
}

TEST_CASE_METHOD(WebTest, "a browser gets the page, under a policy that lets nothing else in") {
  HttpRequest request;
  request.path = "/";
  request.accept = "text/html,application/xhtml+xml,*/*;q=0.8";
  const HttpResponse page = web_.Respond(request);
  CHECK(page.content_type == "text/html; charset=utf-8");
  CHECK(absl::StartsWith(*page.body, "<!DOCTYPE html>"));
  CHECK(absl::EndsWith(*page.body, "</html>\n"));
  CHECK(page.body == web_.Respond(request).body);  // one text for all
  CHECK_THAT(page.headers, Catch::Contains("Content-Security-Policy: default-src 'none'; style-src "
                                           "'sha256-") &&
                               Catch::Contains("script-src 'sha256-") &&
                               Catch::Contains("frame-ancestors 'none'\r\n") &&
                               !Catch::Contains("unsafe"));
  // No other machine is asked for anything.
  CHECK_THAT(*page.body, !Catch::Contains(" src=") && !Catch::Contains("https://"));
  CHECK(Get("/").content_type == "text/plain; charset=utf-8");
}

TEST_CASE_METHOD(WebTest,
                 "the page's questions are answered, and an answer that it has is not sent again") {
  const HttpResponse job = Get("/api/job", "llama");
  CHECK(job.code == 200);
  CHECK(job.content_type == "application/json");
  CHECK_THAT(*job.body, Catch::StartsWith("{\"id\":\"llama\",\"phase\":\"running\""));
  REQUIRE(absl::StartsWith(job.headers, "ETag: \""));
  const std::string tag = job.headers.substr(6, job.headers.size() - 8);
  const HttpResponse same = Get("/api/job", "llama", tag);
  CHECK(same.code == 304);
  CHECK(same.body->empty());
  CHECK(same.headers == job.headers);
  CHECK(Get("/api/job", "llama", "\"1\"").code == 200);
  CHECK(Get("/api/job", "llama").body == job.body);  // made once for all pages
  CHECK_THAT(*Get("/api/jobs").body, Catch::StartsWith("{\"jobs\":[{\"id\":\"llama\","));
}

TEST_CASE_METHOD(WebTest, "a stranger's question gets one sentence") {
  for (const auto& [path, run, code, words] :
       std::vector<std::tuple<std::string, std::string, int, std::string>>{
           {"/api/job", "lama", 404, "knows no job lama"},
           {"/api/job", "", 400, "say which job"},
           {"/api/logs", "", 400, "say which job"},
           {"/api/logs", "lama", 404, "lama"},
           {"/api/secrets", "", 404, "no such page"},
           {"/jobs/../../etc/passwd", "", 404, "no such page"},
           {"/index.html", "", 404, "no such page"}}) {
    INFO(path << " " << run);
    const HttpResponse response = Get(path, run);
    CHECK(response.code == code);
    CHECK(response.content_type == "text/plain; charset=utf-8");
    CHECK_THAT(*response.body, Catch::Contains(words) && Catch::EndsWith("\n"));
    CHECK(response.body->find('\n') == response.body->size() - 1);
  }
  HttpRequest request;
  request.path = "/api/logs";
  for (const char* rank : {"x", "-1", "-5"}) {
    INFO(rank);
    request.query = {{"run", "llama"}, {"rank", rank}};
    CHECK(web_.Respond(request).code == 400);
  }
}

TEST_CASE_METHOD(WebTest, "logs are asked of the job's agents, and marks are taken as they are") {
  HttpRequest request;
  request.path = "/api/logs";
  request.query = {{"run", "llama"}, {"rank", "1"}, {"feed", "nonsense"}, {"after", "-7"}};
  const HttpResponse logs = web_.Respond(request);
  CHECK(logs.code == 200);
  CHECK_THAT(*logs.body, Catch::Contains("\"lines\":[]") && Catch::Contains("\"over\":\"\""));
}

TEST_CASE_METHOD(WebTest, "nothing that is served tells an agent's incarnation") {
  for (const char* path : {"/", "/status", "/metrics", "/api/jobs"}) {
    const std::string body = *Get(path).body;
    for (const uint64_t incarnation : kIncarnations) {
      CHECK_FALSE(absl::StrContains(body, absl::StrCat(incarnation)));
    }
  }
  CHECK(absl::StrContains(
      *Get("/status").body,
      absl::StrCat("\"agent_id\":\"", AgentIdOf(Incarnation(kIncarnations[0])).value(), "\"")));
}

TEST_CASE_METHOD(WebTest, "the daemon's counters are in the metrics") {
  daemon_.Receive(MemberId(1), Incarnation(kIncarnations[0]), Epoch(1), Heartbeat());
  // Decisions: two Welcomes, the Assignments that the second Ready brings, the refusal.
  const MemberId refused = daemon_.Open(std::make_shared<DeafSink>());
  daemon_.Join(refused, Incarnation(3), Hello());  // without a job id
  const std::string metrics = *Get("/metrics").body;
  for (const char* line :
       {"convene_joins_total 2\n", "convene_joins_refused_total 1\n",
        "convene_heartbeats_total 1\n", "convene_epochs_total 1\n", "convene_agent_streams 2\n",
        "convene_jobs{phase=\"running\"} 1\n", "convene_nodes_in_epoch{run=\"llama\"} 2\n",
        "convene_decision_seconds_count 4\n", "convene_store_keys 17\n"}) {
    INFO(line << " in\n" << metrics);
    CHECK(absl::StrContains(metrics, line));
  }
}

}  // namespace
}  // namespace convene::rendezvous
