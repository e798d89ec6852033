#include "worker_runtime/data/chat/jinja/expression_parser.h"

#include <algorithm>
#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "worker_runtime/data/chat/jinja/builtins.h"

namespace convene::worker::jinja {
namespace {

absl::Status TooDeep() {
  return absl::ResourceExhaustedError(
      absl::StrCat("the template is more than ", kMaxTreeDepth, " levels deep"));
}

template <typename... Parts>
std::vector<ExpressionPtr> Children(Parts... parts) {
  std::vector<ExpressionPtr> children;
  (children.push_back(std::move(parts)), ...);
  return children;
}

}  // namespace

// Counts a level while it lives.
class ExpressionParser::Level {
 public:
  explicit Level(ExpressionParser* parser) : depth_(&parser->depth_) {
    if (++*depth_ > kMaxTreeDepth) parser->tokens_.Fail(parser->tokens_.place(), TooDeep());
  }
  Level(const Level&) = delete;
  Level& operator=(const Level&) = delete;
  ~Level() { --*depth_; }

 private:
  int* const depth_;
};

int ExpressionParser::SymbolOf(const std::string& name) {
  const auto [place, added] = symbols_.emplace(name, static_cast<int>(program_.symbols.size()));
  if (added) program_.symbols.push_back(name);
  return place->second;
}

ExpressionPtr ExpressionParser::Make(ExpressionKind kind, const Place& place,
                                     std::vector<ExpressionPtr> children) {
  auto expression = std::make_unique<Expression>();
  expression->kind = kind;
  expression->place = place;
  for (const ExpressionPtr& child : children) {
    if (child != nullptr) expression->depth = std::max(expression->depth, child->depth + 1);
  }
  expression->children = std::move(children);
  if (expression->depth > kMaxTreeDepth) tokens_.Fail(place, TooDeep());
  return expression;
}

ExpressionPtr ExpressionParser::Constant(const Place& place, Value value) {
  ExpressionPtr constant = Make(ExpressionKind::kConstant, place);
  constant->constant = std::move(value);
  return constant;
}

bool ExpressionParser::AtTupleEnd(Context context) const {
  return tokens_.Is(TokenKind::kVariableEnd) || tokens_.Is(TokenKind::kBlockEnd) ||
         tokens_.IsOperator(")") ||
         (context == Context::kForIterable && tokens_.IsName("recursive"));
}

ExpressionPtr ExpressionParser::Tuple(bool conditional, Context context) {
  const Place place = tokens_.place();
  std::vector<ExpressionPtr> items;
  bool is_tuple = false;
  while (!AtTupleEnd(context)) {
    items.push_back(conditional ? Conditional() : Or());
    if (!tokens_.SkipOperator(",")) break;
    is_tuple = true;
  }
  if (is_tuple) return Make(ExpressionKind::kTuple, place, std::move(items));
  if (items.empty()) return tokens_.Wrong("an expression");
  return std::move(items[0]);
}

ExpressionPtr ExpressionParser::Conditional() {
  const Level level(this);
  ExpressionPtr value = Or();
  while (tokens_.IsName("if")) {
    const Place place = tokens_.Take().place;
    ExpressionPtr condition = Or();
    ExpressionPtr otherwise = tokens_.SkipName("else") ? Conditional() : nullptr;
    value = Make(ExpressionKind::kConditional, place,
                 Children(std::move(condition), std::move(value), std::move(otherwise)));
  }
  return value;
}

ExpressionPtr ExpressionParser::LeftToRight(
    ExpressionPtr (ExpressionParser::*operand)(),
    std::initializer_list<std::pair<const char*, ExpressionKind>> operators) {
  ExpressionPtr left = (this->*operand)();
  while (true) {
    const auto found = std::find_if(operators.begin(), operators.end(), [&](const auto& known) {
      return tokens_.IsOperator(known.first) || tokens_.IsName(known.first);
    });
    if (found == operators.end()) return left;
    const Place place = tokens_.Take().place;
    ExpressionPtr right = (this->*operand)();
    left = Make(found->second, place, Children(std::move(left), std::move(right)));
  }
}

ExpressionPtr ExpressionParser::Or() {
  return LeftToRight(&ExpressionParser::And, {{"or", ExpressionKind::kOr}});
}

ExpressionPtr ExpressionParser::And() {
  return LeftToRight(&ExpressionParser::Not, {{"and", ExpressionKind::kAnd}});
}

ExpressionPtr ExpressionParser::Not() {
  if (!tokens_.IsName("not")) return Comparisons();
  const Level level(this);
  const Place place = tokens_.Take().place;
  return Make(ExpressionKind::kNot, place, Children(Not()));
}

ExpressionPtr ExpressionParser::Comparisons() {
  const Place place = tokens_.place();
  std::vector<ExpressionPtr> operands = Children(Sum());
  std::vector<Comparison> comparisons;
  while (true) {
    const bool negated = tokens_.IsName("not") && tokens_.ahead().kind == TokenKind::kName &&
                         tokens_.ahead().text == "in";
    if (negated) tokens_.Take();
    // The test of an operator has its name.
    const bool may_compare = tokens_.Is(TokenKind::kOperator) || tokens_.IsName("in");
    const Builtin* const test = may_compare ? FindTest(tokens_.current().text) : nullptr;
    if (test == nullptr) break;
    tokens_.Take();
    comparisons.push_back({test, negated});
    operands.push_back(Sum());
  }
  if (comparisons.empty()) return std::move(operands[0]);
  ExpressionPtr compare = Make(ExpressionKind::kCompare, place, std::move(operands));
  compare->comparisons = std::move(comparisons);
  return compare;
}

ExpressionPtr ExpressionParser::Sum() {
  return LeftToRight(&ExpressionParser::Concat,
                     {{"+", ExpressionKind::kAdd}, {"-", ExpressionKind::kSubtract}});
}

ExpressionPtr ExpressionParser::Concat() {
  const Place place = tokens_.place();
  std::vector<ExpressionPtr> parts = Children(Product());
  while (tokens_.SkipOperator("~")) parts.push_back(Product());
  if (parts.size() == 1) return std::move(parts[0]);
  return Make(ExpressionKind::kConcat, place, std::move(parts));
}

ExpressionPtr ExpressionParser::Product() {
  return LeftToRight(&ExpressionParser::Power, {{"*", ExpressionKind::kMultiply},
                                                {"/", ExpressionKind::kDivide},
                                                {"//", ExpressionKind::kFloorDivide},
                                                {"%", ExpressionKind::kModulo}});
}

ExpressionPtr ExpressionParser::Power() {
  return LeftToRight(&ExpressionParser::Filtered, {{"**", ExpressionKind::kPower}});
}

ExpressionPtr ExpressionParser::Filtered() {
  ExpressionPtr value = Unary();
  while (true) {
    if (tokens_.IsOperator("|")) {
      value = Filter(std::move(value));
    } else if (tokens_.IsName("is")) {
      value = Test(std::move(value));
    } else if (tokens_.IsOperator("(")) {
      value = Call(std::move(value));
    } else {
      return value;
    }
  }
}

ExpressionPtr ExpressionParser::Unary() {
  const Level level(this);
  if (!tokens_.IsOperator("-") && !tokens_.IsOperator("+")) return Postfix(Primary());
  const Token sign = tokens_.Take();
  const auto kind = sign.text == "-" ? ExpressionKind::kNegative : ExpressionKind::kPositive;
  return Postfix(Make(kind, sign.place, Children(Unary())));
}

ExpressionPtr ExpressionParser::Primary() {
  const Place place = tokens_.place();
  switch (tokens_.current().kind) {
    case TokenKind::kName:
      return NameOrConstant();
    case TokenKind::kString: {
      std::string text;
      while (tokens_.Is(TokenKind::kString)) text += tokens_.Take().text;
      return Constant(place, Value::OfString(std::move(text)));
    }
    case TokenKind::kInteger: {
      int64_t number = 0;
      if (!absl::SimpleAtoi(tokens_.Take().text, &number)) {
        return tokens_.Lacking(place, "an integer beyond 64 bits");
      }
      return Constant(place, Value::OfInt(number));
    }
    case TokenKind::kFloat:
      return Constant(place, Value::OfFloat(std::strtod(tokens_.Take().text.c_str(), nullptr)));
    default:
      return Bracket();
  }
}

ExpressionPtr ExpressionParser::NameOrConstant() {
  const Token token = tokens_.Take();
  const std::string& name = token.text;
  if (name == "true" || name == "True") return Constant(token.place, Value::OfBool(true));
  if (name == "false" || name == "False") return Constant(token.place, Value::OfBool(false));
  if (name == "none" || name == "None") return Constant(token.place, Value::OfNone());
  if (name == "loop" && loop_depth_ > 0) {
    if (!tokens_.SkipOperator(".")) {
      return tokens_.Lacking(token.place, "'loop' without an attribute");
    }
    const std::string attribute = tokens_.ExpectName();
    ExpressionPtr expression = Make(ExpressionKind::kLoop, token.place);
    expression->loop_attribute = FindLoopAttribute(attribute);
    if (expression->loop_attribute == nullptr) {
      return tokens_.Lacking(token.place, absl::StrCat("'loop.", attribute, "'"));
    }
    return expression;
  }
  for (const char* const unknown :
       {"self", "caller", "varargs", "kwargs", "super", "cycler", "joiner", "lipsum"}) {
    if (name == unknown) return tokens_.Lacking(token.place, absl::StrCat("'", name, "'"));
  }
  ExpressionPtr expression = Make(ExpressionKind::kName, token.place);
  expression->symbol = SymbolOf(name);
  return expression;
}

ExpressionPtr ExpressionParser::Bracket() {
  const Place place = tokens_.place();
  if (tokens_.IsOperator("[")) return ListLiteral();
  if (tokens_.IsOperator("{")) return DictLiteral();
  if (!tokens_.SkipOperator("(")) return tokens_.Wrong("an expression");
  if (tokens_.SkipOperator(")")) return Make(ExpressionKind::kTuple, place);
  ExpressionPtr inside = Tuple(/*conditional=*/true);
  tokens_.ExpectOperator(")");
  return inside;
}

ExpressionPtr ExpressionParser::ListLiteral() {
  const Place place = tokens_.Take().place;
  std::vector<ExpressionPtr> items;
  while (!tokens_.IsOperator("]")) {
    items.push_back(Conditional());
    if (!tokens_.SkipOperator(",")) break;
  }
  tokens_.ExpectOperator("]");
  return Make(ExpressionKind::kList, place, std::move(items));
}

ExpressionPtr ExpressionParser::DictLiteral() {
  const Place place = tokens_.Take().place;
  std::vector<ExpressionPtr> items;
  while (!tokens_.IsOperator("}")) {
    items.push_back(Conditional());
    tokens_.ExpectOperator(":");
    items.push_back(Conditional());
    if (!tokens_.SkipOperator(",")) break;
  }
  tokens_.ExpectOperator("}");
  return Make(ExpressionKind::kDict, place, std::move(items));
}

ExpressionPtr ExpressionParser::Postfix(ExpressionPtr subject) {
  while (true) {
    if (tokens_.IsOperator(".")) {
      subject = Attribute(std::move(subject));
    } else if (tokens_.IsOperator("[")) {
      subject = Subscript(std::move(subject));
    } else if (tokens_.IsOperator("(")) {
      subject = Call(std::move(subject));
    } else {
      return subject;
    }
  }
}

ExpressionPtr ExpressionParser::Attribute(ExpressionPtr object) {
  const Place place = tokens_.Take().place;
  if (tokens_.Is(TokenKind::kInteger)) {
    return Make(ExpressionKind::kItem, place, Children(std::move(object), Primary()));
  }
  ExpressionPtr attribute = Make(ExpressionKind::kAttribute, place, Children(std::move(object)));
  attribute->name = tokens_.ExpectName();
  if (attribute->name.size() > 2 && absl::StartsWith(attribute->name, "__")) {
    return tokens_.Lacking(place, absl::StrCat("the attribute '", attribute->name, "'"));
  }
  return attribute;
}

ExpressionPtr ExpressionParser::Subscript(ExpressionPtr object) {
  const Place place = tokens_.Take().place;
  std::vector<ExpressionPtr> parts = Children(std::move(object));
  parts.push_back(tokens_.IsOperator(":") ? nullptr : Conditional());
  bool is_slice = false;
  while (parts.size() < 4 && tokens_.SkipOperator(":")) {
    is_slice = true;
    const bool is_absent = tokens_.IsOperator(":") || tokens_.IsOperator("]");
    parts.push_back(is_absent ? nullptr : Conditional());
  }
  if (tokens_.IsOperator(",")) return tokens_.Lacking(place, "an index with commas");
  tokens_.ExpectOperator("]");
  if (is_slice) parts.resize(4);
  return Make(is_slice ? ExpressionKind::kSlice : ExpressionKind::kItem, place, std::move(parts));
}

std::vector<std::string> ExpressionParser::Arguments(std::vector<ExpressionPtr>* children) {
  std::vector<std::string> names;
  tokens_.ExpectOperator("(");
  while (!tokens_.IsOperator(")")) {
    if (tokens_.IsOperator("*") || tokens_.IsOperator("**")) {
      tokens_.Lacking(tokens_.place(), "an argument with '*' before it");
    }
    if (tokens_.Is(TokenKind::kName) && TokenReader::Matches(tokens_.ahead(), "=")) {
      const Token name = tokens_.Take();
      tokens_.Take();
      if (std::find(names.begin(), names.end(), name.text) != names.end()) {
        tokens_.Refuse(name.place, absl::StrCat("the argument '", name.text, "' comes twice"));
      }
      names.push_back(name.text);
    } else if (!names.empty()) {
      tokens_.Wrong("a named argument");
    }
    children->push_back(Conditional());
    if (!tokens_.SkipOperator(",")) break;
  }
  tokens_.ExpectOperator(")");
  return names;
}

ExpressionPtr ExpressionParser::Call(ExpressionPtr function) {
  const Place place = tokens_.place();
  std::vector<ExpressionPtr> children = Children(std::move(function));
  std::vector<std::string> names = Arguments(&children);
  ExpressionPtr call = Make(ExpressionKind::kCall, place, std::move(children));
  call->argument_names = std::move(names);
  return call;
}

ExpressionPtr ExpressionParser::Filter(ExpressionPtr input) {
  tokens_.Take();
  const Place place = tokens_.place();
  const std::string name = tokens_.ExpectName();
  const Builtin* const known = FindFilter(name);
  if (known == nullptr) return tokens_.Lacking(place, absl::StrCat("the filter '", name, "'"));
  std::vector<ExpressionPtr> children = Children(std::move(input));
  std::vector<std::string> names;
  if (tokens_.IsOperator("(")) names = Arguments(&children);
  ExpressionPtr filter = Make(ExpressionKind::kFilter, place, std::move(children));
  filter->builtin = known;
  filter->argument_names = std::move(names);
  return filter;
}

ExpressionPtr ExpressionParser::FilterChain() {
  if (!tokens_.IsOperator("|")) return nullptr;
  ExpressionPtr chain = Make(ExpressionKind::kCaptured, tokens_.place());
  while (tokens_.IsOperator("|")) chain = Filter(std::move(chain));
  return chain;
}

ExpressionPtr ExpressionParser::Test(ExpressionPtr subject) {
  const Place is_place = tokens_.Take().place;
  const bool negated = tokens_.SkipName("not");
  const Place place = tokens_.place();
  const std::string name = tokens_.ExpectName();
  const Builtin* const known = FindTest(name);
  if (known == nullptr) return tokens_.Lacking(place, absl::StrCat("the test '", name, "'"));
  std::vector<ExpressionPtr> children = Children(std::move(subject));
  std::vector<std::string> names;
  const bool value_follows = tokens_.Is(TokenKind::kString) || tokens_.Is(TokenKind::kInteger) ||
                             tokens_.Is(TokenKind::kFloat) || tokens_.IsOperator("[") ||
                             tokens_.IsOperator("{") ||
                             (tokens_.Is(TokenKind::kName) && !tokens_.IsName("else") &&
                              !tokens_.IsName("or") && !tokens_.IsName("and"));
  if (tokens_.IsOperator("(")) {
    names = Arguments(&children);
  } else if (value_follows) {
    if (tokens_.IsName("is")) return tokens_.Wrong("no second 'is'");
    children.push_back(Postfix(Primary()));
  }
  ExpressionPtr test = Make(ExpressionKind::kTest, place, std::move(children));
  test->builtin = known;
  test->argument_names = std::move(names);
  if (!negated) return test;
  return Make(ExpressionKind::kNot, is_place, Children(std::move(test)));
}

}  // namespace convene::worker::jinja
