#include "agent/output/recent_lines.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "tools/base/check.h"

namespace convene::agent {

using rendezvous::LogBatch;
using rendezvous::LogFilter;

RecentLines::RecentLines(size_t bytes) : size_(bytes), bytes_(new char[bytes]) {
  CONVENE_CHECK(bytes >= kLeastBytes);
}

void RecentLines::Write(uint64_t position, const void* from, size_t size) {
  const size_t at = position % size_;
  const size_t before_end = std::min(size, size_ - at);
  std::memcpy(bytes_.get() + at, from, before_end);
  std::memcpy(bytes_.get(), static_cast<const char*>(from) + before_end, size - before_end);
}

void RecentLines::Read(uint64_t position, void* to, size_t size) const {
  const size_t at = position % size_;
  const size_t before_end = std::min(size, size_ - at);
  std::memcpy(to, bytes_.get() + at, before_end);
  std::memcpy(static_cast<char*>(to) + before_end, bytes_.get(), size - before_end);
}

RecentLines::Header RecentLines::HeaderAt(uint64_t position) const {
  Header header;
  Read(position, &header, sizeof(header));
  return header;
}

void RecentLines::DropFirst() {
  const Header header = HeaderAt(begin_);
  const uint64_t next = begin_ + sizeof(Header) + header.length;
  for (const std::shared_ptr<Reader>& reader : readers_) {
    if (reader->position != begin_) continue;
    reader->position = next;
    ++reader->line;
    if (LetsPass(reader->filter, header)) ++reader->lost;
  }
  begin_ = next;
  ++first_line_;
}

void RecentLines::Add(absl::Time time, int rank, int local_rank, bool is_stderr,
                      absl::string_view line) {
  const absl::string_view kept = line.substr(0, rendezvous::kLongestPublishedLine);
  Header header = {};
  header.time_us = absl::ToUnixMicros(time);
  header.rank = rank;
  header.local_rank = local_rank;
  header.length = static_cast<uint32_t>(kept.size());
  header.is_stderr = is_stderr;
  header.is_cut = kept.size() < line.size();
  MutexLock lock(&mutex_);
  if (is_closed_) return;
  while (end_ + sizeof(header) + kept.size() - begin_ > size_) DropFirst();
  Write(end_, &header, sizeof(header));
  Write(end_ + sizeof(header), kept.data(), kept.size());
  end_ += sizeof(header) + kept.size();
  ++next_line_;
  bool has_news = false;
  for (const std::shared_ptr<Reader>& reader : readers_) {
    if (!LetsPass(reader->filter, header)) continue;
    has_news = has_news || !reader->may_have_more;
    reader->may_have_more = true;
  }
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
  reader->history_end = next_line_;
  Place(*reader, tail, next_line);
  readers_.push_back(reader);
  return reader;
}

void RecentLines::Place(Reader& reader, int tail, uint64_t next_line) const {
  int64_t to_skip = 0;  // lines that the filter lets pass
  if (next_line == 0 && tail >= 0) {
    for (uint64_t at = begin_; at < end_;) {
      const Header header = HeaderAt(at);
      if (LetsPass(reader.filter, header)) ++to_skip;
      at += sizeof(header) + header.length;
    }
    to_skip = std::max<int64_t>(0, to_skip - tail);
  }
  reader.position = begin_;
  reader.line = first_line_;
  if (next_line != 0 && next_line < first_line_) reader.lost = first_line_ - next_line;
  while (reader.position < end_ && (to_skip > 0 || reader.line < next_line)) {
    const Header header = HeaderAt(reader.position);
    if (LetsPass(reader.filter, header)) --to_skip;
    reader.position += sizeof(header) + header.length;
    ++reader.line;
  }
}

void RecentLines::Fill(Reader& reader, LogBatch* batch) const {
  batch->lost_lines = std::exchange(reader.lost, 0);
  size_t bytes = 0;
  while (reader.position < end_ && bytes < rendezvous::kFullBatchBytes &&
         (reader.follow || reader.line < reader.history_end)) {
    const Header header = HeaderAt(reader.position);
    if (LetsPass(reader.filter, header)) {
      rendezvous::LogLine& line = batch->lines.emplace_back();
      line.time = absl::FromUnixMicros(header.time_us);
      line.rank = header.rank;
      line.local_rank = header.local_rank;
      line.is_stderr = header.is_stderr;
      line.is_cut = header.is_cut;
      line.text.resize(header.length);
      Read(reader.position + sizeof(header), line.text.data(), header.length);
      bytes += rendezvous::kLineOverhead + header.length;
    }
    reader.position += sizeof(header) + header.length;
    ++reader.line;
  }
  batch->next_line = reader.line;
  reader.may_have_more = reader.position < end_;
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
