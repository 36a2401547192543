"""Every simple command in the syntax tree of a shell command, with what surrounds it: folder, variables, input.

Rule: where the grammar and bash might disagree, a problem is noted and nothing is repaired.
"""

import re

from tree_sitter import Node

from enginehouse_core.permissions.places import Places
from enginehouse_core.permissions.shell_parts import Redirect, Simple, behind_builtin, either, named
from enginehouse_core.permissions.shell_words import Doubt, Variables, Word, double_quoted, plain, words_of

_LOOPS = frozenset({"for_statement", "while_statement", "c_style_for_statement", "function_definition"})
_ARGUMENTS = frozenset(
    {
        *("word", "number", "raw_string", "ansi_c_string", "string", "concatenation", "simple_expansion", "expansion"),
        *("command_substitution", "arithmetic_expansion", "process_substitution", "brace_expression", "variable_name"),
        *("translated_string", "regex", "extglob_pattern", "array", "test_operator"),
        *("$", "[", "]", "=", "==", "{", "}", "-", "%", "~", ":", "#", "!", "?", "@", "*", "+", "/"),
    }
)
_READERS_INTO_VARIABLES = frozenset({"read", "mapfile", "readarray", "getopts", "let", "unset", "wait", "local"})
_NOT_IN_BRACKETS = frozenset({"<", ">", "&&", "||", ";", "|", "&", "(", ")", "<=", ">=", "=~"})
_UNRUN = frozenset(
    {
        *("case_statement", "case_item", "test_command", "binary_expression", "unary_expression", "negated_expression"),
        *("parenthesized_expression", "ternary_expression"),
    }
)
"""Their words are compared, not run."""
_QUIET_REGEX = re.compile(r"[^\s`;&<>\"'(]*(?:\$(?![({\[])[^\s`;&<>\"'(]*)*\Z")
_CHANGE_FOLDER = frozenset({"cd", "pushd", "popd"})


