// Runs a corpus once more as an ordinary test, under the sanitizers of tools/check: each night's
// finding is tried for ever. Linked with one fuzz target; CONVENE_CORPUS names the folder of its
// inputs.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

TEST_CASE("every input of the corpus is read without a finding") {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(CONVENE_CORPUS)) {
    paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  REQUIRE(!paths.empty());
  for (const std::filesystem::path& path : paths) {
    // The name is printed before the file is read: a finding ends the process.
    std::cerr << "reading " << path.string() << std::endl;
    std::ifstream file(path, std::ios::binary);
    REQUIRE(file.is_open());
    const std::string input((std::istreambuf_iterator<char>(file)), {});
    // The copy has exactly the input's size, so that a read beyond it is seen.
    const auto bytes = std::make_unique<uint8_t[]>(input.size());
    std::copy(input.begin(), input.end(), bytes.get());
    CHECK(LLVMFuzzerTestOneInput(bytes.get(), input.size()) == 0);
  }
}
