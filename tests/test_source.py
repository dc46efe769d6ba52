"""The source obeys the architecture: imports point downwards only, and what must be handed in is not reached for.

Method: read every module's syntax tree; no module is imported.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = (
    "metastore",
    "coordinator",
    "participants",
    "metatxn",
    "metatxn_gateways",
    "spark_connector",
    "pyspark_metatxn",
)


def floors(names: str) -> set[str]:
    return {f"participants.{name}" for name in names.split()}


BELOW_PARTICIPANTS = {"metatxn.service", "metastore", "metatxn.wire"}
ALLOWED: dict[str, set[str]] = {
    "metatxn.wire": {"metatxn.wire"},
    "metatxn.transport": {"metatxn.transport"},
    "metastore": {"metastore", "metatxn.wire"},
    "metatxn.service": {"metatxn.service", "metastore", "metatxn.wire"},
    "coordinator": {"coordinator", "metatxn.service", "metastore", "metatxn.wire"},
    "participants.common": BELOW_PARTICIPANTS | floors("common"),
    "participants.ledger": BELOW_PARTICIPANTS | floors("common ledger"),
    "participants.restored": BELOW_PARTICIPANTS | floors("common ledger restored"),
    "participants.backup": BELOW_PARTICIPANTS | floors("common ledger restored backup"),
    "participants.messages": BELOW_PARTICIPANTS | floors("common ledger messages"),
    "participants.txn": BELOW_PARTICIPANTS | floors("common txn"),
    "participants.segment": BELOW_PARTICIPANTS | floors("common ledger messages txn segment"),
    "participants.subscription": BELOW_PARTICIPANTS | floors("common ledger messages txn segment subscription"),
    "participants.broker": BELOW_PARTICIPANTS
    | {"metatxn.transport"}
    | floors("common ledger messages txn segment subscription broker"),
    "participants.topic": BELOW_PARTICIPANTS | floors("common ledger messages txn segment subscription broker topic"),
    "participants.api": BELOW_PARTICIPANTS | floors("common ledger messages txn segment subscription broker topic api"),
    "participants": BELOW_PARTICIPANTS | {"participants"},
    "metatxn.console": {"metatxn"},
    "metatxn": {"metatxn"},
    "metatxn_gateways": BELOW_PARTICIPANTS | {"participants", "coordinator", "metatxn_gateways"},
    "spark_connector": {"spark_connector", "metatxn"},
    "pyspark_metatxn": {"spark_connector"},
}
"""What may import what, the lowest floor first. The client imports no server, and no server the client."""
SERVERS = "metatxn.service"
CONSOLE = "metatxn.console"
BANNED_CALLS = {
    "time.time": "take the clock that is handed in",
    "time.sleep": "await an event",
    "random.random": "take the randomness that is handed in",
    "datetime.now": "take the clock that is handed in",
}


def modules() -> Iterator[Path]:
    for package in PACKAGES:
        if (ROOT / f"{package}.py").exists():
            yield ROOT / f"{package}.py"
        yield from sorted((ROOT / package).rglob("*.py"))


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def room_of(path: Path) -> str:
    """The part of the house that a module belongs to: the longest name that `ALLOWED` has for it."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    names = [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
    return next(name for name in names if name in ALLOWED)


def within(module: str, name: str) -> bool:
    return module == name or module.startswith(f"{name}.")


def allowed(room: str, module: str) -> bool:
    if module.partition(".")[0] not in PACKAGES:
        return True
    if within(module, SERVERS) and SERVERS not in ALLOWED[room]:
        return False
    if within(module, CONSOLE) and room != CONSOLE:
        return False
    return any(within(module, name) for name in ALLOWED[room])


def test_imports_point_downwards() -> None:
    """DESIGN §2: who may know whom."""
    found = [(path, room_of(path), name) for path in modules() for name in imported(tree_of(path))]
    wrong = [f"{path} in {room} must not import {name}" for path, room, name in found if not allowed(room, name)]
    assert wrong == []