class Walker:
    def __init__(self, source: bytes, places: Places, cwds: tuple[str, ...] | None, variables: Variables) -> None:
        self._source = source
        self._places = places
        self._cwds = cwds
        self._variables = variables
        self._arithmetic: set[str] = set()
        self._loops = 0
        self._problems: list[str] = []
        self.bombs: list[str] = []
        self.lost = False
        """The working folder changes where order cannot be followed."""

    def all_problems(self) -> list[str]:
        for name in self._arithmetic:
            held = self._variables.get(name) if name in self._variables.known else frozenset[str]()
            if held is None or any(mark in value for value in held for mark in "[$`"):
                self._problems.append(f"counts with {name}, whose text may run a command")
        return self._problems

    def walk(self, node: Node) -> list[Simple]:
        match node.type:
            case "command":
                return self._command(node)
            case "declaration_command" | "unset_command":
                return self._declaration(node)
            case "test_command":
                return self._test(node)
            case "variable_assignment" | "variable_assignments":
                return self._assignment_alone(node)
            case "redirected_statement":
                return self._redirected(node)
            case "pipeline":
                return self._pipeline(node)
            case "list":
                return self._list(node)
            case "comment":
                self._comment(node)
                return []
            case "function_definition":
                return self._function(node)
            case "for_statement":
                self._loop_variable(node)
            case "c_style_for_statement" | "arithmetic_expansion":
                self._counts(node)
            case "compound_statement" if self._text(node)[:1] == "{" and not self._text(node)[1:2].isspace():
                self._problems.append("has a brace that may be part of a word")
            case "compound_statement" if node.children and node.children[0].type == "((":
                self._counts(node)
            case "heredoc_body":
                self._here_document_body(node)
            case "file_redirect" | "herestring_redirect" | "heredoc_redirect":  # `$(< file)`: no command around it
                return self._redirect_alone(node)
            case _:
                pass
        return self._children(node)

    def _children(self, node: Node) -> list[Simple]:
        looping = node.type in _LOOPS
        self._loops += looping
        commands: list[Simple] = []
        end = node.start_byte
        for child in node.children:
            self._gap(end, child.start_byte, node)
            end = child.end_byte
            if node.type in _UNRUN and child.is_named and child.type in _ARGUMENTS:
                if child.type != "regex" or not _QUIET_REGEX.match(self._text(child)):
                    self._words(child)  # only to be sure that they are words
            if child.type in (";;", ";&", ";;&") and node.type != "case_item":
                self._problems.append("ends a branch where there is none")
            commands += self.walk(child)
        self._loops -= looping
        return commands

    def _gap(self, start: int, end: int, node: Node) -> None:
        """Between two parts of a command only blanks may be lost."""
        if node.type in ("string", "heredoc_body", "raw_string", "heredoc_redirect", "redirected_statement"):
            return
        lost = self._source[start:end]
        if lost and lost.replace(b"\\\n", b"").strip(b" \t\n"):
            self._problems.append("has text the parser passed over")

    def _text(self, node: Node) -> str:
        return self._source[node.start_byte : node.end_byte].decode("utf-8", "replace")

    def _words(self, node: Node) -> list[Word]:
        try:
            return words_of(node, self._source, self._variables, self._places.home)
        except Doubt as doubt:
            self._problems.append(str(doubt))
            return [Word(shown=self._text(node), splits=True)]

    def _command(self, node: Node) -> list[Simple]:
        simple = Simple(cwds=self._cwds, shown=self._text(node))
        inner: list[Simple] = []
        feeding: list[Simple] = []
        words: list[Word] = []
        redirects: list[Redirect] = []
        assignments: list[tuple[str, Word | None]] = []
        end: int | None = None
        for child in node.children:
            if end is not None and not self._separated(end, child):
                self._problems.append("has words that may or may not be one word")
            end = child.end_byte
            if child.type == "variable_assignment":
                assignments.append(self._assign(child))
            elif "redirect" in child.type:
                more, redirect, nested = self._redirect(child)
                words += more
                redirects += redirect
                feeding += nested
                continue
            elif child.type in _ARGUMENTS or child.type == "command_name":
                words += self._words(child)
            elif child.type == "subshell":
                self._problems.append("has brackets where a word belongs")
            inner += self.walk(child)
        simple.words, simple.redirects, simple.assignments = tuple(words), tuple(redirects), tuple(assignments)
        simple.made_of, simple.fed_by = inner, feeding
        self._remember(simple)
        return [*inner, *feeding, simple]

    def _separated(self, end: int, child: Node) -> bool:
        gap = self._source[end : child.start_byte].replace(b"\\\n", b"")
        if b"\n" in gap:
            return False
        return bool(gap) or "redirect" in child.type or self._source[end - 1 : end] in (b">", b"<")

    def _declaration(self, node: Node) -> list[Simple]:
        words: list[Word] = []
        assignments: list[tuple[str, Word | None]] = []
        inner: list[Simple] = []
        for index, child in enumerate(node.children):
            if index and not self._separated(node.children[index - 1].end_byte, child):
                self._problems.append("has words that may or may not be one word")
            if child.type == "variable_assignment":
                assignments.append(self._assign(child))
                words.append(Word(shown=self._text(child), prefix=assignments[-1][0] + "="))
            elif index == 0:
                words.append(plain(self._text(child)))
            else:
                words += self._words(child)
            inner += self.walk(child) if child.type != "variable_assignment" else self._children(child)
        simple = Simple(tuple(words), tuple(assignments), cwds=self._cwds, exports=True, shown=self._text(node))
        for word in words[1:]:
            if word.text is None and not word.prefix:
                self._problems.append("declares a variable whose name only appears when it runs")
            elif "=" in (word.text or "") and not word.prefix:
                self._variables.may_be((word.text or "").split("=", 1)[0], None)
        return [*inner, simple]

    def _test(self, node: Node) -> list[Simple]:
        inner = self._children(node)
        double = node.children[0].type == "[["
        gaps = self._text(node).replace("\\\n", "")
        if not re.match(r"\[\[?\s.*\s\]\]?\Z", gaps, re.DOTALL):
            self._problems.append("has a bracket that may be part of a word")
        if not double and ("\n" in gaps or any(leaf.type in _NOT_IN_BRACKETS for leaf in _leaves(node))):
            self._problems.append("has a test that is more than one command")
        words = [plain(node.children[0].type)]
        operators = {"-eq", "-ne", "-lt", "-le", "-gt", "-ge", "-v"}
        found = [leaf for leaf in _leaves(node) if leaf.is_named]
        texts = [self._text(leaf) for leaf in found]
        if any(text in operators for text in texts):
            for leaf in found if double or "-v" in texts else []:
                text = self._text(leaf)
                if leaf.type in ("variable_name", "word") and re.fullmatch(r"\w+", text) and not text.isdigit():
                    self._arithmetic.add(text)
                elif "[" in text or leaf.type in ("command_substitution", "process_substitution"):
                    self._problems.append("compares texts as numbers, which may run a command in them")
            if double and any("$(" in self._text(child) for child in node.children[1:-1]):
                self._problems.append("compares texts as numbers, which may run a command in them")
        return [*inner, Simple(tuple(words), cwds=self._cwds, shown=self._text(node))]

    def _assignment_alone(self, node: Node) -> list[Simple]:
        nodes = [node] if node.type == "variable_assignment" else node.children
        assignments = tuple(self._assign(child) for child in nodes if child.type == "variable_assignment")
        inner = [simple for child in nodes for simple in self._children(child)]
        return [*inner, Simple((), assignments, cwds=self._cwds, shown=self._text(node))]

    def _assign(self, node: Node) -> tuple[str, Word | None]:
        name_node, value_node = node.child_by_field_name("name"), node.child_by_field_name("value")
        name = self._text(name_node) if name_node else ""
        if not name.isascii():
            self._problems.append("has an assignment that is a command")
        if "[" in name:
            self._problems.append("assigns to an element whose number may run a command")
        value: Word | None = plain("")
        if value_node is not None:
            words = self._words(value_node) if value_node.type != "array" else []
            value = words[0] if len(words) == 1 else None
        known = value is not None and value.known and "+=" not in self._text(node)[: len(name) + 2]
        self._variables.may_be(name, frozenset(value.values) if known and value else None)
        return name, value

    def _redirected(self, node: Node) -> list[Simple]:
        body = node.child_by_field_name("body")
        commands = self.walk(body) if body else []
        inner: list[Simple] = []
        words: list[Word] = []
        redirects: list[Redirect] = []
        after: list[Simple] = []
        for child in node.children:
            if "redirect" not in child.type:
                if child != body:
                    inner += self.walk(child)
                continue
            more, redirect, nested = self._redirect(child)
            words += more
            redirects += redirect
            (after if child.type == "heredoc_redirect" else inner).extend(nested)
        single = body is not None and body.type in ("command", "declaration_command", "test_command", "unset_command")
        if single and commands:
            target = commands[-1]
            target.words += tuple(words)
            target.redirects += tuple(redirects)
            self._remember(target)
        else:
            if words:
                self._problems.append("has words after the redirection of a group")
            target = Simple((), (), tuple(redirects), self._cwds, shown=self._text(node))
        for simple in commands:
            simple.fed_by += inner
            if target is not simple:
                simple.fed_by += [target]
        target.fed_by += inner
        for simple in after:
            simple.fed_by += commands
        return [*commands, *inner, *([] if single and commands else [target]), *after]

    def _redirect_alone(self, node: Node) -> list[Simple]:
        words, redirects, inner = self._redirect(node)
        simple = Simple(tuple(words), (), tuple(redirects), self._cwds, inner, shown=self._text(node))
        return [*inner, simple]

    def _redirect(self, node: Node) -> tuple[list[Word], list[Redirect], list[Simple]]:
        """Words that only follow the redirection, the redirections, the commands inside."""
        if node.type == "heredoc_redirect":
            return self._here_document(node)
        inner: list[Simple] = []
        words: list[Word] = []
        operator = ""
        for child in node.children:
            if child.type == "file_descriptor":
                continue
            if not child.is_named and not operator:
                operator = self._text(child)
                continue
            words += self._words(child)
            inner += self.walk(child)
        target, rest = (words[0], words[1:]) if words else (None, [])
        if operator == "<<<":
            return rest, [Redirect(operator, None, target.text if target else None)], inner
        if operator.endswith("&") and target is not None and re.fullmatch(r"[0-9]+-?|-", target.text or ""):
            target = None
        return rest, [Redirect(operator, target)], inner

    def _here_document(self, node: Node) -> tuple[list[Word], list[Redirect], list[Simple]]:
        words: list[Word] = []
        redirects: list[Redirect] = []
        inner: list[Simple] = []
        start = ""
        text: str | None = ""
        for child in node.children:
            if child.type == "heredoc_start":
                start = self._text(child)
                if not start.isascii():
                    self._problems.append("has a here-document whose end is not plain")
            elif child.type == "heredoc_end":
                if self._text(child).strip() != re.sub(r"[\"'\\]", "", start):
                    self._problems.append("has a here-document that may end elsewhere")
                if self._source[child.end_byte : child.end_byte + 1] not in (b"", b"\n"):
                    self._problems.append("has a here-document whose end is not alone on its line")
            elif child.type == "heredoc_body":
                inner += self.walk(child)
                body = self._text(child)
                quoted = any(mark in start for mark in "\"'\\")
                text = body if quoted or not any(mark in body for mark in "$`\\") else None
            elif "redirect" in child.type:
                more, redirect, nested = self._redirect(child)
                words, redirects, inner = words + more, redirects + redirect, inner + nested
            elif child.type in _ARGUMENTS:
                words += self._words(child)
                inner += self.walk(child)
            elif child.is_named and child.type != "heredoc_end":
                inner += self.walk(child)
        return words, [*redirects, Redirect("<<", None, text)], inner

    def _here_document_body(self, node: Node) -> None:
        start = next((c for c in (node.parent.children if node.parent else []) if c.type == "heredoc_start"), None)
        if start is None or any(mark in self._text(start) for mark in "\"'\\"):
            return
        rest, end = b"", node.start_byte
        for child in node.children:
            if child.type == "heredoc_content":
                continue
            rest += self._source[end : child.start_byte] + b" "
            end = child.end_byte
        rest += self._source[end : node.end_byte]
        try:
            double_quoted(rest.decode("utf-8", "replace").replace('"', " "))
        except Doubt:
            self._problems.append("has a here-document with an expansion that was not recognised")

    def _pipeline(self, node: Node) -> list[Simple]:
        upstream: list[Simple] = []
        for child in node.children:
            stage = self.walk(child)
            for simple in stage:
                simple.fed_by += upstream
            upstream = [*upstream, *stage]
        return upstream

    def _list(self, node: Node) -> list[Simple]:
        """`a && b || c`: after a `cd` that worked only the new folder counts; after the list either may."""
        operands: list[Node] = []
        cursor: Node = node
        while cursor.type == "list":
            operands = [*cursor.children[1:], *operands]
            cursor = cursor.children[0]
        operands = [cursor, *operands]
        before = self._cwds
        commands: list[Simple] = []
        arrived: tuple[str, ...] | None = None
        changed = False
        for child in operands:
            if child.type == "&&":
                if changed:
                    self._cwds = arrived
                continue
            if child.type == "||":
                self._cwds = either(before, self._cwds)
                changed = False
                continue
            found = self.walk(child)
            changed = child.type == "command" and bool(found) and named(found[-1]) == "cd"
            arrived = self._arrival(found[-1]) if changed else None
            commands += found
        self._cwds = either(before, self._cwds)
        return commands

    def _function(self, node: Node) -> list[Simple]:
        name_node = node.child_by_field_name("name")
        name = self._text(name_node) if name_node else ""
        commands = self._children(node)
        if any(named(simple) == name for simple in commands):
            self.bombs.append(name)
        return commands

    def _loop_variable(self, node: Node) -> None:
        name_node = node.child_by_field_name("variable")
        if name_node is None:
            return
        values: set[str] | None = set()
        listed = node.children_by_field_name("value")
        for child in listed:
            for word in self._words(child):
                values = None if values is None or not word.known or word.glob else values | set(word.values)
        if not listed or node.children[0].type == "select":
            values = None
        self._variables.may_be(self._text(name_node), None if values is None else frozenset(values), certain=True)

    def _counts(self, node: Node) -> None:
        for leaf in _leaves(node):
            if leaf.type in ("variable_name", "word") and re.fullmatch(r"[A-Za-z_]\w*", self._text(leaf)):
                self._arithmetic.add(self._text(leaf))

    def _comment(self, node: Node) -> None:
        before = self._source[: node.start_byte]
        escaped = before[-2:-1] == b"\\" or (before and before[-1:] not in b" \t\n;&|()`")
        if escaped:
            self._problems.append("has a comment that may be part of a word")

    def _remember(self, simple: Simple) -> None:
        """Follow what this command does to variables and the working folder."""
        name = named(simple)
        words = behind_builtin(simple.words)
        if name in _READERS_INTO_VARIABLES or (name == "printf" and any(w.text == "-v" for w in words)):
            for word in words[1:]:
                if word.text is None:
                    self._problems.append("sets a variable whose name only appears when it runs")
                elif "[" in word.text and name != "printf":
                    self._problems.append("sets an element whose number may run a command")
                elif re.fullmatch(r"[A-Za-z_]\w*", word.text):
                    self._variables.may_be(word.text, None)
                elif name == "let":
                    self._problems.append("counts in words")
        if name in _CHANGE_FOLDER:
            arrival = self._arrival(simple)
            target = next((w for w in words[1:] if not (w.text or "").startswith("-")), None)
            if self._loops and not (target and (target.text or "").startswith("/")):
                self.lost = True
            self._cwds = either(self._cwds, arrival)

    def _arrival(self, simple: Simple) -> tuple[str, ...] | None:
        words = behind_builtin(simple.words)
        if words[0].text == "popd" or simple.cwds is None:
            return None
        targets = [w for w in words[1:] if w.text not in ("-L", "-P", "-e", "-@", "--", "-n")]
        if not targets:
            return (self._places.home,) if self._places.home and words[0].text == "cd" else None
        target = targets[0]
        if len(targets) > 1 or not target.known or target.glob or any(v[:1] in ("-", "+", "") for v in target.values):
            return None
        found = {self._places.resolve(value, cwd) for value in target.values for cwd in simple.cwds}
        return tuple(sorted(found)) if len(found) <= 8 else None


def _leaves(node: Node) -> list[Node]:
    """Every node below, opaque ones (substitutions are commands of their own) not opened."""
    found: list[Node] = []
    stack = [node]
    while stack:
        current = stack.pop()
        for child in current.children:
            found.append(child)
            if child.type not in ("command_substitution", "process_substitution"):
                stack.append(child)
    return found
