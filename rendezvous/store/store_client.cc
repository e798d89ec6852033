#include "rendezvous/store/store_client.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rendezvous/net/connect.h"
#include "rendezvous/net/resolve.h"
#include "rendezvous/store/wire.h"
#include "tools/base/backoff.h"
#include "tools/base/clock.h"
#include "tools/base/random.h"
#include "tools/base/status_macros.h"
#include "tools/base/text.h"
#include "tools/base/unique_fd.h"

namespace convene::rendezvous {
namespace {

constexpr absl::Duration kFirstRetry = absl::Milliseconds(10);
constexpr absl::Duration kLongestRetry = absl::Seconds(1);
// One address that swallows packets must not use up the time of the next one.
constexpr absl::Duration kAttemptMax = absl::Seconds(10);
constexpr size_t kKeysNamedMax = 3;

absl::Status SendAll(int fd, absl::string_view bytes, MonotonicTime deadline) {
  while (!bytes.empty()) {
    const ssize_t sent = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      bytes.remove_prefix(static_cast<size_t>(sent));
    } else if (errno == EAGAIN) {
      CONVENE_RETURN_IF_ERROR(AwaitReady(fd, POLLOUT, deadline));
    } else if (errno != EINTR) {
      return absl::UnavailableError(absl::StrCat("send: ", strerror(errno)));
    }
  }
  return absl::OkStatus();
}

absl::Status ReceiveAll(int fd, void* target, size_t size, MonotonicTime deadline) {
  char* bytes = static_cast<char*>(target);
  while (size > 0) {
    const ssize_t received = recv(fd, bytes, size, 0);
    if (received > 0) {
      bytes += received;
      size -= static_cast<size_t>(received);
    } else if (received == 0) {
      return absl::UnavailableError("the server closed the connection");
    } else if (errno == EAGAIN) {
      CONVENE_RETURN_IF_ERROR(AwaitReady(fd, POLLIN, deadline));
    } else if (errno != EINTR) {
      return absl::UnavailableError(absl::StrCat("receive: ", strerror(errno)));
    }
  }
  return absl::OkStatus();
}

// VALIDATE and PING: proves that a TCPStore server listens and reads, not only that a port is open.
absl::Status ShakeHands(int fd, MonotonicTime deadline) {
  const uint32_t nonce = static_cast<uint32_t>(getpid());
  std::string wire;
  EncodeRequest({Opcode::kValidate, {}, {}, 0, kValidateMagic}, &wire);
  EncodeRequest({Opcode::kPing, {}, {}, 0, nonce}, &wire);
  CONVENE_RETURN_IF_ERROR(SendAll(fd, wire, deadline));
  uint32_t echo = 0;
  CONVENE_RETURN_IF_ERROR(ReceiveAll(fd, &echo, sizeof(echo), deadline));
  if (echo == nonce) return absl::OkStatus();
  return absl::UnavailableError("the program that answers there is no TCPStore server");
}

absl::StatusOr<UniqueFd> ConnectOnce(const std::string& host, int port, MonotonicTime deadline) {
  CONVENE_ASSIGN_OR_RETURN(const std::vector<ResolvedAddress> addresses,
                           ResolveHost(host, deadline - Clock::Real().Now(), port));
  absl::Status last;
  for (const ResolvedAddress& address : addresses) {
    const MonotonicTime attempt_deadline = std::min(deadline, Clock::Real().Now() + kAttemptMax);
    absl::StatusOr<UniqueFd> fd = ConnectTo(address, attempt_deadline);
    last = fd.ok() ? ShakeHands(fd->get(), attempt_deadline) : fd.status();
    if (last.ok()) return fd;
  }
  return last;
}

class StoreClientImpl : public StoreClient {
 public:
  StoreClientImpl(UniqueFd fd, std::string name, absl::Duration timeout)
      : fd_(std::move(fd)), name_(std::move(name)), timeout_(timeout) {}

  absl::Status Set(const std::string& key, const std::string& value) override {
    if (value.size() > kValueBytesMax) {
      return absl::InvalidArgumentError(absl::StrCat("the value of key \"", key, "\" has ",
                                                     value.size(), " bytes; a store takes ",
                                                     kValueBytesMax));
    }
    return Send(Opcode::kSet, {key}, {value}, 0);
  }

  absl::StatusOr<std::string> Get(const std::string& key, absl::Duration timeout) override {
    CONVENE_RETURN_IF_ERROR(Wait({key}, timeout));
    CONVENE_RETURN_IF_ERROR(Send(Opcode::kGet, {key}, {}, 0));
    uint64_t length = 0;
    CONVENE_RETURN_IF_ERROR(Receive(&length, sizeof(length)));
    std::string value;
    // The value grows with arriving bytes, so that a broken server cannot make us ask for all
    // memory at once.
    while (value.size() < length) {
      const size_t before = value.size();
      value.resize(before + std::min<uint64_t>(length - before, kValueBytesMax));
      CONVENE_RETURN_IF_ERROR(Receive(value.data() + before, value.size() - before));
    }
    return value;
  }

  absl::StatusOr<int64_t> Add(const std::string& key, int64_t delta) override {
    CONVENE_RETURN_IF_ERROR(Send(Opcode::kAdd, {key}, {}, delta));
    int64_t sum = 0;
    CONVENE_RETURN_IF_ERROR(Receive(&sum, sizeof(sum)));
    return sum;
  }

