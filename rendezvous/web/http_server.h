// HTTP/1.1, GET, HEAD and the POST of a form, for a handful of people and machines that look at the
// daemon.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rendezvous/web/http_request.h"
#include "tools/base/unique_fd.h"

namespace convene::rendezvous {

struct HttpResponse {
  int code = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::shared_ptr<const std::string> body;  // shared: many may be reading a large one
  std::string headers;  // more of them: whole lines, each with its "\r\n"; nothing from outside
};

// One thread, "http", from Start to the destructor, which closes every connection. Thread-safe.
class HttpServer {
 public:
  struct Options {
    absl::Duration head_timeout = absl::Seconds(10);  // from a request's first byte to its last
    absl::Duration idle_timeout = absl::Minutes(2);   // between two requests
    absl::Duration send_timeout = absl::Seconds(30);  // without a byte that the client takes
    // One more connection ends the one whose deadline is nearest.
    size_t most_connections = 256;
  };
  // Called from the thread: other requests wait meanwhile.
  using Handler = std::function<HttpResponse(const HttpRequest&)>;

  // ResourceExhausted without descriptors.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const Options& options, Handler handler);
  virtual ~HttpServer() = default;

  // Serves an accepted, non-blocking connection whose bytes were at most peeked at. Never blocks.
  virtual void Adopt(UniqueFd socket) = 0;
};

}  // namespace convene::rendezvous
