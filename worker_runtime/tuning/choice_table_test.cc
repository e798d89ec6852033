#include "worker_runtime/tuning/choice_table.h"

#include <xxhash.h>

#include <catch2/catch.hpp>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tools/base/testing/status_testing.h"

namespace convene::worker {
namespace {

constexpr char kMachine[] = "NVIDIA H200, driver 580.95.05, cuBLASLt 130101";
constexpr absl::StatusCode kTorn = absl::StatusCode::kDataLoss;
constexpr absl::StatusCode kOther = absl::StatusCode::kFailedPrecondition;

ChoiceTable Some() {
  ChoiceTable table(kMachine);
  table.Put("a,bT m64 n64 k64", 0x1234);
  table.Put("aT,b m8 n8 k8", 0xfedcba9876543210);
  return table;
}

TEST_CASE("a table's text gives the table back") {
  const std::string text = Some().Encode();
  const absl::StatusOr<ChoiceTable> read = ChoiceTable::Decode(text, kMachine);
  REQUIRE_OK(read);
  CHECK(read->size() == 2);
  CHECK(read->Find("a,bT m64 n64 k64") == 0x1234);
  CHECK(read->Find("aT,b m8 n8 k8") == 0xfedcba9876543210);
  CHECK_FALSE(read->Find("a,b m8 n8 k8").has_value());
  CHECK(read->Encode() == text);
  CHECK_OK(ChoiceTable::Decode(ChoiceTable(kMachine).Encode(), kMachine));
}

TEST_CASE("a text that is cut anywhere, or has another bit anywhere, is refused") {
  const std::string text = Some().Encode();
  for (size_t length = 0; length < text.size(); ++length) {
    CAPTURE(length);
    CHECK_STATUS(ChoiceTable::Decode(text.substr(0, length), kMachine), kTorn, "no whole file");
  }
  for (size_t at = 0; at < text.size(); ++at) {
    std::string changed = text;
    changed[at] ^= 1;
    CAPTURE(at);
    CHECK_FALSE(ChoiceTable::Decode(changed, kMachine).ok());
  }
}

// With a last line that fits: a person may write anything.
std::string Signed(const std::string& text) {
  return absl::StrCat(text, "end ",
                      absl::Hex(XXH3_64bits(text.data(), text.size()), absl::kZeroPad16), "\n");
}

TEST_CASE("a text that fits its last line is refused where it is something else") {
  const std::string head = absl::StrCat("tuned products of Convene, version 1\n", kMachine, "\n");
  const auto decode = [](const std::string& text) {
    return ChoiceTable::Decode(Signed(text), kMachine);
  };
  CHECK_OK(decode(head));
  CHECK_OK(decode(head + "0000000000000001 a product\n"));
  CHECK_STATUS(decode(absl::StrReplaceAll(head, {{"version 1", "version 2"}})), kOther, "version");
  CHECK_STATUS(decode(absl::StrReplaceAll(head, {{"H200", "H100"}})), kOther, "another GPU");
  for (const char* line :
       {"0000000000000001 no end", "000000000000001 short\n", "000000000000000g no number\n",
        "0000000000000001 \n", "0000000000000001\ta tab\n", "\n", "0000000000000001 \x01\n"}) {
    CAPTURE(line);
    CHECK_STATUS(decode(head + line), kTorn, "no whole file");
  }
  CHECK_STATUS(decode(std::string(ChoiceTable::kTextBytesMax, 'x')), kTorn, "too long");
}

TEST_CASE("a name that is no printable line of 128 bytes is not put") {
  ChoiceTable table(kMachine);
  table.Put("", 1);
  table.Put("two\nlines", 1);
  table.Put(std::string(129, 'x'), 1);
  CHECK(table.size() == 0);
  table.Put(std::string(128, 'x'), 1);
  CHECK(table.size() == 1);
}

TEST_CASE("where a table is full the oldest choice goes, and its text is as long as it may be") {
  ChoiceTable table(kMachine);
  const auto name = [](size_t i) { return absl::StrCat(std::string(120, 'x'), 10'000 + i); };
  for (size_t i = 0; i < ChoiceTable::kMost; ++i) table.Put(name(i), i);
  table.Put(name(0), 77);  // It is the newest now.
  table.Put("one more", 1);
  CHECK(table.size() == ChoiceTable::kMost);
  CHECK(table.Find(name(0)) == 77);
  CHECK_FALSE(table.Find(name(1)).has_value());
  CHECK(table.Find(name(2)) == 2);
  const std::string text = table.Encode();
  CHECK(text.size() <= ChoiceTable::kTextBytesMax);
  const absl::StatusOr<ChoiceTable> read = ChoiceTable::Decode(text, kMachine);
  REQUIRE_OK(read);
  CHECK(read->Encode() == text);
}

TEST_CASE("of two tables the one that is put last counts") {
  ChoiceTable one = Some();
  ChoiceTable other(kMachine);
  other.Put("aT,b m8 n8 k8", 5);
  other.Put("a,b m1 n1 k1", 6);
  CHECK_FALSE(one.Contains(other));
  one.PutAll(other);
  CHECK(one.Contains(other));
  CHECK(one.size() == 3);
  CHECK(one.Find("aT,b m8 n8 k8") == 5);
  CHECK(one.Find("a,bT m64 n64 k64") == 0x1234);
}

}  // namespace
}  // namespace convene::worker
