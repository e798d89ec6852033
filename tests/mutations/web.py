"""Bugs planted in what the daemon tells over HTTP: the page's curves, goodput, logs, JSON and metrics."""

from planting import Mutation

WEB = 'rendezvous/web'
CURVES = f'{WEB}/curves.cc'
FEED = f'{WEB}/log_feed.cc'
JSON = f'{WEB}/page_json.cc'
METRICS = f'{WEB}/metrics.cc'
PAGE = f'{WEB}/page'
TOLD = f'//{WEB}:web_test'
READ = f'//{WEB}:http_test'
SEEN = '//tests/web:page_test'

MUTATIONS = [
    Mutation('a curve forgets its beginning', CURVES, 'CurvePoint point = points_[2 * i];', 'CurvePoint point = points_[2 * i + 1];', TOLD),
    Mutation('a value that nobody told counts as one', CURVES, 'if (std::isnan(value)) return mean;', 'if (std::isnan(value)) return 0;', TOLD),
    Mutation('a step that is made again is kept twice', CURVES, '*sample.step > *highest_;', '*sample.step != *highest_;', TOLD),
    Mutation('the steps before the highest one count as new', CURVES, 'std::max(*step_, *highest_)', '*step_', TOLD),
    Mutation('a checkpoint counts as a step', CURVES, 'now - step_seen_ - in_checkpoints_;', 'now - step_seen_;', TOLD),
    Mutation('the way to an epoch counts as steps', CURVES, 'step_.reset();', '', TOLD),
    Mutation('a job that is over goes on', CURVES, 'if (IsOver(view)) {', 'if (IsOver(view) && known.empty()) {', TOLD),
    Mutation('a new run of a name goes on with the curve of the one before', CURVES, '!found->second.is_over && ', '', TOLD),
    Mutation('a run that begins between two looks goes on with the curve of the one before', CURVES,
             ' && found->second.floor == view.floor', '', TOLD),
    Mutation('a page that reads a run to its end is given the next one', FEED, 'question.feed == entry.id || ', '', TOLD),
    Mutation('a page that comes late sees the run that is over', FEED, '!entry.feed->is_over()) return', 'true) return', TOLD),
    Mutation('nodes beside the epoch tell its step', CURVES, 'if (node.group_rank < 0) continue;', '', TOLD),
    Mutation('a page that nobody reads fills the memory', FEED, 'is_paused_ = unread_bytes_ >= kMostUnreadBytes;', '', TOLD),
    Mutation('a paused feed never goes on', FEED, 'takes_on = std::exchange(is_paused_, false);', 'is_paused_ = false;', TOLD),
    Mutation('a line is told twice', FEED, 'next_ - 1) + 1;', 'next_ - 1);', TOLD),
    Mutation('a mark of another feed counts', FEED, 'if (question.feed == entry->id) after', 'after', TOLD),
    Mutation('agents publish for a page that is closed', FEED, 'for (const auto& feed : unread) feed->Close();', '', TOLD),
    Mutation('a rank has the number that it has on its node', JSON, 'first_rank + rank.local_rank', 'rank.local_rank', TOLD),
    Mutation('a loss that is no number is told as none', JSON, 'Add(absl::string_view("NaN"));', 'writer_.Null();', TOLD),
    Mutation('an answer that the page has is sent again', f'{WEB}/web.cc',
             'if (request.if_none_match == tag) {', 'if (request.if_none_match == tag + tag) {', TOLD),
    Mutation('a header counts for the next request too', f'{WEB}/http_request.cc', 'request_ = {};', 'request_.query.clear();', READ),
    Mutation('each rank of a large job is a series', METRICS, 'std::min<size_t>(kMostRanksMeasured, room)', 'std::max<size_t>(4096, room)', TOLD),
    Mutation('a NaN with a sign hides all metrics', METRICS, 'std::isnan(value) ? "NaN" : ', '', TOLD),
    Mutation('a node that waits shows the step of an epoch that is over', f'{WEB}/status_text.cc', 'if (node.tells_progress()) {',
             'if (node.progress.has_value()) {', TOLD),
    Mutation('failures that no longer count are told as restarts', f'{WEB}/status_text.cc', 'job.restart_count - job.failures_outside_window;',
             'job.restart_count;', TOLD),
    Mutation('milliseconds are told as seconds', METRICS, 'constexpr double kSeconds = 1e-3;', 'constexpr double kSeconds = 1;', TOLD),
    Mutation('a host name becomes markup', f'{PAGE}/words.js', 'element.textContent = text;\n  return', 'element.innerHTML = text;\n  return', SEEN),
    Mutation('all rows of a table are in the page', f'{PAGE}/table.js', 'Math.min(this.shown.length - first, ', 'Math.max(this.shown.length - first, ', SEEN),
    Mutation('a search shows every line', f'{PAGE}/logs.js', '.includes(wanted)) : this.lines;', '.includes("")) : this.lines;', SEEN),
    Mutation('a job that failed looks well', f'{PAGE}/words.js', 'if (job.phase === "failed") {', 'if (job.phase === "lost") {', SEEN),
    Mutation('a daemon that is gone looks alive', f'{PAGE}/main.js', 'tell(state.heard ? ', 'void (state.heard ? ', SEEN),
    Mutation('a daemon that hangs looks alive', f'{PAGE}/words.js', 'const HEAD_PATIENCE_MS = 10e3;', 'const HEAD_PATIENCE_MS = 10e6;', SEEN),
    Mutation('lines of a job that the daemon does not know yet never come', f'{PAGE}/logs.js', 'pause = 5 * LOG_PAUSE_MS;', 'return;', SEEN),
    Mutation('a node with a long lease is silent between its words', JSON, 'std::max(kLeastSilence, node.lease / 2)', 'kLeastSilence', TOLD),
    Mutation('the Tab key stops at each row of the table', f'{PAGE}/table.js', 'row.index === this.at ? 0 : -1;', '0;', SEEN),
    Mutation('a scroll gives the focus to another row', f'{PAGE}/table.js', 'if (hasFocus && count > 0)', 'if (false)', SEEN),
    Mutation('the head of the table covers the row with the focus', f'{PAGE}/table.js', 'top + 2 * ROW_HEIGHT', 'top', SEEN),
    Mutation('a telephone hides columns', f'{PAGE}/style.css', '  .wide { order: 1; }', '  .wide { display: none; }', SEEN),
    Mutation('a failure is told in each look', f'{WEB}/status_text.cc', 'if (is_known) continue;', 'if (is_known && lines.size() > 9) continue;', TOLD),
]
