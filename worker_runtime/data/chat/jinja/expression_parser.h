// PURE. The expressions of a template.
#pragma once

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "worker_runtime/data/chat/jinja/syntax.h"
#include "worker_runtime/data/chat/jinja/token_reader.h"

namespace convene::worker::jinja {

// A tree is at most so deep, and brackets within brackets: reading and running it recurses.
constexpr int kMaxTreeDepth = 100;

// Reads from `tokens`, which keeps the errors, and adds the names of variables to `program`. All
// three outlive it. Not thread-safe.
class ExpressionParser {
 public:
  // *loop_depth: how many loops are around the current place; `loop` means something within one.
  ExpressionParser(TokenReader* tokens, Program* program, const int* loop_depth)
      : tokens_(*tokens), program_(*program), loop_depth_(*loop_depth) {}

  // The place of a tuple without brackets.
  enum class Context { kNone, kForIterable };
  // An expression; with commas a tuple. Without `conditional`, no `a if b else c` at the top.
  ExpressionPtr Tuple(bool conditional, Context context = Context::kNone);
  // An expression without commas.
  ExpressionPtr Conditional();
  // `| filter | filter` behind a `set` without a value; nullptr: none.
  ExpressionPtr FilterChain();

  int SymbolOf(const std::string& name);

 private:
  class Level;

  ExpressionPtr Make(ExpressionKind kind, const Place& place,
                     std::vector<ExpressionPtr> children = {});
  ExpressionPtr Constant(const Place& place, Value value);

  // Operands with one of these operators between each two, the left ones first.
  ExpressionPtr LeftToRight(
      ExpressionPtr (ExpressionParser::*operand)(),
      std::initializer_list<std::pair<const char*, ExpressionKind>> operators);
  ExpressionPtr Or();
  ExpressionPtr And();
  ExpressionPtr Not();
  ExpressionPtr Comparisons();
  ExpressionPtr Sum();
  ExpressionPtr Concat();
  ExpressionPtr Product();
  ExpressionPtr Power();
  ExpressionPtr Filtered();
  ExpressionPtr Unary();
  ExpressionPtr Primary();
  ExpressionPtr NameOrConstant();
  ExpressionPtr Bracket();
  ExpressionPtr ListLiteral();
  ExpressionPtr DictLiteral();
  ExpressionPtr Postfix(ExpressionPtr subject);
  ExpressionPtr Attribute(ExpressionPtr object);
  ExpressionPtr Subscript(ExpressionPtr object);
  ExpressionPtr Call(ExpressionPtr function);
  ExpressionPtr Filter(ExpressionPtr input);
  ExpressionPtr Test(ExpressionPtr subject);
  // Adds the arguments of a call to its children, and returns the names of the last ones.
  std::vector<std::string> Arguments(std::vector<ExpressionPtr>* children);
  bool AtTupleEnd(Context context) const;

  TokenReader& tokens_;
  Program& program_;
  const int& loop_depth_;
  absl::flat_hash_map<std::string, int> symbols_;
  int depth_ = 0;
};

}  // namespace convene::worker::jinja
