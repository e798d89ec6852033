#include "worker_runtime/trainer/references.h"

#include <catch2/catch.hpp>

#include "tools/base/testing/status_testing.h"

namespace convene::worker {
namespace {

TEST_CASE("references that are kept are read again, by their own key alone and whole") {
  const std::vector<double> references = {0.5, -3, 1e300};
  const std::string text = ReferencesText("data of model", references);
  const auto read = ParseReferences(text, "data of model");
  REQUIRE_OK(read);
  CHECK(*read == references);
  constexpr auto kNone = absl::StatusCode::kNotFound;
  CHECK_STATUS(ParseReferences(text, "data of"), kNone, "of other data or first weights");
  CHECK_STATUS(ParseReferences("", "data of model"), kNone, "no references");
  for (size_t size = 0; size < text.size(); ++size) {
    CHECK_FALSE(ParseReferences(absl::string_view(text).substr(0, size), "data of model").ok());
  }
  for (size_t i = 0; i < text.size(); ++i) {
    std::string damaged = text;
    damaged[i] = static_cast<char>(damaged[i] ^ 1);
    CHECK_STATUS(ParseReferences(damaged, "data of model"), kNone, "");
  }
}

}  // namespace
}  // namespace convene::worker
