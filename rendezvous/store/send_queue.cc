#include "rendezvous/store/send_queue.h"

#include <algorithm>

#include "tools/base/check.h"

namespace convene::rendezvous {
namespace {

// Below this a copy is cheaper than a segment of its own.
constexpr size_t kSharedBytesMin = 512;

}  // namespace

void SendQueue::Append(absl::string_view bytes) {
  if (bytes.empty()) return;
  if (segments_.empty() || segments_.back().shared != nullptr) segments_.emplace_back();
  segments_.back().copied.append(bytes.data(), bytes.size());
  bytes_ += bytes.size();
}

void SendQueue::Append(const Value& value) {
  if (value->size() < kSharedBytesMin) return Append(absl::string_view(*value));
  segments_.push_back({"", value});
  bytes_ += value->size();
}

int SendQueue::Peek(iovec* vectors, int capacity) const {
  int count = 0;
  size_t skip = front_offset_;
  for (const Segment& segment : segments_) {
    if (count == capacity) break;
    const absl::string_view text = segment.text().substr(skip);
    skip = 0;
    vectors[count++] = {const_cast<char*>(text.data()), text.size()};
  }
  return count;
}

void SendQueue::Consume(size_t count) {
  CONVENE_CHECK(count <= bytes_);
  bytes_ -= count;
  front_offset_ += count;
  while (!segments_.empty() && front_offset_ >= segments_.front().text().size()) {
    front_offset_ -= segments_.front().text().size();
    segments_.pop_front();
  }
}

}  // namespace convene::rendezvous
