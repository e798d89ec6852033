#include "worker_runtime/data/chat/jinja/expression_parser.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/data/chat/jinja/filters.h"
#include "worker_runtime/data/chat/jinja/tests.h"

namespace convene::worker::jinja {
namespace {

// Counts a level while it lives.
class Level {
 public:
  explicit Level(int* depth) : depth_(depth) { ++*depth_; }
  Level(const Level&) = delete;
  Level& operator=(const Level&) = delete;
  ~Level() { --*depth_; }

 private:
  int* const depth_;
};

absl::Status TooDeep(const Place& place) {
  return At(place, absl::ResourceExhaustedError(
                       absl::StrCat("the template is more than ", kMaxTreeDepth, " levels deep")));
}

std::vector<ExpressionPtr> Children(ExpressionPtr first, ExpressionPtr second = nullptr) {
  std::vector<ExpressionPtr> children;
  children.push_back(std::move(first));
  if (second != nullptr) children.push_back(std::move(second));
  return children;
}

std::optional<Comparison> ComparisonOf(const Token& token) {
  if (token.kind != TokenKind::kOperator) return std::nullopt;
  if (token.text == "==") return Comparison::kEqual;
  if (token.text == "!=") return Comparison::kNotEqual;
  if (token.text == "<") return Comparison::kLess;
  if (token.text == "<=") return Comparison::kLessOrEqual;
  if (token.text == ">") return Comparison::kGreater;
  if (token.text == ">=") return Comparison::kGreaterOrEqual;
  return std::nullopt;
}

std::optional<LoopAttribute> LoopAttributeOf(const std::string& name) {
  constexpr std::pair<const char*, LoopAttribute> kAttributes[] = {
      {"index", LoopAttribute::kIndex},       {"index0", LoopAttribute::kIndex0},
      {"revindex", LoopAttribute::kRevindex}, {"revindex0", LoopAttribute::kRevindex0},
      {"first", LoopAttribute::kFirst},       {"last", LoopAttribute::kLast},
      {"length", LoopAttribute::kLength},     {"depth", LoopAttribute::kDepth},
      {"depth0", LoopAttribute::kDepth0},     {"previtem", LoopAttribute::kPrevitem},
      {"nextitem", LoopAttribute::kNextitem}};
  for (const auto& [text, attribute] : kAttributes) {
    if (name == text) return attribute;
  }
  return std::nullopt;
}

}  // namespace

int ExpressionParser::SymbolOf(const std::string& name) {
  const auto [place, added] = symbols_.emplace(name, static_cast<int>(program_.symbols.size()));
  if (added) program_.symbols.push_back(name);
  return place->second;
}

ExpressionParser::Result ExpressionParser::Make(ExpressionKind kind, const Place& place,
                                                std::vector<ExpressionPtr> children) {
  auto expression = std::make_unique<jinja::Expression>();
  expression->kind = kind;
  expression->place = place;
  for (const ExpressionPtr& child : children) {
    if (child != nullptr) expression->depth = std::max(expression->depth, child->depth + 1);
  }
  expression->children = std::move(children);
  if (expression->depth > kMaxTreeDepth) return TooDeep(place);
  return expression;
}

ExpressionParser::Result ExpressionParser::Constant(const Place& place, Value value) {
  CONVENE_ASSIGN_OR_RETURN(ExpressionPtr constant, Make(ExpressionKind::kConstant, place));
  constant->constant = std::move(value);
  return constant;
}

bool ExpressionParser::AtTupleEnd(Context context) const {
  return tokens_.Is(TokenKind::kVariableEnd) || tokens_.Is(TokenKind::kBlockEnd) ||
         tokens_.IsOperator(")") ||
         (context == Context::kForIterable && tokens_.IsName("recursive"));
}

ExpressionParser::Result ExpressionParser::Tuple(bool conditional, Context context) {
  const Place place = tokens_.place();
  std::vector<ExpressionPtr> items;
  bool is_tuple = false;
  while (!AtTupleEnd(context)) {
    CONVENE_ASSIGN_OR_RETURN(ExpressionPtr item, conditional ? Conditional() : Or());
    items.push_back(std::move(item));
    if (!tokens_.SkipOperator(",")) break;
    is_tuple = true;
  }
  if (!is_tuple) {
    if (items.empty()) return tokens_.Wrong("an expression");
    return std::move(items[0]);
  }
  return Make(ExpressionKind::kTuple, place, std::move(items));
}

ExpressionParser::Result ExpressionParser::Expression() { return Conditional(); }

ExpressionParser::Result ExpressionParser::Conditional() {
  const Level level(&depth_);
  if (depth_ > kMaxTreeDepth) return TooDeep(tokens_.place());
  CONVENE_ASSIGN_OR_RETURN(ExpressionPtr value, Or());
  while (tokens_.IsName("if")) {
    const Place place = tokens_.Take().place;
    CONVENE_ASSIGN_OR_RETURN(ExpressionPtr condition, Or());
    ExpressionPtr otherwise;
    if (tokens_.SkipName("else")) {
      CONVENE_ASSIGN_OR_RETURN(otherwise, Conditional());
    }
    std::vector<ExpressionPtr> children = Children(std::move(condition), std::move(value));
    children.push_back(std::move(otherwise));
    CONVENE_ASSIGN_OR_RETURN(value, Make(ExpressionKind::kConditional, place, std::move(children)));
  }
  return value;
}

ExpressionParser::Result ExpressionParser::LeftToRight(
    Result (ExpressionParser::*operand)(),
    std::initializer_list<std::pair<const char*, ExpressionKind>> operators) {
  CONVENE_ASSIGN_OR_RETURN(ExpressionPtr left, (this->*operand)());
  while (true) {
    const auto found = std::find_if(operators.begin(), operators.end(), [&](const auto& known) {
      return tokens_.IsOperator(known.first) || tokens_.IsName(known.first);
    });
    if (found == operators.end()) return left;
    const Place place = tokens_.Take().place;
    CONVENE_ASSIGN_OR_RETURN(ExpressionPtr right, (this->*operand)());
    CONVENE_ASSIGN_OR_RETURN(
        left, Make(found->second, place, Children(std::move(left), std::move(right))));
  }
}

ExpressionParser::Result ExpressionParser::Or() {
  return LeftToRight(&ExpressionParser::And, {{"or", ExpressionKind::kOr}});
}

ExpressionParser::Result ExpressionParser::And() {
  return LeftToRight(&ExpressionParser::Not, {{"and", ExpressionKind::kAnd}});
}

ExpressionParser::Result ExpressionParser::Not() {
  if (!tokens_.IsName("not")) return Comparisons();
  const Level level(&depth_);
  if (depth_ > kMaxTreeDepth) return TooDeep(tokens_.place());
  const Place place = tokens_.Take().place;
  CONVENE_ASSIGN_OR_RETURN(ExpressionPtr operand, Not());
  return Make(ExpressionKind::kNot, place, Children(std::move(operand)));
}

ExpressionParser::Result ExpressionParser::Comparisons() {
  const Place place = tokens_.place();
  CONVENE_ASSIGN_OR_RETURN(ExpressionPtr first, Sum());
  std::vector<ExpressionPtr> operands = Children(std::move(first));
  std::vector<Comparison> comparisons;
  while (true) {
    if (const auto comparison = ComparisonOf(tokens_.current())) {
      tokens_.Take();
      comparisons.push_back(*comparison);
    } else if (tokens_.SkipName("in")) {
      comparisons.push_back(Comparison::kIn);
    } else if (tokens_.IsName("not") && tokens_.ahead().kind == TokenKind::kName &&
               tokens_.ahead().text == "in") {
      tokens_.Take();
      tokens_.Take();
      comparisons.push_back(Comparison::kNotIn);
    } else {
      break;
    }
    CONVENE_ASSIGN_OR_RETURN(ExpressionPtr operand, Sum());
    operands.push_back(std::move(operand));
  }
  if (comparisons.empty()) return std::move(operands[0]);
  CONVENE_ASSIGN_OR_RETURN(ExpressionPtr compare,
                           Make(ExpressionKind::kCompare, place, std::move(operands)));
  compare->comparisons = std::move(comparisons);
  return compare;
}

ExpressionParser::Result ExpressionParser::Sum() {
  return LeftToRight(&ExpressionParser::Concat,
                     {{"+", ExpressionKind::kAdd}, {"-", ExpressionKind::kSubtract}});
}

ExpressionParser::Result ExpressionParser::Concat() {
  const Place place = tokens_.place();
  CONVENE_ASSIGN_OR_RETURN(ExpressionPtr first, Product());
  if (!tokens_.IsOperator("~")) return first;
  std::vector<ExpressionPtr> parts = Children(std::move(first));
  while (tokens_.SkipOperator("~")) {
    CONVENE_ASSIGN_OR_RETURN(ExpressionPtr part, Product());
    parts.push_back(std::move(part));
  }
  return Make(ExpressionKind::kConcat, place, std::move(parts));
}

ExpressionParser::Result ExpressionParser::Product() {
  return LeftToRight(&ExpressionParser::Power, {{"*", ExpressionKind::kMultiply},
                                                {"/", ExpressionKind::kDivide},
                                                {"//", ExpressionKind::kFloorDivide},
                                                {"%", ExpressionKind::kModulo}});
}

ExpressionParser::Result ExpressionParser::Power() {
  return LeftToRight(&ExpressionParser::Filtered, {{"**", ExpressionKind::kPower}});
}

ExpressionParser::Result ExpressionParser::Filtered() {
  CONVENE_ASSIGN_OR_RETURN(ExpressionPtr value, Unary());
  return FiltersAndTests(std::move(value));
}

ExpressionParser::Result ExpressionParser::Unary() {
  const Level level(&depth_);
  if (depth_ > kMaxTreeDepth) return TooDeep(tokens_.place());
  ExpressionPtr value;
  if (tokens_.IsOperator("-") || tokens_.IsOperator("+")) {
    const Token token = tokens_.Take();
    CONVENE_ASSIGN_OR_RETURN(ExpressionPtr operand, Unary());
    const auto kind = token.text == "-" ? ExpressionKind::kNegative : ExpressionKind::kPositive;
    CONVENE_ASSIGN_OR_RETURN(value, Make(kind, token.place, Children(std::move(operand))));
  } else {
    CONVENE_ASSIGN_OR_RETURN(value, Primary());
  }
  return Postfix(std::move(value));
}

ExpressionParser::Result ExpressionParser::Primary() {
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
        return TokenReader::Lacking(place, "an integer beyond 64 bits");
      }
      return Constant(place, Value::OfInt(number));
    }
    case TokenKind::kFloat:
      return Constant(place, Value::OfFloat(std::strtod(tokens_.Take().text.c_str(), nullptr)));
    default:
      return Bracket();
  }
}

