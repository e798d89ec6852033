#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/data/chat/jinja/expression_parser.h"

namespace convene::worker::jinja {
namespace {

using Names = std::vector<absl::string_view>;

class StatementParser {
 public:
  explicit StatementParser(std::vector<Token> tokens)
      : tokens_(std::move(tokens)), expressions_(&tokens_, &program_, &now_.loop_depth) {}

  absl::StatusOr<Program> Parse() {
    program_.block = ReadBlock({});
    if (!tokens_.status().ok()) return tokens_.status();
    return std::move(program_);
  }

 private:
  // Where the parser is. A statement's body changes some of it and gives it back.
  struct Surroundings {
    int depth = 0;            // blocks around this place
    int loop_depth = 0;       // loops that `loop` may mean
    int break_depth = 0;      // loops that `break` may leave
    bool in_scope = false;    // within a block whose variables end with it
    bool in_capture = false;  // within a block whose text does not go straight out
  };

  // Restores the surroundings when it goes.
  class Inside {
   public:
    explicit Inside(Surroundings* now) : now_(*now), before_(*now) {}
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;
    ~Inside() { now_ = before_; }

   private:
    Surroundings& now_;
    const Surroundings before_;
  };

  // Statements up to a tag that begins with one of `ends`, whose name is then the current token.
  Block ReadBlock(const Names& ends) {
    Block block;
    while (!tokens_.Is(TokenKind::kEnd)) {
      Statement statement;
      statement.place = tokens_.place();
      if (tokens_.Is(TokenKind::kText)) {
        statement.kind = StatementKind::kText;
        statement.text = tokens_.Take().text;
      } else if (tokens_.Skip(TokenKind::kVariableBegin)) {
        statement.kind = StatementKind::kOutput;
        statement.expressions.push_back(expressions_.Tuple(/*conditional=*/true));
        if (!tokens_.Skip(TokenKind::kVariableEnd)) tokens_.Wrong("'}}'");
      } else {
        tokens_.Take();
        if (!tokens_.Is(TokenKind::kName)) tokens_.Wrong("a statement's name");
        const auto ends_here = [&](absl::string_view end) { return tokens_.IsName(end); };
        if (std::any_of(ends.begin(), ends.end(), ends_here)) return block;
        ReadStatement(ends, &statement);
      }
      block.push_back(std::move(statement));
    }
    if (!ends.empty()) tokens_.Wrong(absl::StrCat("'", absl::StrJoin(ends, "' or '"), "'"));
    return block;
  }

  void ReadStatement(const Names& ends, Statement* statement) {
    const Inside inside(&now_);
    if (++now_.depth > kMaxTreeDepth) {
      tokens_.Fail(statement->place,
                   absl::ResourceExhaustedError(
                       absl::StrCat("the template is more than ", kMaxTreeDepth, " blocks deep")));
    }
    struct Known {
      const char* name;
      StatementKind kind;
      void (StatementParser::*read)(Statement*);
    };
    constexpr Known kKnown[] = {
        {"if", StatementKind::kIf, &StatementParser::ReadIf},
        {"for", StatementKind::kFor, &StatementParser::ReadFor},
        {"set", StatementKind::kSet, &StatementParser::ReadSet},
        {"macro", StatementKind::kMacro, &StatementParser::ReadMacro},
        {"generation", StatementKind::kGeneration, &StatementParser::ReadGeneration},
        {"break", StatementKind::kBreak, &StatementParser::ReadLoopControl},
        {"continue", StatementKind::kContinue, &StatementParser::ReadLoopControl}};
    for (const auto& [name, kind, read] : kKnown) {
      if (!tokens_.IsName(name)) continue;
      tokens_.Take();
      statement->kind = kind;
      return (this->*read)(statement);
    }
    Unknown(statement->place, ends);
  }

  void Unknown(const Place& place, const Names& ends) {
    const std::string name = tokens_.current().text;
    for (const char* const known : {"with", "filter", "call", "include", "import", "from",
                                    "extends", "block", "autoescape", "raw", "print"}) {
      if (name == known) tokens_.Lacking(place, absl::StrCat("the block '", name, "'"));
    }
    const std::string expected =
        ends.empty() ? "" : absl::StrCat(", where '", absl::StrJoin(ends, "' or '"), "' may stand");
    tokens_.Refuse(place, absl::StrCat("an unknown block '", name, "'", expected));
  }

  // Adds the body of the statement whose tag ends here, and takes the tag after it up to its name.
  void ReadBody(const Names& ends, Statement* statement) {
    tokens_.SkipOperator(":");
    tokens_.ExpectBlockEnd();
    statement->bodies.push_back(ReadBlock(ends));
  }

  // Takes the name that ended a body, and the tag's end when it is the last one.
  void EndTag() {
    tokens_.Take();
    tokens_.ExpectBlockEnd();
  }

  void ReadIf(Statement* statement) {
    do {
      statement->expressions.push_back(expressions_.Tuple(/*conditional=*/false));
      ReadBody({"elif", "else", "endif"}, statement);
    } while (tokens_.SkipName("elif"));
    if (tokens_.SkipName("else")) ReadBody({"endif"}, statement);
    EndTag();
  }

