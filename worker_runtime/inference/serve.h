// `convene generate --serve`: a model on OpenAI's wire.
#pragma once

#include "absl/status/statusor.h"
#include "worker_runtime/inference/generate_flags.h"
#include "worker_runtime/inference/open_model.h"

namespace convene::worker {

// Loads the model, and answers until SIGINT or SIGTERM, whose exit code it gives
// (ExitCodeForSignal). Before the model is loaded a signal does what it did before the call. Call
// it on the main thread, before others start. Errors: CompletionServer::Start's,
// LanguageModel::Make's.
absl::StatusOr<int> Serve(const GenerateFlags& flags, OpenedModel& opened);

}  // namespace convene::worker