ExpressionParser::Result ExpressionParser::NameOrConstant() {
  const Token token = tokens_.Take();
  const std::string& name = token.text;
  if (name == "true" || name == "True") return Constant(token.place, Value::OfBool(true));
  if (name == "false" || name == "False") return Constant(token.place, Value::OfBool(false));
  if (name == "none" || name == "None") return Constant(token.place, Value::OfNone());
  if (name == "loop" && loop_depth_ > 0) {
    if (!tokens_.SkipOperator(".")) {
      return TokenReader::Lacking(token.place, "'loop' without an attribute");
    }
    CONVENE_ASSIGN_OR_RETURN(const std::string attribute, tokens_.ExpectName());
    const auto known = LoopAttributeOf(attribute);
    if (!known.has_value()) {
      return TokenReader::Lacking(token.place, absl::StrCat("'loop.", attribute, "'"));
    }
    CONVENE_ASSIGN_OR_RETURN(ExpressionPtr expression, Make(ExpressionKind::kLoop, token.place));
    expression->loop_attribute = *known;
    return expression;
  }
  for (const char* const unknown :
       {"self", "caller", "varargs", "kwargs", "super", "cycler", "joiner", "lipsum"}) {
    if (name == unknown) return TokenReader::Lacking(token.place, absl::StrCat("'", name, "'"));
  }
  CONVENE_ASSIGN_OR_RETURN(ExpressionPtr expression, Make(ExpressionKind::kName, token.place));
  expression->symbol = SymbolOf(name);
  expression->name = name;
  return expression;
}