  absl::Status Wait(const std::vector<std::string>& keys, absl::Duration timeout) override {
    if (keys.size() > kKeysPerRequestMax) {
      return absl::InvalidArgumentError(absl::StrCat("a wait for ", keys.size(), " keys; ",
                                                     kKeysPerRequestMax, " are allowed at once"));
    }
    CONVENE_RETURN_IF_ERROR(Send(Opcode::kWait, keys, {}, 0));
    const MonotonicTime deadline = Clock::Real().Now() + timeout;
    const absl::Status ready = AwaitReady(fd_.get(), POLLIN, deadline);
    if (ready.ok()) return ExpectByte(kStopWaiting);
    if (!absl::IsDeadlineExceeded(ready)) return Break(ready);
    CONVENE_ASSIGN_OR_RETURN(const bool canceled, CancelWait());
    if (!canceled) return absl::OkStatus();
    return absl::DeadlineExceededError(absl::StrCat(name_, ": not set within ",
                                                    absl::FormatDuration(timeout), ": ",
                                                    JoinCapped(keys, kKeysNamedMax)));
  }

 private:
  // Returns false when the server sent the wake-up before it read the cancel: then all keys exist.
  absl::StatusOr<bool> CancelWait() {
    CONVENE_RETURN_IF_ERROR(Send(Opcode::kCancelWait, {}, {}, 0));
    uint8_t answer = 0;
    CONVENE_RETURN_IF_ERROR(Receive(&answer, 1));
    if (answer == kWaitCanceled) return true;
    if (answer != kStopWaiting) return Break(Unexpected(answer));
    CONVENE_RETURN_IF_ERROR(ExpectByte(kWaitCanceled));
    return false;
  }

  static absl::Status Unexpected(uint8_t answer) {
    return absl::UnavailableError(absl::StrCat("unexpected answer ", answer, " to a wait"));
  }

  absl::Status ExpectByte(uint8_t expected) {
    uint8_t answer = 0;
    CONVENE_RETURN_IF_ERROR(Receive(&answer, 1));
    return answer == expected ? absl::OkStatus() : Break(Unexpected(answer));
  }

  absl::Status Send(Opcode opcode, const std::vector<std::string>& keys,
                    std::vector<std::string> values, int64_t number) {
    CONVENE_RETURN_IF_ERROR(broken_);
    Request request = {.opcode = opcode, .values = std::move(values), .number = number};
    for (const std::string& key : keys) {
      if (key.size() >= kKeyBytesMax) {
        return absl::InvalidArgumentError(
            absl::StrCat("a key of ", key.size(), " bytes; a store takes ", kKeyBytesMax - 1));
      }
      request.keys.push_back("/" + key);
    }
    std::string wire;
    EncodeRequest(request, &wire);
    return Break(SendAll(fd_.get(), wire, Clock::Real().Now() + timeout_));
  }

  absl::Status Receive(void* target, size_t size) {
    return Break(ReceiveAll(fd_.get(), target, size, Clock::Real().Now() + timeout_));
  }

  // After a failure in mid-request the next bytes may belong to any answer: the connection is given
  // up.
  absl::Status Break(const absl::Status& status) {
    if (status.ok()) return status;
    broken_ = absl::UnavailableError(absl::StrCat("lost ", name_, ": ", status.message()));
    fd_.Reset();
    return broken_;
  }

  UniqueFd fd_;
  const std::string name_;
  const absl::Duration timeout_;
  absl::Status broken_;  // OK while the connection is good
};

}  // namespace

absl::StatusOr<std::unique_ptr<StoreClient>> StoreClient::Connect(const std::string& host, int port,
                                                                  absl::Duration timeout) {
  Clock& clock = Clock::Real();
  const MonotonicTime deadline = clock.Now() + timeout;
  const std::string name = absl::StrCat("the store at ", host, ":", port);
  Backoff backoff(kFirstRetry, kLongestRetry);
  for (;;) {
    absl::StatusOr<UniqueFd> fd = ConnectOnce(host, port, deadline);
    if (fd.ok()) return std::make_unique<StoreClientImpl>(*std::move(fd), name, timeout);
    const absl::Duration pause = backoff.Next(RandomFraction());
    if (clock.Now() + pause >= deadline) {
      const absl::StatusCode code = absl::IsInvalidArgument(fd.status())
                                        ? absl::StatusCode::kInvalidArgument
                                        : absl::StatusCode::kUnavailable;
      return absl::Status(
          code, absl::StrCat(name, " was not reached within ", absl::FormatDuration(timeout), ": ",
                             fd.status().message()));
    }
    clock.SleepFor(pause);
  }
}

absl::Status WaitForAll(StoreClient& store, const std::string& key, int world_size,
                        absl::Duration timeout, const char* what) {
  const std::string all_key = absl::StrCat(key, "/all");
  CONVENE_ASSIGN_OR_RETURN(const int64_t come, store.Add(key, 1));
  if (come == world_size) return store.Set(all_key, "1");
  return Annotate(store.Get(all_key, timeout).status(), what);
}

}  // namespace convene::rendezvous
