#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/data/chat/jinja/expression_parser.h"
#include "worker_runtime/data/chat/jinja/parser.h"

namespace convene::worker::jinja {
namespace {

using Names = std::vector<absl::string_view>;

class StatementParser {
 public:
  explicit StatementParser(std::vector<Token> tokens)
      : tokens_(std::move(tokens)), expressions_(&tokens_, &program_) {}

  absl::StatusOr<Program> Parse() {
    CONVENE_ASSIGN_OR_RETURN(program_.block, ReadBlock({}));
    return std::move(program_);
  }

 private:
  // Where the parser is. A statement's body changes some of it and gives it back.
  struct Surroundings {
    int depth = 0;            // blocks around this place
    int break_depth = 0;      // loops that `break` may leave
    bool in_scope = false;    // within a block whose variables end with it
    bool in_capture = false;  // within a block whose text does not go straight out
  };

  // Restores the surroundings, and the loops, when it goes.
  class Inside {
   public:
    explicit Inside(StatementParser* parser)
        : parser_(*parser),
          surroundings_(parser->now_),
          loop_depth_(parser->expressions_.loop_depth()) {}
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;
    ~Inside() {
      parser_.now_ = surroundings_;
      parser_.expressions_.set_loop_depth(loop_depth_);
    }

   private:
    StatementParser& parser_;
    const Surroundings surroundings_;
    const int loop_depth_;
  };

  // Statements up to a tag that begins with one of `ends`, whose name is then the current token.
  absl::StatusOr<Block> ReadBlock(const Names& ends) {
    Block block;
    while (!tokens_.Is(TokenKind::kEnd)) {
      const Place place = tokens_.place();
      if (tokens_.Is(TokenKind::kText)) {
        block.push_back(New(StatementKind::kText, place));
        block.back().text = tokens_.Take().text;
      } else if (tokens_.Skip(TokenKind::kVariableBegin)) {
        CONVENE_ASSIGN_OR_RETURN(Statement output, ReadOutput(place));
        block.push_back(std::move(output));
      } else {
        tokens_.Take();
        if (!tokens_.Is(TokenKind::kName)) return tokens_.Wrong("a statement's name");
        const auto ends_here = [&](absl::string_view end) { return tokens_.IsName(end); };
        if (std::any_of(ends.begin(), ends.end(), ends_here)) return block;
        CONVENE_RETURN_IF_ERROR(ReadStatement(place, ends, &block));
      }
    }
    if (ends.empty()) return block;
    return tokens_.Wrong(absl::StrCat("'", absl::StrJoin(ends, "' or '"), "'"));
  }

  static Statement New(StatementKind kind, const Place& place) {
    Statement statement;
    statement.kind = kind;
    statement.place = place;
    return statement;
  }

  absl::StatusOr<Statement> ReadOutput(const Place& place) {
    Statement output = New(StatementKind::kOutput, place);
    CONVENE_ASSIGN_OR_RETURN(ExpressionPtr value, expressions_.Tuple(/*conditional=*/true));
    output.expressions.push_back(std::move(value));
    if (!tokens_.Skip(TokenKind::kVariableEnd)) return tokens_.Wrong("'}}'");
    return output;
  }

  absl::Status ReadStatement(const Place& place, const Names& ends, Block* block) {
    const Inside inside(this);
    if (++now_.depth > kMaxTreeDepth) {
      return At(place, absl::ResourceExhaustedError(absl::StrCat("the template is more than ",
                                                                 kMaxTreeDepth, " blocks deep")));
    }
    using Reader = absl::StatusOr<Statement> (StatementParser::*)(const Place&);
    constexpr std::pair<const char*, Reader> kReaders[] = {
        {"if", &StatementParser::ReadIf},
        {"for", &StatementParser::ReadFor},
        {"set", &StatementParser::ReadSet},
        {"macro", &StatementParser::ReadMacro},
        {"generation", &StatementParser::ReadGeneration},
        {"break", &StatementParser::ReadLoopControl},
        {"continue", &StatementParser::ReadLoopControl}};
    for (const auto& [name, reader] : kReaders) {
      if (!tokens_.IsName(name)) continue;
      CONVENE_ASSIGN_OR_RETURN(Statement statement, (this->*reader)(place));
      block->push_back(std::move(statement));
      return absl::OkStatus();
    }
    return Unknown(place, ends);
  }