ExpressionParser::Result ExpressionParser::Bracket() {
  const Place place = tokens_.place();
  if (tokens_.IsOperator("[")) return ListLiteral();
  if (tokens_.IsOperator("{")) return DictLiteral();
  if (!tokens_.SkipOperator("(")) return tokens_.Wrong("an expression");
  if (tokens_.SkipOperator(")")) return Make(ExpressionKind::kTuple, place);
  CONVENE_ASSIGN_OR_RETURN(ExpressionPtr inside, Tuple(/*conditional=*/true));
  CONVENE_RETURN_IF_ERROR(tokens_.ExpectOperator(")"));
  return inside;
}

ExpressionParser::Result ExpressionParser::ListLiteral() {
  const Place place = tokens_.Take().place;
  std::vector<ExpressionPtr> items;
  while (!tokens_.IsOperator("]")) {
    CONVENE_ASSIGN_OR_RETURN(ExpressionPtr item, Conditional());
    items.push_back(std::move(item));
    if (!tokens_.SkipOperator(",")) break;
  }
  CONVENE_RETURN_IF_ERROR(tokens_.ExpectOperator("]"));
  return Make(ExpressionKind::kList, place, std::move(items));
}

ExpressionParser::Result ExpressionParser::DictLiteral() {
  const Place place = tokens_.Take().place;
  std::vector<ExpressionPtr> items;
  while (!tokens_.IsOperator("}")) {
    CONVENE_ASSIGN_OR_RETURN(ExpressionPtr key, Conditional());
    CONVENE_RETURN_IF_ERROR(tokens_.ExpectOperator(":"));
    CONVENE_ASSIGN_OR_RETURN(ExpressionPtr value, Conditional());
    items.push_back(std::move(key));
    items.push_back(std::move(value));
    if (!tokens_.SkipOperator(",")) break;
  }
  CONVENE_RETURN_IF_ERROR(tokens_.ExpectOperator("}"));
  return Make(ExpressionKind::kDict, place, std::move(items));
}