def test_import_rule_can_fail() -> None:
    """The rule above notices each forbidden arrow."""
    assert not allowed("participants", "coordinator.transactions")
    assert not allowed("coordinator", "participants.common.metrics")
    assert not allowed("metastore", "metatxn.service.http")
    assert not allowed("metatxn.service", "metatxn.client")
    assert not allowed("metatxn.wire", "metatxn.client")
    assert not allowed("metatxn.transport", "metatxn.client")
    assert not allowed("coordinator", "metatxn.transport.pool")
    assert not allowed("participants", "metatxn")
    assert not allowed("participants.segment", "participants.subscription.segment_subscriptions")
    assert not allowed("participants.segment", "participants.broker.providers")
    assert not allowed("participants.broker", "participants.topic.layout")
    assert not allowed("participants.topic", "participants.api.routes")
    assert not allowed("participants.ledger", "participants")
    assert not allowed("participants.messages", "participants.segment.segment")
    assert allowed("participants.segment", "participants.ledger.chain")
    assert allowed("participants", "participants.api.routes")
    assert allowed("participants.broker", "metatxn.transport.pool")
    assert not allowed("metatxn", "participants.broker.broker")
    assert not allowed("metatxn", "metatxn.console.app")
    assert not allowed("coordinator", "metatxn.console.app")
    assert not allowed("metatxn.console", "metatxn.service.audit")
    assert not allowed("metatxn.console", "coordinator.survey")
    assert not allowed("metatxn.console", "metastore.check")
    assert allowed("metatxn.console", "metatxn.client")
    assert not allowed("metatxn", "metatxn.service.http")
    assert not allowed("spark_connector", "participants.common.metrics")
    assert not allowed("participants", "metatxn_gateways.listener")
    assert not allowed("metatxn", "metatxn_gateways.kafka.service")
    assert not allowed("metatxn_gateways", "metatxn.client")
    assert allowed("metatxn_gateways", "coordinator.transactions")
    assert allowed("metatxn", "metatxn.wire.broker")
    assert room_of(ROOT / "metatxn/wire/frames.py") == "metatxn.wire"
    assert room_of(ROOT / "metatxn/cli/main.py") == "metatxn"
    assert room_of(ROOT / "participants/segment/segment.py") == "participants.segment"
    assert room_of(ROOT / "participants/service.py") == "participants"


def test_imports_for_types_alone_count() -> None:
    """A circle must not hide behind `TYPE_CHECKING`."""
    tree = ast.parse("if TYPE_CHECKING:\n    from participants.topic.layout import Layout\n")
    assert list(imported(tree)) == ["participants.topic.layout"]


HOMONYMS = {
    "Message": "a message as REST shows it, whose name is in the OpenAPI page, and as the client hands it to its user",
    "OutcomeUnknown": "an answer of the store was lost, and the problem by which a service tells its caller of it",
    "StorageFull": "a ledger has no space, and the problem by which a broker tells its caller of it",
    "StoreUnavailable": "the store does not answer, and the problem by which a service tells its caller of it",
}
"""The names that two modules define, with the reason: both mean the same thing, on two floors."""
COMMANDS = {"command", "callback"}
"""What makes a function a verb of the command line. Such functions are named for users, and never imported."""


def public_names(tree: ast.Module) -> Iterator[str]:
    """The classes, functions and types that a module defines for others; neither constants nor verbs of the command
    line."""
    for node in tree.body:
        match node:
            case ast.ClassDef(name=name):
                yield from [name] * (not name.startswith("_"))
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield from [name] * (not name.startswith("_") and not is_command(node))
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                is_type = name[0].isupper() and not name.isupper()
                yield from [name] * (is_type and not ast.unparse(value).startswith("TypeVar("))