  absl::Status Unknown(const Place& place, const Names& ends) const {
    const std::string& name = tokens_.current().text;
    for (const char* const known : {"with", "filter", "call", "include", "import", "from",
                                    "extends", "block", "autoescape", "raw", "print"}) {
      if (name == known) {
        return TokenReader::Lacking(place, absl::StrCat("the block '", name, "'"));
      }
    }
    const std::string expected =
        ends.empty() ? "" : absl::StrCat(", where '", absl::StrJoin(ends, "' or '"), "' may stand");
    return TokenReader::Refuse(place, absl::StrCat("an unknown block '", name, "'", expected));
  }

  // The body of the statement whose tag ends here, and the tag after it up to its name.
  absl::StatusOr<Block> ReadBody(const Names& ends) {
    tokens_.SkipOperator(":");
    CONVENE_RETURN_IF_ERROR(tokens_.ExpectBlockEnd());
    return ReadBlock(ends);
  }
  // Takes the name that ended a body, and the tag's end when it is the last one.
  absl::Status EndTag() {
    tokens_.Take();
    return tokens_.ExpectBlockEnd();
  }

  absl::StatusOr<Statement> ReadIf(const Place& place) {
    Statement statement = New(StatementKind::kIf, place);
    do {
      tokens_.Take();
      CONVENE_ASSIGN_OR_RETURN(ExpressionPtr condition, expressions_.Tuple(/*conditional=*/false));
      statement.expressions.push_back(std::move(condition));
      CONVENE_ASSIGN_OR_RETURN(Block body, ReadBody({"elif", "else", "endif"}));
      statement.bodies.push_back(std::move(body));
    } while (tokens_.IsName("elif"));
    if (tokens_.SkipName("else")) {
      CONVENE_ASSIGN_OR_RETURN(Block body, ReadBody({"endif"}));
      statement.bodies.push_back(std::move(body));
    }
    CONVENE_RETURN_IF_ERROR(EndTag());
    return statement;
  }

  absl::StatusOr<Statement> ReadFor(const Place& place) {
    Statement statement = New(StatementKind::kFor, place);
    tokens_.Take();
    CONVENE_ASSIGN_OR_RETURN(statement.target, ReadTarget(/*with_namespace=*/false));
    if (!tokens_.SkipName("in")) return tokens_.Wrong("'in'");
    CONVENE_ASSIGN_OR_RETURN(
        ExpressionPtr items,
        expressions_.Tuple(/*conditional=*/false, ExpressionParser::Context::kForIterable));
    statement.expressions.push_back(std::move(items));
    ExpressionPtr condition;
    if (tokens_.SkipName("if")) {
      CONVENE_ASSIGN_OR_RETURN(condition, expressions_.Expression());
    }
    statement.expressions.push_back(std::move(condition));
    if (tokens_.IsName("recursive")) {
      return TokenReader::Lacking(tokens_.place(), "a recursive loop");
    }
    {
      const Inside inside(this);
      now_.in_scope = true;
      ++now_.break_depth;
      expressions_.set_loop_depth(expressions_.loop_depth() + 1);
      CONVENE_ASSIGN_OR_RETURN(Block body, ReadBody({"else", "endfor"}));
      statement.bodies.push_back(std::move(body));
    }
    if (tokens_.SkipName("else")) {
      const Inside inside(this);
      now_.in_scope = true;
      CONVENE_ASSIGN_OR_RETURN(Block body, ReadBody({"endfor"}));
      statement.bodies.push_back(std::move(body));
    }
    CONVENE_RETURN_IF_ERROR(EndTag());
    return statement;
  }

  // Names with commas between them, with or without brackets; or a namespace's attribute.
  absl::StatusOr<Target> ReadTarget(bool with_namespace) {
    Target target;
    const bool bracket = tokens_.SkipOperator("(");
    do {
      if (!target.symbols.empty() && !tokens_.Is(TokenKind::kName)) break;
      const Place place = tokens_.place();
      CONVENE_ASSIGN_OR_RETURN(const std::string name, tokens_.ExpectName());
      if (name == "loop" && expressions_.loop_depth() > 0) {
        return TokenReader::Refuse(place, "an assignment to 'loop' within a loop");
      }
      for (const char* const constant : {"true", "false", "none", "True", "False", "None"}) {
        if (name == constant) {
          return TokenReader::Refuse(place, absl::StrCat("an assignment to '", name, "'"));
        }
      }
      target.symbols.push_back(expressions_.SymbolOf(name));
      if (with_namespace && tokens_.SkipOperator(".")) {
        CONVENE_ASSIGN_OR_RETURN(target.attribute, tokens_.ExpectName());
        if (bracket || target.symbols.size() > 1 || tokens_.IsOperator(",")) {
          return TokenReader::Lacking(place, "an attribute among several assignments");
        }
        return target;
      }
      if (tokens_.IsOperator(",")) target.unpacks = true;
    } while (tokens_.SkipOperator(","));
    if (tokens_.IsOperator("(")) {
      return TokenReader::Lacking(tokens_.place(), "a bracket within a target");
    }
    if (bracket) CONVENE_RETURN_IF_ERROR(tokens_.ExpectOperator(")"));
    return target;
  }

