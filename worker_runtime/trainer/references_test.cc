#include "worker_runtime/trainer/references.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "tools/base/files.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"
#include "worker_runtime/data/testing/token_files.h"

namespace convene::worker {
namespace {

TEST_CASE("references that are kept are read again, by their own key alone and whole") {
  const std::vector<double> references = {0.5, -3, 1e300};
  const std::string text = ReferencesText("data of model", "files", references);
  const auto read = ParseReferences(text, "data of model", "files");
  REQUIRE_OK(read);
  CHECK(*read == references);
  // Where the files are gone, nothing speaks against what was made of them.
  CHECK(ParseReferences(text, "data of model", "").value() == references);
  constexpr auto kNone = absl::StatusCode::kNotFound;
  CHECK_STATUS(ParseReferences(text, "data of", "files"), kNone, "of other data or first weights");
  CHECK_STATUS(ParseReferences(text, "data of model", "file"), kNone, "or first weights");
  CHECK_STATUS(ParseReferences("", "data of model", "files"), kNone, "no references");
  for (size_t size = 0; size < text.size(); ++size) {
    const absl::string_view cut = absl::string_view(text).substr(0, size);
    CHECK_FALSE(ParseReferences(cut, "data of model", "files").ok());
  }
  for (size_t i = 0; i < text.size(); ++i) {
    std::string damaged = text;
    damaged[i] = static_cast<char>(damaged[i] ^ 1);
    CHECK_STATUS(ParseReferences(damaged, "data of model", "files"), kNone, "");
  }
}

TEST_CASE("references are of the files of the first weights, not of their path alone") {
  const convene::testing::TempDir dir;
  const std::string tokens = dir.File("tokens");
  testing::WriteTokenFile(tokens, 256, {1, 2, 3, 4, 5, 6, 7, 8, 9});
  const auto dataset = Dataset::Open({.sources = {{.tokens = testing::OpenTokens(tokens)}},
                                      .sequence_length = 4,
                                      .vocabulary_size = 256});
  REQUIRE_OK(dataset);
  const std::string weights = dir.File("model/model.safetensors");
  REQUIRE_OK(MakeDirectories(dir.File("model")));
  REQUIRE_OK(WriteFileAtomic(weights, "old"));
  const auto mark = [&](const std::string& path) {
    return KeptReferencesOf({}, {.weights = path}, *dataset).mark;
  };
  const std::string old_folder = mark(dir.File("model"));
  const std::string old_file = mark(weights);
  CHECK(mark(dir.File("model")) == old_folder);
  CHECK(mark(dir.File("nothing")).empty());
  SECTION("a file of another size") { REQUIRE_OK(WriteFileAtomic(weights, "newer")); }
  SECTION("a file of another time") {
    std::filesystem::last_write_time(
        weights, std::filesystem::last_write_time(weights) + std::chrono::hours(1));
  }
  CHECK(mark(dir.File("model")) != old_folder);
  CHECK(mark(weights) != old_file);
}

}  // namespace
}  // namespace convene::worker