ExpressionParser::Result ExpressionParser::Postfix(ExpressionPtr subject) {
  while (true) {
    if (tokens_.IsOperator(".")) {
      CONVENE_ASSIGN_OR_RETURN(subject, Attribute(std::move(subject)));
    } else if (tokens_.IsOperator("[")) {
      CONVENE_ASSIGN_OR_RETURN(subject, Subscript(std::move(subject)));
    } else if (tokens_.IsOperator("(")) {
      CONVENE_ASSIGN_OR_RETURN(subject, Call(std::move(subject)));
    } else {
      return subject;
    }
  }
}

ExpressionParser::Result ExpressionParser::FiltersAndTests(ExpressionPtr subject) {
  while (true) {
    if (tokens_.IsOperator("|")) {
      CONVENE_ASSIGN_OR_RETURN(subject, Filter(std::move(subject)));
    } else if (tokens_.IsName("is")) {
      CONVENE_ASSIGN_OR_RETURN(subject, Test(std::move(subject)));
    } else if (tokens_.IsOperator("(")) {
      CONVENE_ASSIGN_OR_RETURN(subject, Call(std::move(subject)));
    } else {
      return subject;
    }
  }
}

ExpressionParser::Result ExpressionParser::Attribute(ExpressionPtr object) {
  const Place place = tokens_.Take().place;
  if (tokens_.Is(TokenKind::kInteger)) {
    CONVENE_ASSIGN_OR_RETURN(ExpressionPtr index, Primary());
    return Make(ExpressionKind::kItem, place, Children(std::move(object), std::move(index)));
  }
  CONVENE_ASSIGN_OR_RETURN(std::string name, tokens_.ExpectName());
  if (name.size() > 2 && name[0] == '_' && name[1] == '_') {
    return TokenReader::Lacking(place, absl::StrCat("the attribute '", name, "'"));
  }
  CONVENE_ASSIGN_OR_RETURN(ExpressionPtr attribute,
                           Make(ExpressionKind::kAttribute, place, Children(std::move(object))));
  attribute->name = std::move(name);
  return attribute;
}

ExpressionParser::Result ExpressionParser::Subscript(ExpressionPtr object) {
  const Place place = tokens_.Take().place;
  std::vector<ExpressionPtr> parts = Children(std::move(object));
  bool is_slice = false;
  if (tokens_.IsOperator(":")) {
    parts.push_back(nullptr);
  } else {
    CONVENE_ASSIGN_OR_RETURN(ExpressionPtr start, Conditional());
    parts.push_back(std::move(start));
  }
  while (parts.size() < 4 && tokens_.SkipOperator(":")) {
    is_slice = true;
    if (tokens_.IsOperator(":") || tokens_.IsOperator("]")) {
      parts.push_back(nullptr);
    } else {
      CONVENE_ASSIGN_OR_RETURN(ExpressionPtr part, Conditional());
      parts.push_back(std::move(part));
    }
  }
  if (tokens_.IsOperator(",")) return TokenReader::Lacking(place, "an index with commas");
  CONVENE_RETURN_IF_ERROR(tokens_.ExpectOperator("]"));
  if (is_slice) parts.resize(4);
  return Make(is_slice ? ExpressionKind::kSlice : ExpressionKind::kItem, place, std::move(parts));
}

