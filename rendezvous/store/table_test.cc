#include "rendezvous/store/table.h"

#include <malloc.h>

#include <cstdint>
#include <limits>

#include "absl/strings/str_cat.h"
#include "tools/base/testing/status_testing.h"

namespace convene::rendezvous {
namespace {

using Woken = Table::Woken;

struct Fixture {
  Table table;
  Woken woken;

  void Set(const std::string& key, const std::string& value) {
    REQUIRE_OK(table.Set(key, value, &woken));
  }
  void Push(const std::string& key, const std::string& item) {
    REQUIRE_OK(table.QueuePush(key, item, &woken));
  }
  std::string CompareSet(const std::string& key, const std::string& expected,
                         const std::string& desired) {
    const auto now = table.CompareSet(key, expected, desired, &woken);
    REQUIRE_OK(now);
    return **now;
  }
  std::string Pop(ConnectionId id, const std::string& key) {
    const Table::Popped popped = table.QueuePop(id, key, &woken);
    return popped.length_before == 0 ? "nothing" : *popped.item;
  }
};

TEST_CASE_METHOD(Fixture, "a key holds what was set last until it is deleted") {
  CHECK(table.Get("k") == nullptr);
  Set("k", "one");
  Set("k", "two");
  CHECK(*table.Get("k") == "two");
  CHECK(table.size() == 1);
  CHECK(table.Delete("k"));
  CHECK_FALSE(table.Delete("k"));
  CHECK(table.Get("k") == nullptr);
}

TEST_CASE_METHOD(Fixture, "compare-set answers as PyTorch's server does in its four cases") {
  CHECK(CompareSet("k", "token", "new") == "token");  // absent, expected something: stays absent
  CHECK(table.Get("k") == nullptr);
  CHECK(CompareSet("k", "", "first") == "first");
  CHECK(CompareSet("k", "wrong", "second") == "first");
  CHECK(CompareSet("k", "first", "second") == "second");
}

TEST_CASE_METHOD(Fixture, "compare-set wakes a waiter only when the key comes to be") {
  CHECK_FALSE(table.Wait(7, {"k"}).value());
  CompareSet("k", "token", "new");
  CHECK(woken.empty());
  CompareSet("k", "", "new");
  CHECK(woken == Woken{7});
}

TEST_CASE_METHOD(Fixture, "add counts in decimal text from zero") {
  CHECK(table.Add("n", 5, &woken).value() == 5);
  CHECK(table.Add("n", -7, &woken).value() == -2);
  CHECK(*table.Get("n") == "-2");
}

TEST_CASE_METHOD(Fixture, "add reads as far as the number goes, and wraps, as PyTorch's server") {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  Set("k", " 7x");
  CHECK(table.Add("k", 1, &woken).value() == 8);
  CHECK(*table.Get("k") == "8");
  Set("k", absl::StrCat(kMax));
  CHECK(table.Add("k", 2, &woken).value() == std::numeric_limits<int64_t>::min() + 1);
}

TEST_CASE_METHOD(Fixture, "add refuses what begins with no number, and changes nothing") {
  Set("k", "x7");
  CHECK_STATUS(table.Add("k", 1, &woken), absl::StatusCode::kFailedPrecondition, "no number");
  CHECK(*table.Get("k") == "x7");
  Set("k", "9223372036854775808");
  CHECK_STATUS(table.Add("k", 0, &woken), absl::StatusCode::kFailedPrecondition, "beyond 64 bits");
  CHECK(*table.Get("k") == "9223372036854775808");
}

TEST_CASE_METHOD(Fixture, "append creates, then extends, and leaves a value being sent as it was") {
  REQUIRE_OK(table.Append("k", "ab", &woken));
  const Value being_sent = table.Get("k");
  REQUIRE_OK(table.Append("k", "cd", &woken));
  CHECK(*being_sent == "ab");
  CHECK(*table.Get("k") == "abcd");
}

TEST_CASE_METHOD(Fixture, "a wait ends when the last of its keys has come, in any order") {
  Set("here", "");
  CHECK(table.Wait(1, {"here"}).value());
  CHECK_FALSE(table.Wait(2, {"here", "a", "b"}).value());
  Set("b", "");
  CHECK(woken.empty());
  CHECK(table.IsWaiting(2));
  Set("a", "");
  CHECK(woken == Woken{2});
  CHECK_FALSE(table.IsWaiting(2));
}

TEST_CASE_METHOD(Fixture, "every kind of write wakes the waiters of its key, each once") {
  for (ConnectionId id = 1; id <= 4; ++id) {
    CHECK_FALSE(table.Wait(id, {"k" + std::to_string(id)}).value());
  }
  CHECK_FALSE(table.Wait(5, {"k1"}).value());
  Set("k1", "");
  CHECK(woken == Woken{1, 5});
  REQUIRE_OK(table.Add("k2", 0, &woken));
  REQUIRE_OK(table.Append("k3", "", &woken));
  Push("k4", "item");
  CHECK(woken == Woken{1, 5, 2, 3, 4});
  Set("k1", "again");
  CHECK(woken.size() == 5);
}

TEST_CASE_METHOD(Fixture, "a cancelled wait is never woken and others stay in line") {
  CHECK_FALSE(table.Wait(1, {"a", "b"}).value());
  CHECK_FALSE(table.Wait(2, {"b"}).value());
  Set("a", "");
  table.CancelWait(1);
  table.CancelWait(1);
  table.CancelWait(99);
  Set("b", "");
  CHECK(woken == Woken{2});
  CHECK(table.Wait(1, {"a", "b"}).value());
}

TEST_CASE_METHOD(Fixture, "a key named twice in one wait counts once it is there") {
  CHECK_FALSE(table.Wait(1, {"a", "a"}).value());
  Set("a", "");
  CHECK(woken == Woken{1});
}

TEST_CASE_METHOD(Fixture, "a queue gives its items in order and says how many there were") {
  Push("q", "one");
  Push("q", "two");
  CHECK(table.QueueLength("q") == 2);
  CHECK(table.ExistAll({"q"}));
  CHECK(table.size() == 0);
  CHECK(table.Keys().empty());
  CHECK(table.QueuePop(1, "q", &woken).length_before == 2);
  CHECK(Pop(1, "q") == "two");
  CHECK(Pop(1, "q") == "nothing");
  CHECK_FALSE(table.ExistAll({"q"}));
}

TEST_CASE_METHOD(Fixture, "one item wakes one consumer and waits for that one") {
  CHECK_FALSE(table.Wait(1, {"q"}).value());
  CHECK_FALSE(table.Wait(2, {"q"}).value());
  Push("q", "first");
  CHECK(woken == Woken{1});
  CHECK_FALSE(table.Wait(3, {"q"}).value());  // the item there is the first consumer's
  CHECK(Pop(9, "q") == "nothing");
  CHECK(Pop(1, "q") == "first");
  Push("q", "second");
  Push("q", "third");
  CHECK(woken == Woken{1, 2, 3});
  CHECK(Pop(3, "q") == "second");
  CHECK(Pop(2, "q") == "third");
}

TEST_CASE_METHOD(Fixture, "a reserved item that its consumer does not take goes to the next") {
  Push("q", "item");
  CHECK(table.Wait(1, {"q"}).value());
  CHECK_FALSE(table.Wait(2, {"q"}).value());
  table.ReleaseReservation(1, &woken);
  CHECK(woken == Woken{2});
  table.ReleaseReservation(2, &woken);
  CHECK(Pop(1, "q") == "item");
}

TEST_CASE_METHOD(Fixture,
                 "an item that a consumer waited for and does not take is everybody's soon") {
  const MonotonicTime start = MonotonicTime::FromEpoch(absl::Hours(1));
  const absl::Duration moment = absl::Milliseconds(1);
  table.AdvanceTo(start, &woken);
  CHECK(table.reservations_end() == MonotonicTime::InfiniteFuture());
  Push("q", "item");
  CHECK(table.Wait(1, {"q"}).value());
  CHECK_FALSE(table.Wait(2, {"q"}).value());
  table.AdvanceTo(start + kReservation - moment, &woken);
  CHECK(Pop(9, "q") == "nothing");
  CHECK(table.reservations_end() == start + kReservation);
  table.AdvanceTo(start + kReservation, &woken);
  CHECK(woken == Woken{2});  // now it is kept for the next in line, as long again
  CHECK(table.reservations_end() == start + 2 * kReservation);
  CHECK(Pop(9, "q") == "nothing");
  table.AdvanceTo(start + 2 * kReservation, &woken);
  CHECK(table.reserved() == 0);
  CHECK(table.reservations_end() == MonotonicTime::InfiniteFuture());
  CHECK(Pop(9, "q") == "item");
  Push("q", "late");
  CHECK(Pop(1, "q") == "late");  // who let one go may have the next
}

#ifndef __SANITIZE_ADDRESS__
TEST_CASE_METHOD(Fixture, "a queue of one item takes about the memory that it is charged") {
  const size_t before = mallinfo2().uordblks;
  for (int i = 0; i < 10000; ++i) Push(absl::StrCat("q", i), "");
  const size_t taken = mallinfo2().uordblks - before;
  CHECK(taken < table.budget().bytes() * 3 / 2);
}
#endif

TEST_CASE_METHOD(Fixture, "a consumer that turns to another queue frees what it had reserved") {
  Push("q", "item");
  CHECK(table.Wait(1, {"q"}).value());
  CHECK(Pop(1, "other") == "nothing");
  CHECK(Pop(2, "q") == "item");
}

TEST_CASE_METHOD(Fixture, "watchers of several keys see an item without keeping it") {
  CHECK_FALSE(table.Wait(1, {"q", "k"}).value());
  CHECK_FALSE(table.Wait(2, {"q"}).value());
  Push("q", "item");
  CHECK(woken == Woken{2});
  Set("k", "");
  CHECK(woken == Woken{2, 1});
  CHECK(Pop(2, "q") == "item");
}

TEST_CASE_METHOD(Fixture, "a barrier lets all go when the last one comes") {
  CHECK_FALSE(table.Barrier(1, "b", 3, &woken).value());
  CHECK_FALSE(table.Barrier(2, "b", 3, &woken).value());
  CHECK(woken.empty());
  CHECK(table.Barrier(3, "b", 3, &woken).value());
  CHECK(woken == Woken{1, 2});
  CHECK(*table.Get("b") == "3");
}

TEST_CASE_METHOD(Fixture, "neither a set of its key nor a wait for it disturbs a barrier") {
  CHECK_FALSE(table.Wait(9, {"b"}).value());
  CHECK_FALSE(table.Barrier(1, "b", 2, &woken).value());
  CHECK(woken == Woken{9});
  Set("b", "1");
  CHECK(table.IsWaiting(1));
  CHECK(table.Barrier(2, "b", 2, &woken).value());
  CHECK(woken == Woken{9, 1});
}

TEST_CASE_METHOD(Fixture, "a cancelled barrier keeps its count") {
  CHECK_FALSE(table.Barrier(1, "b", 2, &woken).value());
  table.CancelWait(1);
  CHECK(table.Barrier(2, "b", 2, &woken).value());
  CHECK(woken.empty());
}

TEST_CASE("a full table refuses growth, keeps what it has and takes smaller values") {
  Table table(size_t{8} << 20);
  Woken woken;
  const std::string half(3 << 20, 'v');  // of what large values may have: 6 MiB
  REQUIRE_OK(table.Set("k", half.substr(1000), &woken));
  const size_t bytes = table.budget().bytes();
  for (const absl::Status& refused :
       {table.Set("k", half, &woken), table.Set("j", half, &woken), table.Append("k", half, &woken),
        table.QueuePush("q", half, &woken), table.CompareSet("j", "", half, &woken).status()}) {
    CHECK_STATUS(refused, absl::StatusCode::kResourceExhausted, "keys without a prefix");
  }
  CHECK(table.Get("k")->size() == half.size() - 1000);
  CHECK_FALSE(table.ExistAll({"j"}));
  CHECK(table.QueueLength("q") == 0);
  CHECK(table.budget().bytes() == bytes);
  CHECK(table.Add("n", 1, &woken).value() == 1);  // small values go on
  REQUIRE_OK(table.Set("run/k", half.substr(half.size() / 2 + 1000), &woken));  // another run, too
  REQUIRE_OK(table.Set("k", "1", &woken));
  REQUIRE_OK(table.QueuePush("q", half.substr(half.size() / 2), &woken));
}

TEST_CASE_METHOD(Fixture, "nothing counts any more once all of it is gone, and its readers too") {
  const std::string large(100000, 'v');
  Set("run/a", large);
  Set("run/a", "1");
  Set("run/a", large);
  CompareSet("run/a", large, large + "2");
  REQUIRE_OK(table.Append("run/a", large, &woken));
  REQUIRE_OK(table.Append("run/b", "1", &woken));
  REQUIRE_OK(table.Add("run/n", 1, &woken));
  Push("run/q", large);
  CHECK_FALSE(table.Wait(1, {"run/x", "run/y"}).value());
  CHECK_FALSE(table.Wait(2, {"run/x"}).value());
  CHECK_FALSE(table.Barrier(3, "run/n", 9, &woken).value());
  Value read = table.Get("run/a");
  Set("run/a", "1");
  const size_t bytes_read = table.budget().bytes();
  read.reset();
  CHECK(table.budget().bytes() == bytes_read - kEntryBytes - 5 - 2 * large.size() - 1);
  for (const char* key : {"run/a", "run/b", "run/n"}) CHECK(table.Delete(key));
  Set("run/x", "");
  CHECK(table.Delete("run/x"));
  CHECK(Pop(4, "run/q") == large);
  table.CancelWait(1);
  table.CancelWait(3);
  CHECK(table.budget().bytes() == 0);
}

TEST_CASE("waits count, and a wait that is refused leaves nothing") {
  Table table(size_t{1} << 20);
  Woken woken;
  std::vector<std::string> keys;
  for (int i = 0; i < 1000; ++i) keys.push_back(absl::StrCat("run/", i, std::string(1000, 'k')));
  CHECK_STATUS(table.Wait(1, keys), absl::StatusCode::kResourceExhausted, "\"run\"");
  CHECK_FALSE(table.IsWaiting(1));
  CHECK(table.lines() == 0);
  CHECK(table.budget().bytes() == 0);
  CHECK_FALSE(table.Wait(1, {keys[0]}).value());
}

TEST_CASE_METHOD(Fixture, "what is over is dropped, its bytes with it") {
  Set("/run1/a", "1");
  Set("/run1/b", "2");
  Push("/run1/q", "item");
  const size_t bytes_over = table.budget().bytes();
  Set("/run2/a", "3");
  Push("/run2/q", "item");
  const size_t bytes_before = table.budget().bytes();
  table.DropIf([](absl::string_view key) { return key.substr(0, 6) == "/run1/"; });
  CHECK(table.Keys() == std::vector<absl::string_view>{"/run2/a"});
  CHECK(table.QueueLength("/run1/q") == 0);
  CHECK(table.QueueLength("/run2/q") == 1);
  CHECK(table.budget().bytes() == bytes_before - bytes_over);
}

TEST_CASE_METHOD(Fixture, "leaving costs as much as one waits for, however many others wait") {
  constexpr ConnectionId kWaiters = 20000;
  for (ConnectionId id = 0; id < kWaiters; ++id) CHECK_FALSE(table.Wait(id, {"same"}).value());
  for (ConnectionId id = 0; id + 1 < kWaiters; ++id) table.CancelWait(id);
  Set("same", "");
  CHECK(woken == Woken{kWaiters - 1});
}

}  // namespace
}  // namespace convene::rendezvous
