#include "worker_runtime/trainer/openmp_settings.h"

#include <catch2/catch.hpp>
#include <map>
#include <optional>

namespace convene::worker {
namespace {

using Variables = std::map<std::string, std::string>;

Variables Settings(const Variables& environment, int bound_cpus, int usable_cpus) {
  const auto lookup = [&](const std::string& name) -> std::optional<std::string> {
    const auto place = environment.find(name);
    if (place == environment.end()) return std::nullopt;
    return place->second;
  };
  const auto settings = OpenMpSettings(lookup, bound_cpus, usable_cpus);
  return {settings.begin(), settings.end()};
}

const std::pair<const std::string, std::string> kBriefLooks = {"GOMP_SPINCOUNT", "1000"};

TEST_CASE("threads never outnumber the CPUs that this process may keep busy") {
  const auto threads = [](const Variables& environment, int bound_cpus, int usable_cpus) {
    Variables settings = Settings(environment, bound_cpus, usable_cpus);
    return settings.count("OMP_NUM_THREADS") == 0 ? "as they are" : settings["OMP_NUM_THREADS"];
  };
  CHECK(threads({}, 32, 32) == "as they are");
  CHECK(threads({}, 32, 2) == "2");
  CHECK(threads({{"OMP_NUM_THREADS", "2"}}, 32, 2) == "as they are");
  CHECK(threads({{"OMP_NUM_THREADS", "1"}}, 32, 2) == "as they are");
  CHECK(threads({{"OMP_NUM_THREADS", "8"}}, 2, 2) == "2");
  CHECK(threads({{"OMP_NUM_THREADS", "8,2"}}, 4, 4) == "4");
  CHECK(threads({{"OMP_NUM_THREADS", "2,8"}}, 4, 4) == "as they are");
  CHECK(threads({{"OMP_NUM_THREADS", " 3 "}}, 2, 2) == "2");
  // The library ignores these, and takes all CPUs of the affinity.
  for (const char* ignored : {"", "many", "0", "-3"}) {
    CAPTURE(ignored);
    CHECK(threads({{"OMP_NUM_THREADS", ignored}}, 32, 2) == "2");
    CHECK(threads({{"OMP_NUM_THREADS", ignored}}, 2, 2) == "as they are");
  }
}

TEST_CASE("several threads look only briefly for their next loop, unless the user says how") {
  CHECK(Settings({}, 32, 32) == Variables{kBriefLooks});
  CHECK(Settings({{"OMP_NUM_THREADS", "8"}}, 2, 2) ==
        Variables{{"OMP_NUM_THREADS", "2"}, kBriefLooks});
  CHECK(Settings({{"OMP_NUM_THREADS", "1"}}, 2, 2).empty());
  CHECK(Settings({}, 1, 1).empty());
  CHECK(Settings({{"GOMP_SPINCOUNT", "5"}}, 2, 2).empty());
  CHECK(Settings({{"OMP_WAIT_POLICY", "passive"}}, 2, 2).empty());
}

TEST_CASE("a program that was loaded again with its settings has none left to change") {
  for (const int usable : {1, 2, 32}) {
    for (const Variables& first :
         {Variables{}, Variables{{"OMP_NUM_THREADS", "8"}}, Variables{{"OMP_NUM_THREADS", "x"}}}) {
      Variables environment = first;
      for (const auto& [name, value] : Settings(first, 32, usable)) environment[name] = value;
      CHECK(Settings(environment, 32, usable).empty());
    }
  }
}

}  // namespace
}  // namespace convene::worker
