#include "worker_runtime/data/chat/jinja/evaluator.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/data/chat/jinja/operations.h"
#include "worker_runtime/data/chat/jinja/print.h"

namespace convene::worker::jinja {
namespace {

// Blocks, expressions and macros within each other: running them recurses.
constexpr int kMaxDepth = 500;
constexpr size_t kMaxUndefined = 8;

// By Function.
constexpr const char* kFunctions[] = {"range", "namespace", "dict", "raise_exception",
                                      "strftime_now"};

// Sets a variable for as long as this lives.
template <typename T>
class Exchanged {
 public:
  Exchanged(T* variable, T value) : variable_(*variable), before_(*variable) { variable_ = value; }
  Exchanged(const Exchanged&) = delete;
  Exchanged& operator=(const Exchanged&) = delete;
  ~Exchanged() { variable_ = before_; }

 private:
  T& variable_;
  const T before_;
};

}  // namespace

void Evaluator::Scope::Set(int symbol, Value value) {
  for (auto& [held, old] : variables) {
    if (held != symbol) continue;
    old = std::move(value);
    return;
  }
  variables.emplace_back(symbol, std::move(value));
}

Evaluator::Evaluator(const Program& program, const RenderOptions& options)
    : program_(program), options_(options), budget_(options.max_steps, options.max_bytes) {
  root_.outer = &globals_;
}

absl::StatusOr<Rendered> Evaluator::Run(const Dict& variables) && {
  for (size_t i = 0; i < program_.symbols.size(); ++i) {
    const std::string& name = program_.symbols[i];
    const int symbol = static_cast<int>(i);
    for (size_t function = 0; function < std::size(kFunctions); ++function) {
      if (name != kFunctions[function]) continue;
      globals_.Set(symbol, Value::OfFunction(static_cast<Function>(function)));
    }
    if (const Value* const value = variables.Find(name)) globals_.Set(symbol, *value);
  }
  const absl::Status status = RunBlock(program_.block);
  if (!status.ok()) return At(error_place_.value_or(Place()), status);
  rendered_.steps_left = budget_.steps();
  return std::move(rendered_);
}

Evaluator::Result Evaluator::Lookup(int symbol) {
  for (const Scope* scope = scope_; scope != nullptr; scope = scope->outer) {
    CONVENE_RETURN_IF_ERROR(
        budget_.Charge(static_cast<int64_t>(scope->variables.size()) / kVariablesPerStep));
    for (const auto& [held, value] : scope->variables) {
      if (held == symbol) return value;
    }
  }
  return Value::OfUndefinedVariable(absl::StrCat("'", program_.symbols[symbol], "' is undefined"));
}

void Evaluator::NotePrinted(const Value& value, const Place& place) {
  std::vector<std::string>& known = rendered_.undefined;
  if (!value.is_undefined_variable() || known.size() == kMaxUndefined) return;
  std::string found(At(place, absl::InvalidArgumentError(value.why_undefined())).message());
  if (std::find(known.begin(), known.end(), found) == known.end())
    known.push_back(std::move(found));
}

absl::Status Evaluator::RunBlock(const Block& block) {
  for (const Statement& statement : block) {
    CONVENE_RETURN_IF_ERROR(RunStatement(statement));
    if (flow_ != Flow::kNext) break;
  }
  return absl::OkStatus();
}

absl::Status Evaluator::RunStatement(const Statement& statement) {
  absl::Status status = budget_.Charge();
  if (status.ok()) status = CheckDepth();
  ++depth_;
  if (status.ok()) status = RunOne(statement);
  --depth_;
  if (!status.ok() && !error_place_.has_value()) error_place_ = statement.place;
  return status;
}

absl::Status Evaluator::CheckDepth() const {
  if (depth_ < kMaxDepth) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("blocks, expressions and macros more than ",
                                                   kMaxDepth,
                                                   " deep: does a macro call itself without end?"));
}

absl::Status Evaluator::RunOne(const Statement& statement) {
  switch (statement.kind) {
    case StatementKind::kText:
      CONVENE_RETURN_IF_ERROR(budget_.CheckBytes(output_->size() + statement.text.size()));
      output_->append(statement.text);
      return budget_.ChargeBytes(statement.text.size());
    case StatementKind::kOutput: {
      CONVENE_ASSIGN_OR_RETURN(const Value value, Evaluate(*statement.expressions[0]));
      NotePrinted(value, statement.expressions[0]->place);
      return AppendString(value, &budget_, output_);
    }
    case StatementKind::kIf:
      return RunIf(statement);
    case StatementKind::kFor:
      return RunFor(statement);
    case StatementKind::kSet:
    case StatementKind::kSetBlock:
      return RunSet(statement);
    case StatementKind::kMacro:
      scope_->Set(statement.target.symbols[0], Value::OfMacro(&statement));
      return absl::OkStatus();
    case StatementKind::kGeneration:
      return RunGeneration(statement);
    case StatementKind::kBreak:
      flow_ = Flow::kBreak;
      return absl::OkStatus();
    case StatementKind::kContinue:
      flow_ = Flow::kContinue;
      return absl::OkStatus();
  }
  return absl::OkStatus();
}

absl::Status Evaluator::RunIf(const Statement& statement) {
  for (size_t i = 0; i < statement.bodies.size(); ++i) {
    // The last body is that of else when it has no condition.
    if (i < statement.expressions.size()) {
      CONVENE_ASSIGN_OR_RETURN(const Value condition, Evaluate(*statement.expressions[i]));
      if (!condition.Truth()) continue;
    }
    return RunBlock(statement.bodies[i]);
  }
  return absl::OkStatus();
}

