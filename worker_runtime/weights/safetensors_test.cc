#include "worker_runtime/weights/safetensors.h"

#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/base/testing/status_testing.h"

namespace convene::worker {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

std::string Length(uint64_t length) {
  return {reinterpret_cast<const char*>(&length), sizeof(length)};
}

TEST_CASE("a header comes back as it was made") {
  std::vector<SafeTensor> tensors = {{.name = "b \"quoted\"", .type = "BF16", .shape = {2, 3}},
                                     {.name = "a", .type = "F16", .shape = {}},
                                     {.name = "empty", .type = "F32", .shape = {0, 5}},
                                     {.name = "c", .type = "BF16", .shape = {7}}};
  const std::string header = MakeSafeTensorsHeader(&tensors);
  CHECK(header.size() % 8 == 0);
  const auto length = SafeTensorsHeaderLength(header.substr(0, 8), header.size() + 28);
  REQUIRE_OK(length.status());
  REQUIRE(*length == static_cast<int64_t>(header.size()) - 8);
  const auto read = ParseSafeTensorsHeader(header.substr(8), 28);
  REQUIRE_OK(read.status());
  CHECK(*read == tensors);
  CHECK(read->back().begin == 14);
  CHECK(read->back().end == 28);
}

TEST_CASE("a header's length that cannot be") {
  CHECK_STATUS(SafeTensorsHeaderLength("1234567", 7), kInvalid, "fewer than 8 bytes");
  CHECK_STATUS(SafeTensorsHeaderLength(Length(93), 100), kInvalid, "was cut off");
  CHECK_STATUS(SafeTensorsHeaderLength(Length(uint64_t{1} << 63), 100), kInvalid, "was cut off");
  CHECK_STATUS(SafeTensorsHeaderLength(Length(100'000'001), int64_t{1} << 40), kInvalid,
               "the most is 100000000");
  CHECK(SafeTensorsHeaderLength(Length(92), 100).value() == 92);
}

std::string Entry(const std::string& name, const std::string& type, const std::string& shape,
                  const std::string& offsets) {
  return absl::StrCat("\"", name, R"(": {"dtype": ")", type, R"(", "shape": )", shape,
                      R"(, "data_offsets": )", offsets, "}");
}

TEST_CASE("every lie of a header is refused, and named") {
  const auto parse = [](const std::string& entries, int64_t bytes) {
    return ParseSafeTensorsHeader(absl::StrCat("{", entries, "}"), bytes);
  };
  const std::string good = Entry("a", "F32", "[2]", "[0, 8]");
  REQUIRE_OK(parse(good, 8).status());
  REQUIRE_OK(parse(absl::StrCat(good, R"(, "__metadata__": {"format": "pt"})"), 8).status());
  CHECK_STATUS(ParseSafeTensorsHeader("[]", 0), kInvalid, "object");
  CHECK_STATUS(ParseSafeTensorsHeader("{\"a\"", 0), kInvalid, "");
  CHECK_STATUS(parse(R"("a": 3)", 8), kInvalid, "\"a\"");
  CHECK_STATUS(parse(Entry("a", "F33", "[2]", "[0, 8]"), 8), kInvalid, "unknown type \"F33\"");
  CHECK_STATUS(parse(Entry("a", "F32", "[-2]", "[0, 8]"), 8), kInvalid, "shape[0]");
  CHECK_STATUS(parse(Entry("a", "F32", "[2.0]", "[0, 8]"), 8), kInvalid, "shape[0]");
  CHECK_STATUS(parse(Entry("a", "F32", "[3]", "[0, 8]"), 8), kInvalid, "12 bytes in F32, but 8");
  CHECK_STATUS(parse(Entry("a", "BF16", "[2]", "[0, 8]"), 8), kInvalid, "4 bytes in BF16, but 8");
  CHECK_STATUS(parse(Entry("a", "F32", "[1152921504606846976, 1152921504606846976]", "[0, 0]"), 0),
               kInvalid, "overflows");
  CHECK_STATUS(parse(Entry("a", "F32", "[2]", "[8, 0]"), 8), kInvalid, "data_offsets");
  CHECK_STATUS(parse(Entry("a", "F32", "[2]", "[0, 8, 9]"), 8), kInvalid, "data_offsets");
  CHECK_STATUS(parse(good, 7), kInvalid, "it was cut off");
  CHECK_STATUS(parse(good, 9), kInvalid, "the file has 9");
  CHECK_STATUS(parse(absl::StrCat(good, ",", good), 8), kInvalid, "\"a\" twice");
  CHECK_STATUS(parse(absl::StrCat(good, ",", Entry("b", "F32", "[2]", "[4, 12]")), 12), kInvalid,
               "they overlap");
  CHECK_STATUS(parse(absl::StrCat(good, ",", Entry("b", "F32", "[2]", "[12, 20]")), 20), kInvalid,
               "no tensor has those between");
}

}  // namespace
}  // namespace convene::worker
