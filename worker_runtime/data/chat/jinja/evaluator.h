// PURE. Runs a template's tree.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "worker_runtime/data/chat/jinja/budget.h"
#include "worker_runtime/data/chat/jinja/builtins.h"
#include "worker_runtime/data/chat/jinja/chat_template.h"
#include "worker_runtime/data/chat/jinja/syntax.h"

namespace convene::worker::jinja {

// One rendering. Not thread-safe. `program` and `options` must outlive it.
class Evaluator {
 public:
  Evaluator(const Program& program, const RenderOptions& options);

  absl::StatusOr<Rendered> Run(const Dict& variables) &&;

 private:
  // The variables of one block. Looked up from the inside out.
  struct Scope {
    const Scope* outer = nullptr;
    std::vector<std::pair<int, Value>> variables;

    void Set(int symbol, Value value);
  };
  enum class Flow { kNext, kBreak, kContinue };
  using Result = absl::StatusOr<Value>;

  // Variables of a scope that are looked at within one step.
  static constexpr int64_t kVariablesPerStep = 16;

  Result Lookup(int symbol);
  // Writes down that `value`, if it is a variable that nobody defined, is printed at `place`.
  void NotePrinted(const Value& value, const Place& place);
  absl::Status CheckDepth() const;

  // Statements; evaluator.cc.
  absl::Status RunBlock(const Block& block);
  absl::Status RunStatement(const Statement& statement);
  absl::Status RunOne(const Statement& statement);
  absl::Status RunIf(const Statement& statement);
  absl::Status RunFor(const Statement& statement);
  absl::Status RunLoop(const Statement& statement, const std::vector<Value>& items);
  absl::Status RunSet(const Statement& statement);
  absl::Status RunGeneration(const Statement& statement);
  absl::Status Assign(const Target& target, Value value);
  // The text that the block prints, run in a scope of its own within `outer`.
  absl::StatusOr<std::string> Capture(const Block& block, Scope* scope);

  // Expressions; expression_evaluator.cc.
  Result Evaluate(const Expression& expression);
  Result EvaluateAt(const Expression& expression);
  Result EvaluateChoice(const Expression& expression);
  Result EvaluateList(const Expression& expression);
  Result EvaluateCompare(const Expression& expression);
  Result EvaluateConcat(const Expression& expression);
  Result EvaluateDict(const Expression& expression);
  Result EvaluateSlice(const Expression& expression);
  Result EvaluateFilter(const Expression& expression);
  Result EvaluateTest(const Expression& expression);
  Result EvaluateCall(const Expression& expression);
  absl::StatusOr<Arguments> EvaluateArguments(const Expression& expression);
  Result CallFunction(Function function, const Arguments& arguments);
  Result CallMacro(const Statement& macro, const Arguments& arguments);
  Result MakeRange(const Arguments& arguments);
  Result MakeNamespace(const Arguments& arguments);

  const Program& program_;
  const RenderOptions& options_;
  Budget budget_;
  Rendered rendered_;
  std::string* output_ = &rendered_.text;
  Scope globals_;
  Scope root_;
  Scope* scope_ = &root_;
  const Loop* loop_ = nullptr;
  Value captured_;  // kCaptured
  Flow flow_ = Flow::kNext;
  int depth_ = 0;
  std::optional<Place> error_place_;  // of the innermost statement or expression that failed
  std::deque<Namespace> namespaces_;
};

}  // namespace convene::worker::jinja
