// Finds out, by page faults, which pages of memory an op reads and writes: watched pages are taken
// away before the op, and given back as it touches them. For tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace convene::worker::testing {

struct PageTouch {
  size_t page = 0;  // by number, in the order in which they were added
  bool is_written = false;
};

// The stack on which the calling thread takes faults, as long as it lives. Every thread that
// touches watched memory needs one: kernels made at run time use the ordinary stack, and its
// pointer, as they like.
class FaultStack {
 public:
  FaultStack();
  ~FaultStack();
  FaultStack(const FaultStack&) = delete;
  FaultStack& operator=(const FaultStack&) = delete;

 private:
  const std::unique_ptr<char[]> memory_;
};

// Any thread's touch counts. One thread watches; several watches may be at work at once, over
// different memory. No system call may be given watched memory.
class PageWatch {
 public:
  static constexpr size_t kPageBytes = 4096;

  PageWatch();
  // Gives all pages back.
  ~PageWatch();
  PageWatch(const PageWatch&) = delete;
  PageWatch& operator=(const PageWatch&) = delete;

  // From now on the whole pages of this memory are watched. Pages that are watched already stay so.
  void Add(void* data, size_t bytes);
  // The pages of this memory are watched no more. Call it before the memory goes back to the
  // system.
  void Remove(void* data, size_t bytes);
  // The number of pages ever added.
  size_t page_count() const { return page_count_; }

  // The pages touched since the last call, or since Add, each once.
  std::vector<PageTouch> Take();

 private:
  friend class PageFaults;
  struct Region;

  bool IsWatched(const char* page) const;
  void AddRegion(char* data, size_t pages);

  std::vector<std::unique_ptr<Region>> regions_;
  size_t page_count_ = 0;
};

}  // namespace convene::worker::testing
