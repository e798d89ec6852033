#include "launcher/events/news.h"

namespace convene::launcher {

using rendezvous::EventView;

std::vector<EventView> EventNews::Take(const std::vector<EventView>& events) {
  if (events.empty() || events.back().number < number_) number_ = 0;
  for (const EventView& event : events) {
    if (event.number == number_ && event.time != time_) number_ = 0;
  }
  std::vector<EventView> news;
  for (const EventView& event : events) {
    if (event.number > number_) news.push_back(event);
  }
  if (!events.empty()) {
    number_ = events.back().number;
    time_ = events.back().time;
  }
  return news;
}

}  // namespace convene::launcher
