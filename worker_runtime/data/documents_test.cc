#include "worker_runtime/data/documents.h"

#include <catch2/catch.hpp>
#include <vector>

namespace convene::worker {
namespace {

std::vector<int32_t> BeginsOf(const std::vector<int32_t>& tokens) {
  std::vector<int32_t> begins(tokens.size(), -1);
  FindDocuments(static_cast<int>(tokens.size()), tokens.data(), /*end_of_document=*/0,
                begins.data());
  return begins;
}

TEST_CASE("the token that ends a document belongs to it, the next begins another") {
  CHECK(BeginsOf({5, 6, 0, 7, 8}) == std::vector<int32_t>{0, 0, 0, 3, 3});
}

TEST_CASE("an end at the row's end or start, and several in a row, are documents too") {
  CHECK(BeginsOf({5, 6, 0}) == std::vector<int32_t>{0, 0, 0});
  CHECK(BeginsOf({0, 5, 6}) == std::vector<int32_t>{0, 1, 1});
  CHECK(BeginsOf({5, 0, 0, 0, 6}) == std::vector<int32_t>{0, 0, 2, 3, 4});
  CHECK(BeginsOf({0}) == std::vector<int32_t>{0});
}

TEST_CASE("a row without an end is one document") {
  CHECK(BeginsOf({5, 6, 7}) == std::vector<int32_t>{0, 0, 0});
}

}  // namespace
}  // namespace convene::worker