absl::Status Evaluator::RunFor(const Statement& statement) {
  CONVENE_ASSIGN_OR_RETURN(const Value iterable, Evaluate(*statement.expressions[0]));
  CONVENE_ASSIGN_OR_RETURN(const ListPtr items, ItemsOf(iterable, &budget_));
  if (statement.expressions[1] == nullptr) return RunLoop(statement, items->items);
  // The condition chooses the items before the loop begins: loop.length counts those it keeps.
  std::vector<Value> kept;
  for (const Value& item : items->items) {
    Scope scope = {scope_, {}};
    const Exchanged<Scope*> inside(&scope_, &scope);
    CONVENE_RETURN_IF_ERROR(Assign(statement.target, item));
    CONVENE_ASSIGN_OR_RETURN(const Value condition, Evaluate(*statement.expressions[1]));
    if (condition.Truth()) kept.push_back(item);
  }
  return RunLoop(statement, kept);
}

absl::Status Evaluator::RunLoop(const Statement& statement, const std::vector<Value>& items) {
  // Jinja2 runs `else` when no round came to its end, so also after a `break` in the first one.
  bool came_to_end = false;
  Loop loop = {&items, 0};
  for (; loop.index < items.size(); ++loop.index) {
    CONVENE_RETURN_IF_ERROR(budget_.Charge());
    const Exchanged<const Loop*> in_loop(&loop_, &loop);
    // Each round has its own variables: a `set` in it is gone in the next.
    Scope scope = {scope_, {}};
    const Exchanged<Scope*> inside(&scope_, &scope);
    CONVENE_RETURN_IF_ERROR(Assign(statement.target, items[loop.index]));
    CONVENE_RETURN_IF_ERROR(RunBlock(statement.bodies[0]));
    const Flow flow = std::exchange(flow_, Flow::kNext);
    if (flow == Flow::kBreak) break;
    if (flow == Flow::kNext) came_to_end = true;
  }
  if (came_to_end || statement.bodies.size() == 1) return absl::OkStatus();
  Scope scope = {scope_, {}};
  const Exchanged<Scope*> inside(&scope_, &scope);
  return RunBlock(statement.bodies[1]);
}

absl::Status Evaluator::RunSet(const Statement& statement) {
  Value value;
  if (statement.kind == StatementKind::kSet) {
    CONVENE_ASSIGN_OR_RETURN(value, Evaluate(*statement.expressions[0]));
  } else {
    Scope scope = {scope_, {}};
    CONVENE_ASSIGN_OR_RETURN(std::string text, Capture(statement.bodies[0], &scope));
    value = Value::OfString(std::move(text));
    if (statement.expressions[0] != nullptr) {
      captured_ = std::move(value);
      CONVENE_ASSIGN_OR_RETURN(value, Evaluate(*statement.expressions[0]));
    }
  }
  return Assign(statement.target, std::move(value));
}

absl::Status Evaluator::RunGeneration(const Statement& statement) {
  Scope scope = {scope_, {}};
  const Exchanged<Scope*> inside(&scope_, &scope);
  const size_t begin = output_->size();
  CONVENE_RETURN_IF_ERROR(RunBlock(statement.bodies[0]));
  rendered_.generated.push_back({begin, output_->size()});
  return absl::OkStatus();
}

absl::StatusOr<std::string> Evaluator::Capture(const Block& block, Scope* scope) {
  std::string text;
  const Exchanged<Scope*> inside(&scope_, scope);
  const Exchanged<std::string*> into(&output_, &text);
  CONVENE_RETURN_IF_ERROR(RunBlock(block));
  return text;
}

absl::Status Evaluator::Assign(const Target& target, Value value) {
  if (!target.attribute.empty()) {
    CONVENE_ASSIGN_OR_RETURN(const Value held, Lookup(target.symbols[0]));
    if (!held.is_namespace()) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", program_.symbols[target.symbols[0]],
                       "' is no namespace: only one takes an attribute"));
    }
    held.as_namespace()->attributes.insert_or_assign(target.attribute, std::move(value));
    return absl::OkStatus();
  }
  const auto looked_at = static_cast<int64_t>(scope_->variables.size() * target.symbols.size());
  CONVENE_RETURN_IF_ERROR(budget_.Charge(looked_at / kVariablesPerStep));
  if (!target.unpacks) {
    scope_->Set(target.symbols[0], std::move(value));
    return absl::OkStatus();
  }
  CONVENE_ASSIGN_OR_RETURN(const ListPtr parts, ItemsOf(value, &budget_));
  if (parts->items.size() != target.symbols.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(parts->items.size(), " values for ", target.symbols.size(), " names"));
  }
  for (size_t i = 0; i < target.symbols.size(); ++i) {
    scope_->Set(target.symbols[i], parts->items[i]);
  }
  return absl::OkStatus();
}

absl::StatusOr<ChatTemplate> ChatTemplate::Parse(absl::string_view source) {
  CONVENE_ASSIGN_OR_RETURN(Program program, ParseTemplate(source));
  return ChatTemplate(std::make_shared<const Program>(std::move(program)));
}

bool ChatTemplate::has_generation() const { return program_->has_generation; }

absl::StatusOr<Rendered> ChatTemplate::Render(const Dict& variables,
                                              const RenderOptions& options) const {
  return Evaluator(*program_, options).Run(variables);
}

}  // namespace convene::worker::jinja