def is_command(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    calls = [each.func for each in function.decorator_list if isinstance(each, ast.Call)]
    return any(isinstance(call, ast.Attribute) and call.attr in COMMANDS for call in calls)


def homonyms(trees: dict[str, ast.Module]) -> dict[str, list[str]]:
    """The public names that several modules define, and these modules."""
    found: dict[str, list[str]] = {}
    for module, tree in trees.items():
        for name in dict.fromkeys(public_names(tree)):
            found.setdefault(name, []).append(module)
    return {name: places for name, places in found.items() if len(places) > 1}


def test_a_public_name_means_one_thing() -> None:
    """One word per thing, in all packages together."""
    found = homonyms({dotted(path): tree_of(path) for path in modules()})
    assert {name: places for name, places in found.items() if name not in HOMONYMS} == {}
    assert found.keys() == HOMONYMS.keys(), "an exception that is needed no more"


def test_a_second_meaning_is_noticed() -> None:
    lines = ("class Part: pass", "async def part(): pass", "Parts = list[int]", "PARTS = 3", "T = TypeVar('T')")
    tree = ast.parse("\n".join((*lines, "class _Part: pass", "@app.command()\ndef split(): pass")))
    assert list(homonyms({"a": tree, "b.c": tree})) == ["Part", "part", "Parts"]


def dotted(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def dependencies(trees: dict[str, ast.Module]) -> dict[str, set[str]]:
    """The modules of ours that each module imports, for types alone too."""
    found: dict[str, set[str]] = {}
    for name, tree in trees.items():
        found[name] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                targets = {f"{node.module}.{alias.name}" for alias in node.names}
                found[name] |= targets & trees.keys() or {node.module} & trees.keys()
    return found


def test_no_modules_import_each_other() -> None:
    """Not even in a circle that exists for type checkers alone, or in one that is closed within a function."""
    trees = {dotted(path): tree_of(path) for path in modules()}
    list(TopologicalSorter(dependencies(trees)).static_order())


def test_a_circle_is_noticed() -> None:
    sources = {"a.b": "if TYPE_CHECKING:\n    from a.c import C", "a.c": "from a import b"}
    trees = {name: ast.parse(source) for name, source in sources.items()}
    with pytest.raises(CycleError):
        list(TopologicalSorter(dependencies(trees)).static_order())


MOST_LINES = 70
"""Of a function, with its parameters and its docstring."""


def long_functions(tree: ast.Module) -> list[str]:
    functions = (each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
    return [each.name for each in functions if (each.end_lineno or 0) - each.lineno >= MOST_LINES]


def test_no_function_is_long() -> None:
    """One that becomes longer is to be divided: it does several things, or its parameters belong together."""
    assert [f"{path}, {name}" for path in modules() for name in long_functions(tree_of(path))] == []


def test_a_long_function_is_noticed() -> None:
    body = "    pass\n"
    assert long_functions(ast.parse("def short():\n" + (MOST_LINES - 1) * body)) == []
    assert long_functions(ast.parse("class Any:\n    async def long():\n" + MOST_LINES * f"    {body}")) == ["long"]


def banned_calls(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name = ast.unparse(node.func)
            if name in BANNED_CALLS:
                yield f"line {node.lineno}, {name}: {BANNED_CALLS[name]}"


def test_nothing_reaches_for_clock_or_randomness() -> None:
    """Core logic is written without I/O of its own (DESIGN §2), so that a simulator can run it."""
    assert [f"{path}, {call}" for path in modules() for call in banned_calls(tree_of(path))] == []


def test_a_reach_for_the_clock_is_noticed() -> None:
    assert len(list(banned_calls(ast.parse("import time\nnow = time.time() + random.random()")))) == 2


def is_a_set(node: ast.expr) -> bool:
    """Whether an expression is certainly a set."""
    match node:
        case ast.Set() | ast.SetComp():
            return True
        case ast.Call(func=function):
            return ast.unparse(function).rpartition(".")[2] in ("set", "frozenset", "union", "difference")
        case ast.BinOp(op=ast.Sub() | ast.BitAnd() | ast.BitOr() | ast.BitXor()):
            sides = node.left, node.right
            return any(is_a_set(side) or ast.unparse(side).endswith(".keys()") for side in sides)
    return False


def loops_over_sets(tree: ast.Module) -> list[str]:
    """What is done for each member of a set, in the order of the set."""
    loops: list[ast.expr] = []
    for node in ast.walk(tree):
        match node:
            case ast.For() | ast.AsyncFor():
                loops.append(node.iter)
            case ast.ListComp() | ast.DictComp():
                loops += [each.iter for each in node.generators]
            case ast.Call(func=ast.Name(id="list" | "tuple")):
                loops += node.args
    return [ast.unparse(each) for each in loops if is_a_set(each)]


def test_nothing_follows_the_order_of_a_set() -> None:
    """It differs from process to process, so that a seed would not be one story: `sorted` gives it an order."""
    assert [f"{path}: {loop}" for path in modules() for loop in loops_over_sets(tree_of(path))] == []


def test_a_loop_over_a_set_is_noticed() -> None:
    assert loops_over_sets(ast.parse("for a in b.keys() - c.keys(): d(a)")) == ["b.keys() - c.keys()"]
    assert loops_over_sets(ast.parse("[e(f) async for f in {g(h) for h in i}]")) == ["{g(h) for h in i}"]
    assert loops_over_sets(ast.parse("for a in sorted({b}): c(a)")) == []


def unquoted_commands(tree: ast.Module) -> list[str]:
    """Values in commands of `metatxn` that a text tells a person to run: not quoted, and no id."""
    found = []
    for node in ast.walk(tree):
        before = ""
        for part in node.values if isinstance(node, ast.JoinedStr) else ():
            if isinstance(part, ast.Constant):
                before += str(part.value)
            elif isinstance(part, ast.FormattedValue):
                value = ast.unparse(part.value)
                if re.search(r"metatxn ([a-z-]+ )+(\0 )*$", before) and not re.search(r"^shlex\.|id(\)|$)", value):
                    found.append(value)
                before += "\0"
    return found


def test_names_in_commands_for_a_person_are_quoted() -> None:
    """A topic may be named `my topic`. Who copies a command from an error wants to run it with that name."""
    assert [f"{path}: {value}" for path in modules() for value in unquoted_commands(tree_of(path))] == []


def test_an_unquoted_name_is_noticed() -> None:
    quoted = "f'x: metatxn topic show {shlex.quote(a)}, metatxn txn abort {a.txn_id}'"
    assert unquoted_commands(ast.parse(quoted)) == []
    assert unquoted_commands(ast.parse("f'`metatxn subscription create {shlex.quote(a)} {b}`'")) == ["b"]


def test_no_test_forks_its_process() -> None:
    """It has threads and libraries that are not made for it. A fork that hangs also keeps the pipe of its worker open,
    so that the suite waits forever. Programs that a test starts may fork."""
    candidates = [path for path in ROOT.glob("tests/**/*.py") if "fork()" in path.read_text()]
    attributes = {
        path: {each.attr for each in ast.walk(tree_of(path)) if isinstance(each, ast.Attribute)} for path in candidates
    }
    assert [path for path in candidates if "fork" in attributes[path]] == [ROOT / "tests" / "forked.py"]


def test_no_leftovers() -> None:
    """Nothing that says "later" is committed."""
    marks = ("TO" + "DO", "FIX" + "ME", "X" + "XX")
    for path in (*ROOT.glob("*/**/*.py"), *ROOT.glob("*.md")):
        if ".venv" in path.parts or "build" in path.parts:
            continue
        text = path.read_text()
        assert not any(mark in text for mark in marks), f"{path} has a leftover mark"


def test_nobody_writes_words_that_sound_translated() -> None:
    """Of docs/mutants.md only the names of mutants and tests have them."""
    pages = [path for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")) if path.name != "mutants.md"]
    for path in (*modules(), *pages):
        found = re.findall(r"(?<![-_\w])(?:whoever|for ever)(?![-_\w])", path.read_text(), re.IGNORECASE)
        assert not found, f"{path} has {found}"


def test_no_range_is_deleted_that_could_be_large() -> None:
    """etcd 3.4 keeps the buffer of its largest write: after one delete over 100,000 keys it answers 371 checked writes
    a second instead of 8,500, until it is restarted. So records are deleted by their names, in applies that are
    limited; nothing but the stores themselves speaks of ranges."""
    for path in modules():
        calls = [node.func for node in ast.walk(tree_of(path)) if isinstance(node, ast.Call)]
        named = [call.attr for call in calls if isinstance(call, ast.Attribute)]
        assert "delete_range" not in named or room_of(path) == "metastore", f"{path} deletes a range"
