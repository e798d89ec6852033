// PURE. A model folder's chat template: a program in a subset of Jinja2 (README.md says which),
// rendered as transformers' apply_chat_template does.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/civil_time.h"
#include "worker_runtime/data/chat/jinja/value.h"

namespace convene::worker::jinja {

struct Program;

struct RenderOptions {
  // The time that strftime_now formats. Absent: a template that asks for it is refused, because its
  // text would change from day to day.
  std::optional<absl::CivilSecond> now;
  int64_t max_steps = 20'000'000;
  // Of the whole text, and of each string on the way.
  size_t max_bytes = size_t{64} << 20;
};

// Bytes [begin, end) of a text.
struct TextSpan {
  size_t begin;
  size_t end;
};

struct Rendered {
  std::string text;
  // The parts that stood within {% generation %}, in order.
  std::vector<TextSpan> generated;
  // The first variables that the template printed and nobody defined, which print nothing:
  // "line 2, column 4: 'bos_token' is undefined". Eight at most, each place once.
  std::vector<std::string> undefined;
  // Of RenderOptions::max_steps.
  int64_t steps_left = 0;
};

// Read-only and thread-safe.
class ChatTemplate {
 public:
  // InvalidArgument: Jinja2 refuses it too. Unimplemented: Jinja2 takes it, we do not; named.
  // ResourceExhausted: deeper than 100 levels. All with line and column.
  static absl::StatusOr<ChatTemplate> Parse(absl::string_view source);

  // Whether the template marks what the model generates.
  bool has_generation() const;

  // `variables`: the template's variables by name.
  // InvalidArgument: Jinja2 fails too, among others by the template's own raise_exception.
  // Unimplemented: Jinja2 does not fail; named. FailedPrecondition: the template asks for the date,
  // and there is none. ResourceExhausted: a limit. All with line and column.
  absl::StatusOr<Rendered> Render(const Dict& variables, const RenderOptions& options) const;

 private:
  explicit ChatTemplate(std::shared_ptr<const Program> program) : program_(std::move(program)) {}

  std::shared_ptr<const Program> program_;
};

}  // namespace convene::worker::jinja
