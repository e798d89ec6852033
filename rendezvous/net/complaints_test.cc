#include "rendezvous/net/complaints.h"

#include <catch2/catch.hpp>
#include <memory>
#include <sstream>

#include "spdlog/sinks/ostream_sink.h"
#include "spdlog/spdlog.h"

namespace convene::rendezvous {
namespace {

TEST_CASE("a second has one warning, and the next one tells how many there were") {
  std::ostringstream log;
  const auto before = spdlog::default_logger();
  spdlog::set_default_logger(std::make_shared<spdlog::logger>(
      "test", std::make_shared<spdlog::sinks::ostream_sink_mt>(log)));
  spdlog::set_pattern("%v");
  Complaints complaints;
  const MonotonicTime begin = MonotonicTime::FromEpoch(absl::Hours(1));
  for (int i = 0; i < 1000; ++i) complaints.Warn(begin, "a stranger");
  complaints.Warn(begin + absl::Seconds(1), "another");
  spdlog::set_default_logger(before);
  CHECK(log.str() == "a stranger\nanother (999 more like it)\n");
}

}  // namespace
}  // namespace convene::rendezvous
