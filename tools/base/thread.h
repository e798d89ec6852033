// A thread with an owner and a name.
#pragma once

#include <functional>
#include <string>
#include <thread>

namespace convene {

// Owns one std::thread. The owner stops it by its own means (a flag, a closed descriptor), then
// calls Join(). The destructor CHECKs that it was joined: a detached thread is a bug. Movable, not
// copyable.
class Thread {
 public:
  Thread() = default;
  // `name` is at most 15 characters (the kernel's limit) and shows in `top -H` and gdb.
  Thread(const std::string& name, std::function<void()> body);
  Thread(Thread&&) = default;
  Thread& operator=(Thread&& other) noexcept;
  ~Thread();

  bool joinable() const { return thread_.joinable(); }
  void Join();

 private:
  std::thread thread_;
};

}  // namespace convene
