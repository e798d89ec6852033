#include "rendezvous/web/status_page.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "rendezvous/web/status_text.h"

namespace convene::rendezvous {
namespace {

constexpr size_t kMostNodes = 500;

constexpr char kHead[] = R"(<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="5">
<title>Convene rendezvous</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em }
pre { font: 14px/1.5 ui-monospace, monospace; white-space: pre-wrap }
</style></head><body>
<h1>Convene rendezvous</h1>
<p><a href="/status">status as JSON</a> &middot; <a href="/metrics">metrics</a> &middot;
<a href="/healthz">health</a></p>
)";

}  // namespace

std::string StatusPage(const std::vector<JobView>& views) {
  const std::string text = absl::StrReplaceAll(
      StatusText(views, kMostNodes),
      {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}, {"'", "&#39;"}});
  return absl::StrCat(kHead, "<pre>", text, "</pre></body></html>\n");
}

}  // namespace convene::rendezvous
