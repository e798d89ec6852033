#include "tools/base/thread.h"

#include <pthread.h>

#include <utility>

#include "tools/base/check.h"

namespace convene {

Thread::Thread(const std::string& name, std::function<void()> body) {
  CONVENE_CHECK(name.size() <= 15);
  thread_ = std::thread([name, body = std::move(body)] {
    pthread_setname_np(pthread_self(), name.c_str());
    body();
  });
}

Thread& Thread::operator=(Thread&& other) noexcept {
  CONVENE_CHECK(!thread_.joinable());
  thread_ = std::move(other.thread_);
  return *this;
}

Thread::~Thread() { CONVENE_CHECK(!thread_.joinable()); }

void Thread::Join() {
  if (thread_.joinable()) thread_.join();
}

}  // namespace convene
