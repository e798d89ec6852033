#include "worker_runtime/ops/cuda/testing/figures.h"

#include <catch2/catch.hpp>
#include <string>

#include "tools/base/files.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"

namespace convene::worker::cuda {
namespace {

TEST_CASE("a figure is in the file as soon as it is added") {
  const convene::testing::TempDir folder;
  const std::string path = folder.File("figures");
  Figures figures(path.c_str());
  figures.Add("copy", ", \"gb\": 4.5");
  const auto after_one = ReadFile(path);
  REQUIRE_OK(after_one);
  CHECK(*after_one == "{\"name\": \"copy\", \"gb\": 4.5}\n");
  figures.Add("rope", "");
  CHECK(*ReadFile(path) == *after_one + "{\"name\": \"rope\"}\n");
  CHECK_OK(figures.status());
}

TEST_CASE("a file that cannot be written is an error, no file at all is none") {
  CHECK_FALSE(Figures("/nowhere/figures").status().ok());
  Figures none(nullptr);
  none.Add("copy", "");
  CHECK_OK(none.status());
}

TEST_CASE("a benchmark measures the figures that its caller wants") {
  CHECK(Figures(nullptr).Wants("copy"));
  const Figures few(nullptr, "product 1B");
  CHECK(few.Wants("product 1B down, forward"));
  CHECK(few.Wants("product"));  // the group holds some of them
  CHECK_FALSE(few.Wants("product 3B down, forward"));
  CHECK_FALSE(few.Wants("attention"));
}

}  // namespace
}  // namespace convene::worker::cuda