  void ReadFor(Statement* statement) {
    statement->target = ReadTarget(/*with_namespace=*/false);
    if (!tokens_.SkipName("in")) tokens_.Wrong("'in'");
    statement->expressions.push_back(
        expressions_.Tuple(/*conditional=*/false, ExpressionParser::Context::kForIterable));
    statement->expressions.push_back(tokens_.SkipName("if") ? expressions_.Conditional() : nullptr);
    if (tokens_.IsName("recursive")) tokens_.Lacking(tokens_.place(), "a recursive loop");
    now_.in_scope = true;
    {
      const Inside inside(&now_);
      ++now_.break_depth;
      ++now_.loop_depth;
      ReadBody({"else", "endfor"}, statement);
    }
    if (tokens_.SkipName("else")) ReadBody({"endfor"}, statement);
    EndTag();
  }

  // Names with commas between them, with or without brackets; or a namespace's attribute.
  Target ReadTarget(bool with_namespace) {
    Target target;
    const bool bracket = tokens_.SkipOperator("(");
    do {
      if (!target.symbols.empty() && !tokens_.Is(TokenKind::kName)) break;
      const Place place = tokens_.place();
      const std::string name = tokens_.ExpectName();
      if (name == "loop" && now_.loop_depth > 0) {
        tokens_.Refuse(place, "an assignment to 'loop' within a loop");
      }
      for (const char* const constant : {"true", "false", "none", "True", "False", "None"}) {
        if (name == constant) {
          tokens_.Refuse(place, absl::StrCat("an assignment to '", name, "'"));
        }
      }
      target.symbols.push_back(expressions_.SymbolOf(name));
      if (with_namespace && tokens_.SkipOperator(".")) {
        target.attribute = tokens_.ExpectName();
        if (bracket || target.symbols.size() > 1 || tokens_.IsOperator(",")) {
          tokens_.Lacking(place, "an attribute among several assignments");
        }
        return target;
      }
      if (tokens_.IsOperator(",")) target.unpacks = true;
    } while (tokens_.SkipOperator(","));
    if (tokens_.IsOperator("(")) tokens_.Lacking(tokens_.place(), "a bracket within a target");
    if (bracket) tokens_.ExpectOperator(")");
    return target;
  }

  void ReadSet(Statement* statement) {
    statement->target = ReadTarget(/*with_namespace=*/true);
    if (tokens_.SkipOperator("=")) {
      statement->expressions.push_back(expressions_.Tuple(/*conditional=*/true));
      return tokens_.ExpectBlockEnd();
    }
    statement->kind = StatementKind::kSetBlock;
    statement->expressions.push_back(expressions_.FilterChain());
    ReadCapture("endset", statement);
  }

  // A body whose variables, and whose text, are its own.
  void ReadCapture(const char* end, Statement* statement) {
    now_.in_scope = now_.in_capture = true;
    now_.break_depth = 0;
    ReadBody({end}, statement);
    EndTag();
  }

  void ReadMacro(Statement* statement) {
    if (now_.in_scope) {
      tokens_.Lacking(statement->place, "a macro within another block than 'if'");
    }
    statement->name = tokens_.ExpectName();
    statement->target.symbols.push_back(expressions_.SymbolOf(statement->name));
    now_.loop_depth = 0;
    tokens_.ExpectOperator("(");
    while (!tokens_.IsOperator(")")) {
      const Place place = tokens_.place();
      Parameter parameter;
      parameter.name = tokens_.ExpectName();
      parameter.symbol = expressions_.SymbolOf(parameter.name);
      if (tokens_.SkipOperator("=")) {
        parameter.default_value = expressions_.Conditional();
      } else if (!statement->parameters.empty() && statement->parameters.back().default_value) {
        tokens_.Refuse(place, "a parameter without a default behind one that has it");
      }
      statement->parameters.push_back(std::move(parameter));
      if (!tokens_.SkipOperator(",")) break;
    }
    tokens_.ExpectOperator(")");
    ReadCapture("endmacro", statement);
  }

  void ReadGeneration(Statement* statement) {
    if (now_.in_capture) {
      tokens_.Lacking(statement->place, "'generation' within 'generation', a macro or a set block");
    }
    program_.has_generation = true;
    ReadCapture("endgeneration", statement);
  }

  void ReadLoopControl(Statement* statement) {
    if (now_.break_depth == 0) {
      const char* const name = statement->kind == StatementKind::kBreak ? "break" : "continue";
      tokens_.Refuse(statement->place, absl::StrCat("'", name, "' outside a loop"));
    }
    tokens_.ExpectBlockEnd();
  }

  Program program_;
  TokenReader tokens_;
  Surroundings now_;
  ExpressionParser expressions_;
};

}  // namespace

absl::StatusOr<Program> ParseTemplate(absl::string_view source) {
  CONVENE_ASSIGN_OR_RETURN(std::vector<Token> tokens, ReadTokens(source));
  return StatementParser(std::move(tokens)).Parse();
}

}  // namespace convene::worker::jinja
