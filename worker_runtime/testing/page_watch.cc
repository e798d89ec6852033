#include "worker_runtime/testing/page_watch.h"

#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <atomic>

#include "tools/base/check.h"

namespace convene::worker::testing {
namespace {

// The processor's whole state goes there: 11 KiB with AMX.
constexpr size_t kFaultStackBytes = size_t{64} << 10;

}  // namespace

struct PageWatch::Region {
  enum State : uint8_t { kUntouched, kRead, kWritten };

  ~Region() { mprotect(data, pages * kPageBytes, PROT_READ | PROT_WRITE); }

  char* data = nullptr;
  size_t pages = 0;
  size_t first_page = 0;  // its number
  std::unique_ptr<std::atomic<uint8_t>[]> states;

  // Async-signal-safe. A page that was read is readable; a write then faults once more. Two threads
  // that read an untouched page at once both fault, so a second fault says nothing about a write.
  bool Touch(const char* address, bool is_write) {
    if (address < data || address >= data + pages * kPageBytes) return false;
    const size_t page = (address - data) / kPageBytes;
    char* const begin = data + page * kPageBytes;
    uint8_t state = kUntouched;
    if (is_write) {
      states[page] = kWritten;
      mprotect(begin, kPageBytes, PROT_READ | PROT_WRITE);
    } else {
      states[page].compare_exchange_strong(state, kRead);
      mprotect(begin, kPageBytes, PROT_READ);
    }
    return true;
  }
};

// The process's one handler, and the regions it knows.
class PageFaults {
 public:
  static PageFaults& OfProcess() {
    static PageFaults faults;
    return faults;
  }

  void Add(PageWatch::Region* region) {
    // Catch2 has a handler of its own, which it sets anew for each test case.
    struct sigaction action = {};
    action.sa_sigaction = &Handle;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    struct sigaction before = {};
    CONVENE_CHECK(sigaction(SIGSEGV, &action, &before) == 0);
    if (before.sa_sigaction != &Handle) before_ = before;
    for (auto& slot : regions_) {
      PageWatch::Region* expected = nullptr;
      if (slot.compare_exchange_strong(expected, region)) return;
    }
    CONVENE_CHECK(false);
  }
  void Remove(PageWatch::Region* region) {
    for (auto& slot : regions_) {
      PageWatch::Region* expected = region;
      slot.compare_exchange_strong(expected, nullptr);
    }
  }

 private:
  static void Handle(int /*signal*/, siginfo_t* info, void* context) {
    PageFaults& faults = OfProcess();
    // The processor's own word (Intel SDM, volume 3, "Page-Fault Exception": W/R).
    const bool is_write = (static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_ERR] & 2) != 0;
    for (auto& slot : faults.regions_) {
      PageWatch::Region* const region = slot;
      if (region != nullptr && region->Touch(static_cast<const char*>(info->si_addr), is_write))
        return;
    }
    // This fault is a real crash: the instruction runs again, and meets the handler that was set
    // before ours.
    sigaction(SIGSEGV, &faults.before_, nullptr);
  }

  std::atomic<PageWatch::Region*> regions_[256] = {};
  struct sigaction before_ = {};
};

FaultStack::FaultStack() : memory_(std::make_unique<char[]>(kFaultStackBytes)) {
  const stack_t stack = {.ss_sp = memory_.get(), .ss_flags = 0, .ss_size = kFaultStackBytes};
  CONVENE_CHECK(sigaltstack(&stack, nullptr) == 0);
}

FaultStack::~FaultStack() {
  const stack_t none = {.ss_sp = nullptr, .ss_flags = SS_DISABLE, .ss_size = 0};
  sigaltstack(&none, nullptr);
}

PageWatch::PageWatch() = default;

PageWatch::~PageWatch() {
  for (const auto& region : regions_) PageFaults::OfProcess().Remove(region.get());
}

bool PageWatch::IsWatched(const char* page) const {
  return std::any_of(regions_.begin(), regions_.end(), [page](const auto& region) {
    return page >= region->data && page < region->data + region->pages * kPageBytes;
  });
}

void PageWatch::Add(void* data, size_t bytes) {
  const size_t skipped = -reinterpret_cast<uintptr_t>(data) % kPageBytes;
  if (bytes < skipped) return;
  char* begin = static_cast<char*>(data) + skipped;
  char* const end = begin + (bytes - skipped) / kPageBytes * kPageBytes;
  for (char* next = begin; begin < end; begin = next) {
    while (next < end && !IsWatched(next)) next += kPageBytes;
    if (next > begin) AddRegion(begin, (next - begin) / kPageBytes);
    while (next < end && IsWatched(next)) next += kPageBytes;
  }
}

void PageWatch::AddRegion(char* data, size_t pages) {
  regions_.push_back(std::make_unique<Region>());
  Region& region = *regions_.back();
  region.data = data;
  region.pages = pages;
  region.first_page = page_count_;
  page_count_ += pages;
  region.states = std::make_unique<std::atomic<uint8_t>[]>(pages);
  PageFaults::OfProcess().Add(&region);
  CONVENE_CHECK(mprotect(data, pages * kPageBytes, PROT_NONE) == 0);
}

void PageWatch::Remove(void* data, size_t bytes) {
  const auto* const first = static_cast<const char*>(data);
  const auto is_inside = [&](const std::unique_ptr<Region>& region) {
    if (region->data < first || region->data >= first + bytes) return false;
    PageFaults::OfProcess().Remove(region.get());
    return true;
  };
  regions_.erase(std::remove_if(regions_.begin(), regions_.end(), is_inside), regions_.end());
}

std::vector<PageTouch> PageWatch::Take() {
  std::vector<PageTouch> touches;
  for (const auto& region : regions_) {
    const size_t touched_before = touches.size();
    for (size_t page = 0; page < region->pages; ++page) {
      if (region->states[page] == Region::kUntouched) continue;
      const bool is_written = region->states[page].exchange(Region::kUntouched) == Region::kWritten;
      touches.push_back({.page = region->first_page + page, .is_written = is_written});
    }
    if (touches.size() > touched_before) {
      CONVENE_CHECK(mprotect(region->data, region->pages * kPageBytes, PROT_NONE) == 0);
    }
  }
  return touches;
}

}  // namespace convene::worker::testing
