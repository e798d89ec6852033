#include "agent/output/recent_lines.h"

#include <algorithm>
#include <utility>

#include "tools/base/check.h"

namespace convene::agent {

using rendezvous::LogBatch;
using rendezvous::LogFilter;
using rendezvous::LogLine;

RecentLines::RecentLines(size_t bytes) : most_bytes_(bytes) { CONVENE_CHECK(bytes >= kLeastBytes); }

void RecentLines::DropFirst() {
  const LogLine& first = lines_.front();
  for (const std::shared_ptr<Reader>& reader : readers_) {
    if (reader->line != first_line_) continue;
    ++reader->line;
    if (LetsPass(reader->filter, first)) ++reader->lost;
  }
  bytes_ -= CostOf(first);
  lines_.pop_front();
  ++first_line_;
}

void RecentLines::Add(absl::Time time, int rank, int local_rank, bool is_stderr,
                      absl::string_view text) {
  LogLine line;
  line.time = time;
  line.rank = rank;
  line.local_rank = local_rank;
  line.is_stderr = is_stderr;
  line.text = std::string(text.substr(0, rendezvous::kLongestPublishedLine));
  line.is_cut = line.text.size() < text.size();
  MutexLock lock(&mutex_);
  if (is_closed_) return;
  bool has_news = false;
  for (const std::shared_ptr<Reader>& reader : readers_) {
    if (!LetsPass(reader->filter, line)) continue;
    has_news = has_news || !reader->may_have_more;
    reader->may_have_more = true;
  }
  bytes_ += CostOf(line);
  lines_.push_back(std::move(line));
  while (bytes_ > most_bytes_) DropFirst();
  if (has_news) changed_.SignalAll();
}

void RecentLines::Close() {
  MutexLock lock(&mutex_);
  is_closed_ = true;
  changed_.SignalAll();
}

std::shared_ptr<RecentLines::Reader> RecentLines::Open(const LogFilter& filter, int tail,
                                                       bool follow, uint64_t next_line) {
  auto reader = std::make_shared<Reader>();
  reader->filter = filter;
  reader->follow = follow;
  MutexLock lock(&mutex_);
  reader->history_end = end_line();
  Place(*reader, tail, next_line);
  readers_.push_back(reader);
  return reader;
}

void RecentLines::Place(Reader& reader, int tail, uint64_t next_line) const {
  reader.line = std::clamp(next_line, first_line_, end_line());
  if (next_line != 0) {
    reader.lost = reader.line - std::min(next_line, reader.line);
  } else if (tail >= 0) {
    reader.line = end_line();
    for (int left = tail; left > 0 && reader.line > first_line_;) {
      if (LetsPass(reader.filter, lines_[--reader.line - first_line_])) --left;
    }
  }
}

void RecentLines::Fill(Reader& reader, LogBatch* batch) const {
  batch->lost_lines = std::exchange(reader.lost, 0);
  const uint64_t end = reader.follow ? end_line() : std::min(end_line(), reader.history_end);
  for (size_t bytes = 0; reader.line < end && bytes < rendezvous::kFullBatchBytes; ++reader.line) {
    const LogLine& line = lines_[reader.line - first_line_];
    if (!LetsPass(reader.filter, line)) continue;
    batch->lines.push_back(line);
    bytes += CostOf(line);
  }
  batch->next_line = reader.line;
  reader.may_have_more = reader.line < end_line();
}

bool RecentLines::Next(Reader& reader, LogBatch* batch) {
  batch->lines.clear();
  MutexLock lock(&mutex_);
  for (;;) {
    if (reader.is_stopped || (reader.has_caught_up && !reader.follow)) return false;
    if (reader.may_have_more) {
      Fill(reader, batch);
      batch->caught_up = !reader.has_caught_up && reader.line >= reader.history_end;
      reader.has_caught_up = reader.has_caught_up || batch->caught_up;
      if (!batch->lines.empty() || batch->lost_lines > 0 || batch->caught_up) return true;
      continue;
    }
    if (is_closed_) return false;
    changed_.Wait(&mutex_);
  }
}

void RecentLines::Stop(Reader& reader) {
  MutexLock lock(&mutex_);
  reader.is_stopped = true;
  changed_.SignalAll();
}

void RecentLines::Forget(const std::shared_ptr<Reader>& reader) {
  MutexLock lock(&mutex_);
  readers_.erase(std::remove(readers_.begin(), readers_.end(), reader), readers_.end());
}

}  // namespace convene::agent