  absl::StatusOr<Statement> ReadSet(const Place& place) {
    Statement statement = New(StatementKind::kSet, place);
    tokens_.Take();
    CONVENE_ASSIGN_OR_RETURN(statement.target, ReadTarget(/*with_namespace=*/true));
    if (tokens_.SkipOperator("=")) {
      CONVENE_ASSIGN_OR_RETURN(ExpressionPtr value, expressions_.Tuple(/*conditional=*/true));
      statement.expressions.push_back(std::move(value));
      CONVENE_RETURN_IF_ERROR(tokens_.ExpectBlockEnd());
      return statement;
    }
    statement.kind = StatementKind::kSetBlock;
    CONVENE_ASSIGN_OR_RETURN(ExpressionPtr filters, expressions_.FilterChain());
    statement.expressions.push_back(std::move(filters));
    now_.in_scope = now_.in_capture = true;
    now_.break_depth = 0;
    CONVENE_ASSIGN_OR_RETURN(Block body, ReadBody({"endset"}));
    statement.bodies.push_back(std::move(body));
    CONVENE_RETURN_IF_ERROR(EndTag());
    return statement;
  }

  absl::StatusOr<Statement> ReadMacro(const Place& place) {
    if (now_.in_scope) return TokenReader::Lacking(place, "a macro within another block than 'if'");
    Statement statement = New(StatementKind::kMacro, place);
    tokens_.Take();
    CONVENE_ASSIGN_OR_RETURN(statement.name, tokens_.ExpectName());
    statement.target.symbols.push_back(expressions_.SymbolOf(statement.name));
    now_.in_scope = now_.in_capture = true;
    now_.break_depth = 0;
    expressions_.set_loop_depth(0);
    CONVENE_RETURN_IF_ERROR(tokens_.ExpectOperator("("));
    while (!tokens_.IsOperator(")")) {
      const Place parameter_place = tokens_.place();
      Parameter parameter;
      CONVENE_ASSIGN_OR_RETURN(parameter.name, tokens_.ExpectName());
      parameter.symbol = expressions_.SymbolOf(parameter.name);
      if (tokens_.SkipOperator("=")) {
        CONVENE_ASSIGN_OR_RETURN(parameter.default_value, expressions_.Expression());
      } else if (!statement.parameters.empty() && statement.parameters.back().default_value) {
        return TokenReader::Refuse(parameter_place,
                                   "a parameter without a default behind one that has it");
      }
      statement.parameters.push_back(std::move(parameter));
      if (!tokens_.SkipOperator(",")) break;
    }
    CONVENE_RETURN_IF_ERROR(tokens_.ExpectOperator(")"));
    CONVENE_ASSIGN_OR_RETURN(Block body, ReadBody({"endmacro"}));
    statement.bodies.push_back(std::move(body));
    CONVENE_RETURN_IF_ERROR(EndTag());
    return statement;
  }

  absl::StatusOr<Statement> ReadGeneration(const Place& place) {
    if (now_.in_capture) {
      return TokenReader::Lacking(place,
                                  "'generation' within 'generation', a macro or a set block");
    }
    Statement statement = New(StatementKind::kGeneration, place);
    program_.has_generation = true;
    tokens_.Take();
    now_.in_scope = now_.in_capture = true;
    now_.break_depth = 0;
    CONVENE_ASSIGN_OR_RETURN(Block body, ReadBody({"endgeneration"}));
    statement.bodies.push_back(std::move(body));
    CONVENE_RETURN_IF_ERROR(EndTag());
    return statement;
  }

  absl::StatusOr<Statement> ReadLoopControl(const Place& place) {
    const std::string name = tokens_.Take().text;
    if (now_.break_depth == 0) {
      return TokenReader::Refuse(place, absl::StrCat("'", name, "' outside a loop"));
    }
    CONVENE_RETURN_IF_ERROR(tokens_.ExpectBlockEnd());
    return New(name == "break" ? StatementKind::kBreak : StatementKind::kContinue, place);
  }

  Program program_;
  TokenReader tokens_;
  ExpressionParser expressions_;
  Surroundings now_;
};

}  // namespace

absl::StatusOr<Program> ParseTemplate(absl::string_view source) {
  CONVENE_ASSIGN_OR_RETURN(std::vector<Token> tokens, ReadTokens(source));
  return StatementParser(std::move(tokens)).Parse();
}

}  // namespace convene::worker::jinja
