// A server that no TCPStore server can beat: it has no store, no threads and no sleep between
// requests. It finds the end of each request and sends as many bytes as a real answer has.
// tests/bench/store_bench.py measures it beside real servers: the rest of a round trip is the
// kernel's and the client's.
//
// Knows the requests of the benchmarks alone. Prints its port on one line, then serves until its
// standard input ends.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <string>

#include "rendezvous/store/wire.h"
#include "tools/base/check.h"
#include "tools/base/clock.h"

namespace convene::rendezvous {
namespace {

constexpr size_t kValueBytes = 128;  // of every GET's answer: what the benchmarks set
// Other servers are measured in turns with this one, so it must not take their processor.
constexpr absl::Duration kBusyAfterRequest = absl::Milliseconds(5);

uint64_t LengthAt(const std::string& bytes, size_t position) {
  uint64_t length = 0;
  std::memcpy(&length, bytes.data() + position, sizeof(length));
  return length;
}

// Where the request at `begin` ends, and its answer; 0 while it is not whole.
size_t EndOfRequest(const std::string& bytes, size_t begin, std::string* answer) {
  const auto opcode = static_cast<Opcode>(bytes[begin]);
  size_t end = begin + 1;
  const auto skip_text = [&] {
    if (end + 8 <= bytes.size()) end += LengthAt(bytes, end);
    end += 8;
  };
  const auto skip_texts = [&](size_t count) {
    for (size_t i = 0; i < count; ++i) skip_text();
  };
  std::string said;
  switch (opcode) {
    case Opcode::kValidate:
      end += 4;
      break;
    case Opcode::kPing:
      end += 4;
      if (end <= bytes.size()) said = bytes.substr(begin + 1, 4);
      break;
    case Opcode::kSet:
      skip_texts(2);
      break;
    case Opcode::kGet:
      skip_text();
      said.assign(8 + kValueBytes, '\0');
      said[0] = static_cast<char>(kValueBytes);
      break;
    case Opcode::kAdd:
      skip_text();
      end += 8;
      said.assign(8, '\1');
      break;
    case Opcode::kCheck:
    case Opcode::kWait:
      end += 8;
      if (end <= bytes.size()) skip_texts(LengthAt(bytes, begin + 1));
      said.assign(1, '\0');
      break;
    default:
      CONVENE_CHECK(!"a request that no benchmark sends");
  }
  if (end > bytes.size()) return 0;
  answer->append(said);
  return end;
}

class Floor {
 public:
  Floor() : listener_(socket(AF_INET, SOCK_STREAM, 0)), epoll_(epoll_create1(0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    CONVENE_CHECK(bind(listener_, reinterpret_cast<sockaddr*>(&address), size) == 0);
    CONVENE_CHECK(listen(listener_, SOMAXCONN) == 0);
    CONVENE_CHECK(getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) == 0);
    std::printf("%d\n", ntohs(address.sin_port));
    std::fflush(stdout);
    Watch(listener_);
    Watch(STDIN_FILENO);
  }

  void Serve() {
    epoll_event events[256];
    MonotonicTime busy_until = {};
    for (;;) {
      int count = epoll_wait(epoll_, events, 256, 0);
      if (count == 0 && Clock::Real().Now() < busy_until) {
        sched_yield();
        continue;
      }
      if (count == 0) count = epoll_wait(epoll_, events, 256, -1);
      for (int i = 0; i < count; ++i) {
        if (events[i].data.fd == STDIN_FILENO) return;
        events[i].data.fd == listener_ ? Accept() : Answer(events[i].data.fd);
      }
      busy_until = Clock::Real().Now() + kBusyAfterRequest;
    }
  }

 private:
  void Watch(int fd) const {
    epoll_event event = {};
    event.events = EPOLLIN;
    event.data.fd = fd;
    CONVENE_CHECK(epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) == 0);
  }

  void Accept() {
    const int fd = accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK);
    CONVENE_CHECK(fd >= 0);
    const int on = 1;
    CONVENE_CHECK(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) == 0);
    Watch(fd);
  }

  void Answer(int fd) {
    const ssize_t count = recv(fd, buffer_, sizeof(buffer_), 0);
    if (count <= 0) {
      rests_.erase(fd);
      close(fd);
      return;
    }
    std::string& bytes = rests_[fd];
    bytes.append(buffer_, static_cast<size_t>(count));
    answer_.clear();
    size_t begin = 0;
    while (begin < bytes.size()) {
      const size_t end = EndOfRequest(bytes, begin, &answer_);
      if (end == 0) break;
      begin = end;
    }
    bytes.erase(0, begin);
    if (!answer_.empty()) send(fd, answer_.data(), answer_.size(), MSG_NOSIGNAL);
  }

  const int listener_;
  const int epoll_;
  char buffer_[1 << 16];
  std::string answer_;
  std::map<int, std::string> rests_;  // by descriptor: the beginning of a request
};

}  // namespace
}  // namespace convene::rendezvous

int main() {
  const auto floor = std::make_unique<convene::rendezvous::Floor>();
  floor->Serve();
  return 0;
}
