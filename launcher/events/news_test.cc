#include "launcher/events/news.h"

#include <catch2/catch.hpp>

namespace convene::launcher {
namespace {

using rendezvous::EventView;

// Events first, first + 1, ... up to `last`; each a second after the one before.
std::vector<EventView> Events(int64_t first, int64_t last, int64_t daemon_start) {
  std::vector<EventView> events;
  for (int64_t i = first; i <= last; ++i) {
    events.push_back({.number = i, .time = absl::FromUnixSeconds(daemon_start + i)});
  }
  return events;
}

std::vector<int64_t> NumbersOf(const std::vector<EventView>& events) {
  std::vector<int64_t> numbers;
  numbers.reserve(events.size());
  for (const EventView& event : events) numbers.push_back(event.number);
  return numbers;
}

using Numbers = std::vector<int64_t>;

TEST_CASE("an event is told once") {
  EventNews news;
  CHECK(NumbersOf(news.Take(Events(1, 2, 1000))) == Numbers{1, 2});
  CHECK(news.Take(Events(1, 2, 1000)).empty());
  CHECK(NumbersOf(news.Take(Events(2, 4, 1000))) == Numbers{3, 4});
  CHECK(NumbersOf(news.Take(Events(6, 7, 1000))) == Numbers{6, 7});
}

TEST_CASE("the events of a daemon that was started again are all new, however many they are") {
  for (const int64_t count : {0, 1, 2, 3, 5}) {
    INFO(count);
    EventNews news;
    (void)news.Take(Events(1, 3, 1000));
    CHECK(news.Take(Events(1, count, 2000)).size() == static_cast<size_t>(count));
    CHECK(NumbersOf(news.Take(Events(1, count + 1, 2000))) == Numbers{count + 1});
  }
}

}  // namespace
}  // namespace convene::launcher
