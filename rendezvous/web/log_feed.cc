#include "rendezvous/web/log_feed.h"

#include <algorithm>
#include <variant>

#include "absl/strings/str_cat.h"
#include "tools/base/random.h"
#include "tools/base/status_macros.h"
#include "tools/base/text.h"

namespace convene::rendezvous {
namespace {

constexpr size_t kLongestText = 1000;
constexpr size_t kLineOverhead = sizeof(FeedLine);
constexpr int kTail = 200;  // of each node

size_t BytesOf(const FeedLine& line) { return line.text.size() + line.host.size() + kLineOverhead; }

}  // namespace

absl::Status LogFeed::Open(const std::shared_ptr<LogFeed>& self, const std::string& run, int rank) {
  LogRequest request;
  request.job_id = run;
  request.tail = kTail;
  request.follow = true;
  if (rank >= 0) request.filter.ranks.insert(rank);
  CONVENE_ASSIGN_OR_RETURN(watch_, hub_->Open(self, request));
  Drain();
  return absl::OkStatus();
}

void LogFeed::Close() { hub_->Close(watch_); }

// The hub allows one caller of Take at a time. It wakes the feed only after Nothing, and a paused
// feed was not told Nothing: so the threads that come here follow each other.
void LogFeed::Drain() {
  for (;;) {
    {
      MutexLock lock(&mutex_);
      is_paused_ = unread_bytes_ >= kMostUnreadBytes;
      if (is_paused_) return;
    }
    const LogHub::Taken taken = hub_->Take(watch_);
    if (std::holds_alternative<LogHub::Nothing>(taken)) return;
    MutexLock lock(&mutex_);
    if (const auto* end = std::get_if<absl::Status>(&taken)) {
      if (over_.empty()) over_ = end->ok() ? "the run is over" : std::string(end->message());
      return;
    }
    const auto& news = std::get<pb::LogNews>(taken);
    if (news.has_batch()) Keep(news.batch());
    if (news.has_ended()) {
      over_ = absl::StrCat("the run is over: ", news.ended().phase(), ": ", news.ended().why());
    }
  }
}

void LogFeed::Keep(const pb::LogBatch& batch) {
  lost_ += static_cast<int64_t>(batch.lost_lines());
  for (const pb::LogLine& line : batch.lines()) {
    lines_.push_back({.number = next_++,
                      .time_us = line.time_us(),
                      .rank = line.rank(),
                      .is_stderr = line.is_stderr(),
                      .host = Utf8(batch.host()),
                      .text = Utf8(line.text(), kLongestText)});
    bytes_ += BytesOf(lines_.back());
    unread_bytes_ += BytesOf(lines_.back());
  }
  while (lines_.size() > kMostLines || bytes_ > kMostBytes) {
    bytes_ -= BytesOf(lines_.front());
    lines_.pop_front();
  }
}

bool LogFeed::is_over() {
  MutexLock lock(&mutex_);
  return !over_.empty();
}

FeedAnswer LogFeed::Read(int64_t after) {
  bool takes_on = false;
  {
    MutexLock lock(&mutex_);
    unread_bytes_ = 0;
    takes_on = std::exchange(is_paused_, false);
  }
  if (takes_on) Drain();
  MutexLock lock(&mutex_);
  FeedAnswer answer = {.feed = id_, .lost = lost_, .over = over_};
  const int64_t first = next_ - static_cast<int64_t>(lines_.size());
  int64_t from = std::clamp(after, int64_t{0}, next_ - 1) + 1;
  if (after > 0) answer.skipped = std::max<int64_t>(0, first - from);
  from = std::max(from, first);
  const int64_t end = std::min<int64_t>(next_, from + kMostAnswerLines);
  const auto begin = lines_.begin() + (from - first);
  answer.lines.assign(begin, begin + (end - from));
  answer.next = end - 1;
  answer.has_more = end < next_;
  return answer;
}

LogFeeds::~LogFeeds() {
  MutexLock lock(&mutex_);
  for (auto& [key, entry] : feeds_) entry.feed->Close();
}

absl::StatusOr<LogFeeds::Entry> LogFeeds::Open(const Question& question) const {
  // Random, so that the marks of an earlier daemon mean nothing; a number that JavaScript has.
  const auto id = static_cast<int64_t>(RandomU64() >> 12);
  const auto feed = std::make_shared<LogFeed>(hub_, id);
  CONVENE_RETURN_IF_ERROR(feed->Open(feed, question.run, question.rank));
  return Entry{feed, id, clock_->Now()};
}

absl::StatusOr<LogFeeds::Entry*> LogFeeds::FindOrOpen(const Question& question) {
  const auto key = std::make_pair(question.run, question.rank);
  const auto found = feeds_.find(key);
  if (found != feeds_.end()) {
    Entry& entry = found->second;
    if (question.feed == entry.id || !entry.feed->is_over()) return &entry;
    absl::StatusOr<Entry> next = Open(question);
    if (!next.ok()) return &entry;
    entry.feed->Close();
    entry = *std::move(next);
    return &entry;
  }
  if (feeds_.size() >= kMostFeeds) {
    return absl::ResourceExhaustedError(
        absl::StrCat("pages look at the logs of ", feeds_.size(),
                     " runs and ranks already, as many as the daemon serves; close one of them, "
                     "and try again after half a minute"));
  }
  CONVENE_ASSIGN_OR_RETURN(Entry opened, Open(question));
  return &(feeds_[key] = std::move(opened));
}

absl::StatusOr<FeedAnswer> LogFeeds::Read(const Question& question) {
  std::shared_ptr<LogFeed> feed;
  int64_t after = 0;
  {
    MutexLock lock(&mutex_);
    CONVENE_ASSIGN_OR_RETURN(Entry * entry, FindOrOpen(question));
    entry->read_at = clock_->Now();
    feed = entry->feed;
    if (question.feed == entry->id) after = question.after;
  }
  return feed->Read(after);
}

void LogFeeds::CloseUnread() {
  std::vector<std::shared_ptr<LogFeed>> unread;
  {
    MutexLock lock(&mutex_);
    const MonotonicTime now = clock_->Now();
    for (auto entry = feeds_.begin(); entry != feeds_.end();) {
      if (now - entry->second.read_at < kUnread) {
        ++entry;
        continue;
      }
      unread.push_back(std::move(entry->second.feed));
      entry = feeds_.erase(entry);
    }
  }
  for (const auto& feed : unread) feed->Close();
}

}  // namespace convene::rendezvous
