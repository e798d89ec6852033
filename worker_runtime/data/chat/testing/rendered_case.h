// One case of the comparison with Jinja2: a template and its variables.
#pragma once

#include <string>

#include "worker_runtime/data/chat/jinja/chat_template.h"
#include "worker_runtime/data/chat/jinja/value.h"

namespace convene::worker::jinja {

// The status, or the text and the spans, of `input`: {"template": text, "variables": {...}}.
// strftime_now gives the time of jinja_oracle.py.
inline absl::StatusOr<Rendered> RenderCase(const Dict& input) {
  absl::StatusOr<ChatTemplate> chat_template =
      ChatTemplate::Parse(input.Find("template")->as_string());
  if (!chat_template.ok()) return chat_template.status();
  RenderOptions options;
  options.now = absl::CivilSecond(2026, 3, 7, 14, 5, 9);
  return chat_template->Render(input.Find("variables")->as_dict(), options);
}

}  // namespace convene::worker::jinja
