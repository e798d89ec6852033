// OpenAI's wire over HTTP, for one model: a tool to look at what it has learned, not a serving
// engine. One request is answered at a time; its prompts run side by side.
#pragma once

#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker_runtime/inference/openai_wire.h"

namespace convene::worker {

// A piece of the answer to the choice `index`, of which the prompts have as many as the request
// wants: prompt by prompt. Not OK: no more is wanted.
using ShowPiece = absl::FunctionRef<absl::Status(int index, const Choice& piece)>;

// Answers a request: calls `show` until each choice has a finish_reason. Called by one thread at a
// time, but by several threads. InvalidArgument: the request cannot be answered as it is; told to
// the client, as all errors are.
using AnswerRequest =
    absl::AnyInvocable<absl::StatusOr<Usage>(const CompletionRequest& request, ShowPiece show)>;

class CompletionServer {
 public:
  // Listens at `host`:`port`; port 0: any. `model`: its name on the wire. InvalidArgument: no such
  // address here. Unavailable: the port is taken.
  static absl::StatusOr<std::unique_ptr<CompletionServer>> Listen(const std::string& host, int port,
                                                                  std::string model,
                                                                  AnswerRequest answer);
  // REQUIRES: Run has returned, or was not called.
  ~CompletionServer();

  int port() const { return port_; }
  // Serves until Stop.
  void Run();
  // From any thread: no new requests, and those that run end early. Run returns soon.
  void Stop();

 private:
  class Handlers;

  CompletionServer(std::string model, AnswerRequest answer);

  const std::unique_ptr<Handlers> handlers_;
  int port_ = 0;
};

}  // namespace convene::worker
