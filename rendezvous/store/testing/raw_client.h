// A bare connection to a store, for bytes and addresses that no good client has.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <catch2/catch.hpp>
#include <string>

#include "rendezvous/store/wire.h"
#include "tools/base/unique_fd.h"

namespace convene::rendezvous {

// A socket whose reads give up after 20 s.
inline UniqueFd RawSocket() {
  UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const timeval limit = {20, 0};
  setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  return fd;
}

inline void ConnectTo(int port, const UniqueFd& fd) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
}

inline void SendBytes(int fd, const std::string& bytes) {
  REQUIRE(send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size()));
}

// Up to `size` bytes; fewer when the server closed.
inline std::string ReadBytes(int fd, size_t size) {
  std::string bytes(size, '\0');
  const ssize_t count = recv(fd, bytes.data(), size, MSG_WAITALL);
  bytes.resize(count > 0 ? static_cast<size_t>(count) : 0);
  return bytes;
}

inline std::string Handshake() {
  std::string wire;
  EncodeRequest({Opcode::kValidate, {}, {}, 0, kValidateMagic}, &wire);
  return wire;
}

inline std::string Encoded(const Request& request) {
  std::string wire;
  EncodeRequest(request, &wire);
  return wire;
}

}  // namespace convene::rendezvous