absl::Status ExpressionParser::Arguments(std::vector<ExpressionPtr>* arguments,
                                         std::vector<std::string>* names) {
  CONVENE_RETURN_IF_ERROR(tokens_.ExpectOperator("("));
  while (!tokens_.IsOperator(")")) {
    if (tokens_.IsOperator("*") || tokens_.IsOperator("**")) {
      return TokenReader::Lacking(tokens_.place(), "an argument with '*' before it");
    }
    if (tokens_.Is(TokenKind::kName) && TokenReader::Matches(tokens_.ahead(), "=")) {
      const Token name = tokens_.Take();
      tokens_.Take();
      if (std::find(names->begin(), names->end(), name.text) != names->end()) {
        return TokenReader::Refuse(name.place,
                                   absl::StrCat("the argument '", name.text, "' comes twice"));
      }
      names->push_back(name.text);
    } else if (!names->empty()) {
      return tokens_.Wrong("a named argument");
    }
    CONVENE_ASSIGN_OR_RETURN(ExpressionPtr argument, Conditional());
    arguments->push_back(std::move(argument));
    if (!tokens_.SkipOperator(",")) break;
  }
  return tokens_.ExpectOperator(")");
}

ExpressionParser::Result ExpressionParser::Call(ExpressionPtr function) {
  const Place place = tokens_.place();
  std::vector<ExpressionPtr> children = Children(std::move(function));
  std::vector<std::string> names;
  CONVENE_RETURN_IF_ERROR(Arguments(&children, &names));
  CONVENE_ASSIGN_OR_RETURN(ExpressionPtr call,
                           Make(ExpressionKind::kCall, place, std::move(children)));
  call->argument_names = std::move(names);
  return call;
}

ExpressionParser::Result ExpressionParser::Filter(ExpressionPtr input) {
  tokens_.Take();
  const Place place = tokens_.place();
  CONVENE_ASSIGN_OR_RETURN(std::string name, tokens_.ExpectName());
  const FilterEntry* const entry = FindFilter(name);
  if (entry == nullptr) {
    return TokenReader::Lacking(place, absl::StrCat("the filter '", name, "'"));
  }
  std::vector<ExpressionPtr> children = Children(std::move(input));
  std::vector<std::string> names;
  if (tokens_.IsOperator("(")) CONVENE_RETURN_IF_ERROR(Arguments(&children, &names));
  CONVENE_ASSIGN_OR_RETURN(ExpressionPtr filter,
                           Make(ExpressionKind::kFilter, place, std::move(children)));
  filter->filter = entry;
  filter->name = std::move(name);
  filter->argument_names = std::move(names);
  return filter;
}

ExpressionParser::Result ExpressionParser::FilterChain() {
  ExpressionPtr chain;
  while (tokens_.IsOperator("|")) {
    CONVENE_ASSIGN_OR_RETURN(chain, Filter(std::move(chain)));
  }
  return chain;
}

ExpressionParser::Result ExpressionParser::Test(ExpressionPtr subject) {
  const Place is_place = tokens_.Take().place;
  const bool negated = tokens_.SkipName("not");
  const Place place = tokens_.place();
  CONVENE_ASSIGN_OR_RETURN(std::string name, tokens_.ExpectName());
  const TestEntry* const entry = FindTest(name);
  if (entry == nullptr) return TokenReader::Lacking(place, absl::StrCat("the test '", name, "'"));
  std::vector<ExpressionPtr> children = Children(std::move(subject));
  std::vector<std::string> names;
  const bool value_follows = tokens_.Is(TokenKind::kString) || tokens_.Is(TokenKind::kInteger) ||
                             tokens_.Is(TokenKind::kFloat) || tokens_.IsOperator("[") ||
                             tokens_.IsOperator("{") ||
                             (tokens_.Is(TokenKind::kName) && !tokens_.IsName("else") &&
                              !tokens_.IsName("or") && !tokens_.IsName("and"));
  if (tokens_.IsOperator("(")) {
    CONVENE_RETURN_IF_ERROR(Arguments(&children, &names));
  } else if (value_follows) {
    if (tokens_.IsName("is")) return tokens_.Wrong("no second 'is'");
    CONVENE_ASSIGN_OR_RETURN(ExpressionPtr argument, Primary());
    CONVENE_ASSIGN_OR_RETURN(argument, Postfix(std::move(argument)));
    children.push_back(std::move(argument));
  }
  CONVENE_ASSIGN_OR_RETURN(ExpressionPtr test,
                           Make(ExpressionKind::kTest, place, std::move(children)));
  test->test = entry;
  test->name = std::move(name);
  test->argument_names = std::move(names);
  if (!negated) return test;
  return Make(ExpressionKind::kNot, is_place, Children(std::move(test)));
}

}  // namespace convene::worker::jinja
