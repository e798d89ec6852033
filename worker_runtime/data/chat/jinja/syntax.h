// PURE. A template as a tree.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "worker_runtime/data/chat/jinja/lexer.h"
#include "worker_runtime/data/chat/jinja/value.h"

namespace convene::worker::jinja {

struct Builtin;

enum class ExpressionKind {
  kConstant,
  kName,
  kLoop,       // an attribute of the innermost loop: `loop.first`
  kAttribute,  // children: the object
  kItem,       // children: the object, the key
  kSlice,      // children: the object, then start, stop and step, each may be nullptr
  kCall,       // children: the function, then the arguments
  kCaptured,   // the text of a set block, as the input of its filters
  kFilter,     // children: the input, then the arguments
  kTest,       // children: the subject, then the arguments
  kNot,
  kNegative,
  kPositive,
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kFloorDivide,
  kModulo,
  kPower,
  kConcat,   // a ~ b ~ c
  kCompare,  // a < b <= c: one more child than comparisons
  kAnd,
  kOr,
  kConditional,  // children: the condition, the value if so, the value if not or nullptr
  kList,
  kTuple,
  kDict,  // children: key, value, key, value, ...
};

// left TEST right, as in `a < b`.
struct Comparison {
  const Builtin* test;
  bool is_negated = false;  // `not in`
};

// The rounds of a `for`.
struct Loop {
  const std::vector<Value>* items;
  size_t index;
};
using LoopAttribute = Value (*)(const Loop& loop);
// The value of `loop.name`. nullptr: no such attribute here.
LoopAttribute FindLoopAttribute(absl::string_view name);

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

struct Expression {
  ExpressionKind kind;
  Place place;
  // The levels of this tree: at most kMaxDepth of the parser.
  int depth = 1;
  std::vector<ExpressionPtr> children;

  Value constant;
  std::string name;  // of an attribute
  int symbol = -1;   // of a name
  LoopAttribute loop_attribute = nullptr;
  std::vector<Comparison> comparisons;
  const Builtin* builtin = nullptr;  // a filter or test
  // The last children of a call, filter or test that are named arguments have these names.
  std::vector<std::string> argument_names;
};

// The variables that a `set` or `for` assigns to.
struct Target {
  // One: a variable; several: the parts of a sequence. Indices into Program::symbols.
  std::vector<int> symbols;
  bool unpacks = false;
  // Not empty: the variable symbols[0] is a namespace, and its attribute is meant.
  std::string attribute;
};

enum class StatementKind {
  kText,
  kOutput,
  kIf,   // expressions: the conditions; bodies: one for each, then that of else, if any
  kFor,  // expressions: what is walked over, and the condition or nullptr; bodies: loop, else
  kSet,
  kSetBlock,  // expressions: a chain of filters or nullptr; bodies: one
  kMacro,
  kGeneration,
  kBreak,
  kContinue
};

struct Statement;
using Block = std::vector<Statement>;

struct Parameter {
  int symbol;
  std::string name;
  ExpressionPtr default_value;  // nullptr: none
};

struct Statement {
  StatementKind kind = StatementKind::kText;
  Place place;
  std::string text;
  std::vector<ExpressionPtr> expressions;
  std::vector<Block> bodies;
  Target target;
  std::string name;  // of a macro
  std::vector<Parameter> parameters;
};

struct Program {
  Block block;
  // The names of all variables; a name's place here is its symbol.
  std::vector<std::string> symbols;
  bool has_generation = false;
};

// Jinja2 3.1's grammar (its parser.py), less what README.md leaves out. InvalidArgument: Jinja2
// refuses it too. Unimplemented: Jinja2 takes it, we do not; named. ResourceExhausted: deeper than
// 100 levels. All with line and column.
absl::StatusOr<Program> ParseTemplate(absl::string_view source);

}  // namespace convene::worker::jinja
