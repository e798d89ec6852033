// How fast a named model goes on with texts on this CPU: tokens a second of a prompt, and of steps
// of some sequences at once. The weights are those of the seed 3.
//
// bazel run //worker_runtime/inference:generation_bench -- MODEL fp32|bf16 SEQUENCES PROMPT STEPS
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "tools/base/check.h"
#include "tools/base/clock.h"
#include "worker_runtime/comm/bootstrap.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/inference/language_model.h"
#include "worker_runtime/inference/testing/weights_source.h"

namespace convene::worker {
namespace {

int Main(const std::vector<std::string>& words) {
  const auto config = NamedModel(words[0]);
  CONVENE_CHECK(config.ok());
  const int sequences = std::atoi(words[2].c_str());
  const int prompt = std::atoi(words[3].c_str());
  const int steps = std::atoi(words[4].c_str());
  const auto device = Device::Cpu();
  const CommunicatorSet communicators = SoloCommunicators();
  const auto model =
      LanguageModel::Make({.config = *config,
                           .dtype = words[1] == "bf16" ? DType::kBFloat16 : DType::kFloat32,
                           .sequences = sequences,
                           .context = prompt + steps + 1},
                          testing::InitialWeights(*config), communicators, *device);
  CONVENE_CHECK(model.ok());
  const std::vector<int32_t> tokens(prompt, 7);
  const auto seconds = [&](const auto& run) {
    const absl::Time begin = WallNow();
    run();
    return absl::ToDoubleSeconds(WallNow() - begin);
  };
  std::vector<NewTokens> prompts;
  for (int s = 0; s < sequences; ++s) prompts.push_back({s, 0, tokens});
  CONVENE_CHECK((*model)->Extend(prompts).ok());  // algorithms are chosen
  const double of_prompt = seconds([&] { CONVENE_CHECK((*model)->Extend(prompts).ok()); });
  std::vector<double> times;
  for (int step = 0; step < steps; ++step) {
    std::vector<NewTokens> next;
    for (int s = 0; s < sequences; ++s) {
      next.push_back({s, prompt + step, absl::MakeConstSpan(tokens).subspan(0, 1)});
    }
    times.push_back(seconds([&] { CONVENE_CHECK((*model)->Extend(next).ok()); }));
  }
  std::sort(times.begin(), times.end());
  std::printf("%s %s, %d sequences: prompt %.1f tokens/s, steps %.1f tokens/s (median)\n",
              words[0].c_str(), words[1].c_str(), sequences, sequences * prompt / of_prompt,
              sequences / times[times.size() / 2]);
  return 0;
}

}  // namespace
}  // namespace convene::worker

int main(int argc, char** argv) {
  if (argc != 6) {
    std::fprintf(stderr, "usage: generation_bench MODEL fp32|bf16 SEQUENCES PROMPT STEPS\n");
    return 64;
  }
  return convene::worker::Main(std::vector<std::string>(argv + 1, argv + argc));
}
