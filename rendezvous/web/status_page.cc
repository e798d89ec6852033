#include "rendezvous/web/status_page.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace convene::rendezvous {
namespace {

constexpr size_t kMostNodes = 500;

constexpr char kHead[] = R"(<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="5">
<title>Convene rendezvous</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em; max-width: 75em }
table { border-collapse: collapse; margin: .5em 0 }
th, td { text-align: left; padding: .15em 1em .15em 0; border-bottom: 1px solid #ddd }
td.number, th.number { text-align: right }
h2 { margin: 1.5em 0 0 } .why { color: #555 }
</style></head><body>
<h1>Convene rendezvous</h1>
<p><a href="/status">status as JSON</a> &middot; <a href="/metrics">metrics</a> &middot;
<a href="/healthz">health</a></p>
)";

std::string Escaped(absl::string_view text) {
  return absl::StrReplaceAll(
      text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}, {"'", "&#39;"}});
}

void AppendNode(const NodeView& node, std::string* page) {
  std::string step = "-";
  std::string speed = "-";
  std::string phase;
  if (node.progress.has_value()) {
    step = absl::StrCat(node.progress->step);
    if (!node.progress->phase.empty()) phase = absl::StrCat(" (", node.progress->phase, ")");
    if (node.progress->steps_per_second > 0) {
      speed = absl::StrFormat("%.3g", node.progress->steps_per_second);
    }
  }
  absl::StrAppend(page, "<tr><td class=number>",
                  node.group_rank < 0 ? "-" : absl::StrCat(node.group_rank), "<td>",
                  Escaped(node.host), "<td class=number>", node.local_world_size, "<td>",
                  Escaped(node.state), Escaped(phase), "<td class=number>", step,
                  "<td class=number>", speed, "<td class=why>", Escaped(node.why), "</tr>\n");
}

void AppendJob(const JobView& job, std::string* page) {
  absl::StrAppend(page, "<h2>", Escaped(job.job_id), "</h2>\n<p><b>", Escaped(job.phase),
                  "</b>, epoch ", job.epoch.value(), ", ", job.nodes.size(), " nodes (--nnodes ",
                  job.nodes_min, ":", job.nodes_max, "), restarts ", job.restart_count, " of ",
                  job.max_restarts, "<br><span class=why>", Escaped(job.why), "</span></p>\n");
  if (!job.nodes.empty()) {
    absl::StrAppend(page,
                    "<table><tr><th class=number>group rank<th>host<th class=number>workers"
                    "<th>state<th class=number>step<th class=number>steps/s<th>why</tr>\n");
    const size_t shown = std::min(job.nodes.size(), kMostNodes);
    for (size_t i = 0; i < shown; ++i) AppendNode(job.nodes[i], page);
    absl::StrAppend(page, "</table>\n");
    if (shown < job.nodes.size()) {
      absl::StrAppend(page, "<p>and ", job.nodes.size() - shown, " more</p>\n");
    }
  }
  if (job.last_failures.empty()) return;
  absl::StrAppend(page, "<p>Last failures</p><ul>\n");
  for (const FailureView& failure : job.last_failures) {
    absl::StrAppend(page, "<li>epoch ", failure.epoch.value(), ", ",
                    absl::FormatDuration(absl::Trunc(failure.ago, absl::Seconds(1))),
                    " ago: ", Escaped(failure.what), "</li>\n");
  }
  absl::StrAppend(page, "</ul>\n");
}

}  // namespace

std::string StatusPage(const std::vector<JobView>& views) {
  std::string page = kHead;
  if (views.empty()) absl::StrAppend(&page, "<p>No jobs.</p>\n");
  for (const JobView& job : views) AppendJob(job, &page);
  absl::StrAppend(&page, "</body></html>\n");
  return page;
}

}  // namespace convene::rendezvous
