#include "worker_runtime/testing/page_watch.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <memory>
#include <thread>
#include <vector>

#include "tools/base/thread.h"

namespace convene::worker::testing {
namespace {

struct alignas(PageWatch::kPageBytes) Page {
  char bytes[PageWatch::kPageBytes] = {};
};

TEST_CASE("what is read, and what is written, is told once") {
  const FaultStack stack;
  const auto pages = std::make_unique<Page[]>(3);
  PageWatch watch;
  watch.Add(pages.get(), 3 * sizeof(Page));
  (void)*const_cast<const volatile char*>(pages[0].bytes);
  *const_cast<volatile char*>(pages[2].bytes) = 1;
  const std::vector<PageTouch> touches = watch.Take();
  REQUIRE(touches.size() == 2);
  CHECK((touches[0].page == 0 && !touches[0].is_written));
  CHECK((touches[1].page == 2 && touches[1].is_written));
  CHECK(watch.Take().empty());
  (void)*const_cast<const volatile char*>(pages[2].bytes);
  *const_cast<volatile char*>(pages[2].bytes) = 1;
  REQUIRE(watch.Take().size() == 1);
}

TEST_CASE("threads that read a page at the same time write nothing") {
  const auto page = std::make_unique<Page>();
  PageWatch watch;
  watch.Add(page.get(), sizeof(Page));
  constexpr int kTurns = 2000;
  std::atomic<int> turn = 0;
  std::atomic<int> done = 0;
  std::vector<Thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back("reader", [&] {
      const FaultStack stack;
      for (int seen = 1; seen <= kTurns; ++seen) {
        while (turn < seen) std::this_thread::yield();
        (void)*const_cast<const volatile char*>(page->bytes);
        ++done;
      }
    });
  }
  int written = 0;
  for (int i = 1; i <= kTurns; ++i) {
    turn = i;
    while (done < 2 * i) std::this_thread::yield();
    for (const PageTouch& touch : watch.Take()) written += touch.is_written ? 1 : 0;
  }
  for (Thread& thread : threads) thread.Join();
  CHECK(written == 0);
}

}  // namespace
}  // namespace convene::worker::testing
