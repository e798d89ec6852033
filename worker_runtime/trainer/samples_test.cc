#include "worker_runtime/trainer/samples.h"

#include <memory>
#include <string>
#include <vector>

#include "tools/base/status_macros.h"
#include "tools/base/testing/status_testing.h"
#include "worker_runtime/options/options.h"
#include "worker_runtime/testing/places.h"
#include "worker_runtime/tokenizer/byte_tokenizer.h"
#include "worker_runtime/trainer/engine.h"
#include "worker_runtime/trainer/testing/small_model.h"

namespace convene::worker {
namespace {

// Of two ranks that make samples.
struct Asked {
  std::vector<int> times = std::vector<int>(2);    // that each was asked whether it is to stop
  std::vector<char> stops = std::vector<char>(2);  // what Run returned
};

Asked Ask(bool last_stops) {
  TrainOptions options;
  // Eight texts, which grow side by side.
  options.samples = {.every = 1,
                     .prompts = std::vector<std::string>(8, "!"),
                     .tokens = 32,
                     .temperature = 1,
                     .ids = std::vector(8, std::vector<int32_t>{33})};
  const std::unique_ptr<Tokenizer> tokenizer = MakeByteTokenizer();
  const Samples samples(options, *tokenizer);
  const Layout layout = {.tp = 2};
  const auto places = testing::Places::Make(layout);
  REQUIRE_OK(places);
  Asked asked;
  const auto statuses = (*places)->OnEveryRank([&](int rank) -> absl::Status {
    testing::Place& place = (**places)[rank];
    CONVENE_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine,
                             Engine::Create({.model = testing::SmallModel(),
                                             .layout = layout,
                                             .rank = rank,
                                             .sequence_length = 16,
                                             .samples = RoomOf(options.samples),
                                             .collective_memory = place.collective_memory.get()},
                                            place.communicators, *place.device));
    Stream stream = Stream::Cpu();
    const auto wants = [&] {
      ++asked.times[rank];
      return last_stops && rank == 1;
    };
    CONVENE_ASSIGN_OR_RETURN(asked.stops[rank], samples.Run(1, *engine, /*reporter=*/nullptr, wants,
                                                            *place.communicators.host, stream));
    return absl::OkStatus();
  });
  for (const absl::Status& status : statuses) REQUIRE_OK(status);
  return asked;
}

TEST_CASE("samples end within a few tokens on all ranks where one of them is to stop") {
  if (!testing::HasPlacesOrSkips(2)) return;
  const Asked asked = Ask(/*last_stops=*/true);
  CHECK(asked.stops == std::vector<char>{1, 1});
  CHECK(asked.times == std::vector<int>{1, 1});
}

TEST_CASE("samples that nobody stops ask on, and are made whole") {
  if (!testing::HasPlacesOrSkips(2)) return;
  const Asked asked = Ask(/*last_stops=*/false);
  CHECK(asked.stops == std::vector<char>{0, 0});
  CHECK(asked.times[0] > 2);
  CHECK(asked.times[1] == asked.times[0]);
}

}  // namespace
}  // namespace convene::worker
