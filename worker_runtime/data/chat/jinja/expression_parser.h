// PURE. The expressions of a template.
#pragma once

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "worker_runtime/data/chat/jinja/syntax.h"
#include "worker_runtime/data/chat/jinja/token_reader.h"

namespace convene::worker::jinja {

// A tree is at most so deep, and brackets within brackets: reading and running it recurses.
constexpr int kMaxTreeDepth = 100;

// Reads from `tokens` and adds the names of variables to `program`. Not thread-safe.
class ExpressionParser {
 public:
  ExpressionParser(TokenReader* tokens, Program* program) : tokens_(*tokens), program_(*program) {}

  // The place of a tuple without brackets.
  enum class Context { kNone, kForIterable };

  // An expression; with commas a tuple. Without `conditional`, no `a if b else c` at the top.
  absl::StatusOr<ExpressionPtr> Tuple(bool conditional, Context context = Context::kNone);
  absl::StatusOr<ExpressionPtr> Expression();
  // `| filter | filter` behind a `set` without a value; nullptr: none.
  absl::StatusOr<ExpressionPtr> FilterChain();

  int SymbolOf(const std::string& name);
  // How many loops are around this place: `loop` means something within one.
  void set_loop_depth(int depth) { loop_depth_ = depth; }
  int loop_depth() const { return loop_depth_; }

 private:
  using Result = absl::StatusOr<ExpressionPtr>;

  static Result Make(ExpressionKind kind, const Place& place,
                     std::vector<ExpressionPtr> children = {});

  static Result Constant(const Place& place, Value value);

  // Operands with one of these operators between each two, the left ones first.
  Result LeftToRight(Result (ExpressionParser::*operand)(),
                     std::initializer_list<std::pair<const char*, ExpressionKind>> operators);
  Result Conditional();
  Result Or();
  Result And();
  Result Not();
  Result Comparisons();
  Result Sum();
  Result Concat();
  Result Product();
  Result Power();
  Result Filtered();
  Result Unary();
  Result Primary();
  Result NameOrConstant();
  Result Bracket();
  Result ListLiteral();
  Result DictLiteral();
  Result Postfix(ExpressionPtr subject);
  Result FiltersAndTests(ExpressionPtr subject);
  Result Attribute(ExpressionPtr object);
  Result Subscript(ExpressionPtr object);
  Result Call(ExpressionPtr function);
  Result Filter(ExpressionPtr input);
  Result Test(ExpressionPtr subject);
  absl::Status Arguments(std::vector<ExpressionPtr>* arguments, std::vector<std::string>* names);
  bool AtTupleEnd(Context context) const;

  TokenReader& tokens_;
  Program& program_;
  absl::flat_hash_map<std::string, int> symbols_;
  int depth_ = 0;
  int loop_depth_ = 0;
};

}  // namespace convene::worker::jinja
