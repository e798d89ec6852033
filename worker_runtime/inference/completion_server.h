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
// wants: prompt by prompt.
using ShowPiece = absl::FunctionRef<void(int index, const Choice& piece)>;
// Not OK: no more is wanted.
using GoesOn = absl::FunctionRef<absl::Status()>;

// Answers a request: calls `show` until each choice has a finish_reason, and `goes_on` before each
// work that takes long. Called by one thread, the server's. InvalidArgument: the request cannot be
// answered as it is; told to the client, as all errors are.
using AnswerRequest = absl::AnyInvocable<absl::StatusOr<Usage>(const CompletionRequest& request,
                                                               ShowPiece show, GoesOn goes_on)>;

// A client that closes its side of a connection gives its request up. Not thread-safe. Two threads:
// "serve" talks HTTP, "answer" answers.
class CompletionServer {
 public:
  // Listens at `host`:`port`, port 0: any, and serves from now on. `model`: its name on the wire.
  // Unavailable: the port is taken, or there is no such address here. Errors else: Thread::Start's.
  static absl::StatusOr<std::unique_ptr<CompletionServer>> Start(const std::string& host, int port,
                                                                 std::string model,
                                                                 AnswerRequest answer);
  // Ends the request that runs; those that wait are told.
  ~CompletionServer();

  int port() const;

 private:
  class Web;

  explicit CompletionServer(std::unique_ptr<Web> web);

  const std::unique_ptr<Web> web_;
};

}  // namespace convene::worker
