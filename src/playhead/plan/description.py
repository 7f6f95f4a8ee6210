"""What a pipeline is, in JSON: its operations, its fingerprint, and how two of them differ."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from playhead.plan.functions import KNOWN_FORMS, function_of
from playhead.plan.node import Node
from playhead.plan.randomness import key as key_of
from playhead.plan.shared import each_once

CODE = ("code", "reduce_code", "size_code")  # comparable within one Python
VALUE_ONLY = ("fn", *CODE, "numpy")  # may change values, never order
# Their functions decide which elements there are: another one makes other places
MOVED_BY_CODE = (
    "bucket_by_sequence_length",
    "flat_map",
    "group_by_window",
    "interleave",
    "pack",
    "rejection_resample",
    "scan",
)
UNDECIDED = ("form",)  # known only once the first element was computed
MAX_BRANCHES = 8
MAX_OPERATIONS = 256  # in all branches of an operation

Operation = dict[str, Any]
Kind = Literal["same", "changed", "added", "removed", "function", "numpy"]


def operations(node: Node) -> list[Operation]:
    """A node's pipeline from its sources on; an operation over several datasets holds them as `inputs`.

    Where these are many, or hold many operations, a digest stands for them.
    """
    return _Told(node).pipelines[id(node)]


class _Told:
    """What each node of a plan says, and the pipeline up to it, each found out once."""

    def __init__(self, node: Node) -> None:
        self.said: dict[int, Operation | None] = {}
        self.pipelines: dict[int, list[Operation]] = {}
        self._sizes: dict[int, int] = {}  # operations in a pipeline, those of inputs among them
        for at in each_once(node):
            self._tell(at)

    def digested(self, node: Node) -> bool:
        """Whether one digest stands for what a node's parents say."""
        count = len(node.parents)
        return count > MAX_BRANCHES or (count > 1 and self._below(node) > MAX_OPERATIONS)

    def _below(self, node: Node) -> int:
        return sum(self._sizes[id(parent)] for parent in node.parents)

    def _tell(self, node: Node) -> None:
        said = self.said[id(node)] = node.describe()
        inputs = [self.pipelines[id(parent)] for parent in node.parents]
        digested = self.digested(node)
        self._sizes[id(node)] = (0 if digested else self._below(node)) + (said is not None)
        if len(inputs) == 1:
            self.pipelines[id(node)] = inputs[0] if said is None else [*inputs[0], said]
            return
        assert said is not None
        if digested:
            said = said | {"datasets": len(inputs), "digest": fingerprint(_flat(inputs))}
        elif inputs:
            said = said | {"inputs": inputs}
        self.pipelines[id(node)] = [said]


def _flat(inputs: list[list[Operation]]) -> list[Operation]:
    return [operation for pipeline in inputs for operation in pipeline]


def described(node: Node) -> Iterator[Node]:
    """The nodes in the order in which `flatten(operations(node))` lists what they say."""
    return _listed(node, _Told(node))


def _listed(at: Node, told: _Told) -> Iterator[Node]:
    if not told.digested(at):
        for parent in at.parents:
            yield from _listed(parent, told)
    if told.said[id(at)] is not None:
        yield at


def flatten(pipeline: list[Operation]) -> Iterator[Operation]:
    """Every operation of a pipeline, those of `inputs` before the one over them."""
    for operation in pipeline:
        for branch in operation.get("inputs", ()):
            yield from flatten(branch)
        yield {key: value for key, value in operation.items() if key != "inputs"}


def fingerprint(pipeline: list[Operation]) -> str:
    """16 hexadecimal digits that change when anything changes that decides order."""

    def order(operation: Operation) -> Operation:
        said = {k: v for k, v in operation.items() if k not in (*VALUE_ONLY, *UNDECIDED, "drawn")}
        if "inputs" in said:
            said["inputs"] = [[order(op) for op in branch] for branch in said["inputs"]]
        return said

    text = json.dumps([order(op) for op in pipeline], sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True)
class Difference:
    """One operation, saved against now. `kind` "same" where nothing differs."""

    kind: Kind
    saved: Operation | None
    now: Operation | None
    node: Node | None
    fields: tuple[str, ...] = ()

    @property
    def op(self) -> str:
        operation = self.now or self.saved
        assert operation is not None
        return str(operation["op"])

    @property
    def where(self) -> str:
        """What the user called it, and their line."""
        if self.node is None:
            return ""
        info = self.node.info
        return " ".join(filter(None, [info.name and f"[{info.name}]", info.where]))


def compare(saved: list[Operation], node: Node) -> list[Difference]:
    """The saved pipeline against `node`'s, operation by operation."""
    old, new = list(flatten(saved)), list(flatten(operations(node)))
    found: list[Difference] = []
    for before, after, at in _aligned(old, new, list(described(node)), _named):
        if before is None:
            found.append(Difference("added", None, after, at))
        elif after is None:
            found.append(Difference("removed", before, None, None))
        else:
            found.append(_compare_one(before, after, at))
    return found


def _named(operation: Operation) -> tuple[str, str]:
    return operation["op"], str(operation.get("fn"))


def _kind(operation: Operation) -> str:
    return str(operation["op"])


def _aligned(
    old: list[Operation], new: list[Operation], nodes: list[Node], key: Callable[[Operation], Any]
) -> Iterator[tuple[Operation | None, Operation | None, Node | None]]:
    """Which saved operation is which of now: of the same name where there is one, else of the same kind."""
    matcher = difflib.SequenceMatcher(
        None, list(map(key, old)), list(map(key, new)), autojunk=False
    )
    for tag, a, b, c, d in matcher.get_opcodes():
        if tag == "equal":
            yield from zip(old[a:b], new[c:d], nodes[c:d], strict=True)
        elif tag == "replace" and key is _named:
            yield from _aligned(old[a:b], new[c:d], nodes[c:d], _kind)
        else:
            yield from ((operation, None, None) for operation in old[a:b])
            yield from ((None, *now) for now in zip(new[c:d], nodes[c:d], strict=True))


def _compare_one(saved: Operation, now: Operation, node: Node | None) -> Difference:
    fields = []
    for key in dict.fromkeys([*saved, *now]):
        before, after = saved.get(key), now.get(key)
        if before == after or (key in UNDECIDED and (before is None or after is None)):
            continue
        if key in CODE and _other_python(before, after):
            continue
        fields.append(key)
    own_code = CODE if now["op"] in MOVED_BY_CODE else ()
    order = [key for key in fields if key not in VALUE_ONLY or key in own_code]
    if order:
        return Difference("changed", saved, now, node, tuple(order))
    if "numpy" in fields and "code" not in fields:
        return Difference("numpy", saved, now, node, ("numpy",))
    same_code = saved.get("code") is not None and saved.get("code") == now.get("code")
    if "code" in fields or ("fn" in fields and not same_code):
        return Difference("function", saved, now, node, ("code",))
    return Difference("same", saved, now, node)


def _other_python(before: Any, after: Any) -> bool:
    if before is None or after is None:
        return True
    return bool(str(before).split(":")[0] != str(after).split(":")[0])


def differing(found: list[Difference]) -> list[Difference]:
    """Those that move places: a map that came or went does not."""
    return [
        d
        for d in found
        if d.kind == "changed" or (d.kind in ("added", "removed") and d.op != "map")
    ]


def adopt(saved: list[Operation], node: Node) -> Node:
    """`node` with what the saved pipeline had found out where its own has not been told.

    That is a drawn seed, where its own was drawn too, and the form of a function that has not run yet.
    """
    found: dict[int, dict[str, Any]] = {}
    for difference in compare(saved, node):
        before, after, at = difference.saved or {}, difference.now or {}, difference.node
        if before.get("drawn") and after.get("drawn") and isinstance(before.get("seed"), int):
            found.setdefault(id(at), {})["seed"] = before["seed"]
        function, form = function_of(at), before.get("form")
        same_code = "code" not in difference.fields and "form" not in after
        if function is not None and same_code and form in KNOWN_FORMS:
            found.setdefault(id(at), {})["function"] = function.in_form(form)
    return with_changes(node, found)


def with_changes(node: Node, changes: dict[int, dict[str, Any]]) -> Node:
    """The plan with other arguments for the nodes whose `id` is given. What is shared stays shared."""
    made: dict[int, Node] = {}
    for at in each_once(node):
        parents = tuple(made[id(parent)] for parent in at.parents)
        mine = {k: v for k, v in changes.get(id(at), {}).items() if getattr(at, k) != v}
        if any(a is not b for a, b in zip(parents, at.parents, strict=True)):
            mine = mine | {"parents": parents}
        made[id(at)] = replace(at, **mine) if mine else at
    return made[id(node)]


def seeded(node: Node, seed: int) -> Node:
    """The plan with a seed from `seed` for every random operation that has none of its own.

    Along a chain that is `seed` itself. The datasets that an operation brings together get seeds of their
    own (the first one keeps `seed`), so that they are not shuffled and augmented alike; but an operation
    that they share has one seed, so that what belongs together stays together.
    """
    chosen: dict[int, int] = {}  # the first way to an operation decides

    def choose(at: Node, own: int) -> None:
        if id(at) not in chosen:
            chosen[id(at)] = own
            for number, parent in enumerate(at.parents):
                choose(parent, own if number == 0 else key_of(own, "branch", number))

    choose(node, seed)
    drawn = [at for at in each_once(node) if getattr(at, "drawn", False)]
    return with_changes(node, {id(at): {"seed": chosen[id(at)], "drawn": False} for at in drawn})


def unseeded(node: Node) -> Node | None:
    """The first random operation without a written seed."""
    return next((at for at in each_once(node) if getattr(at, "drawn", False)), None)


def only_batch_size(found: list[Difference]) -> Difference | None:
    """The one difference that is a batch's size, where there is no other."""
    moved = differing(found)
    batches = ("batch", "padded_batch")
    if len(moved) == 1 and moved[0].op in batches and moved[0].fields == ("size",):
        return moved[0]
    return None


def render(found: list[Difference]) -> str:
    """The table of an error: one operation a line, saved against now."""
    rows = []
    for difference in found:
        if difference.kind in ("changed", "removed", "added"):
            before = _said(difference.saved, difference)
            after = _said(difference.now, difference)
            rows.append((difference.op, before, f"-> {after}", difference.where))
        else:
            summary = _summary(difference.now)
            rows.append((difference.op, summary, "same", difference.where))
    width = [max((len(row[k]) for row in rows), default=0) for k in range(3)]
    return "\n".join(
        (
            "    " + "  ".join(cell.ljust(w) for cell, w in zip(row, (*width, 0), strict=True))
        ).rstrip()
        for row in rows
    )


def _said(operation: Operation | None, difference: Difference) -> str:
    if operation is None:
        return "absent"
    if difference.kind in ("added", "removed"):
        return _summary(operation) or "present"
    return " ".join(
        f"no {key}" if operation.get(key) is None else f"{key}={operation[key]}"
        for key in difference.fields
    )


def _summary(operation: Operation | None) -> str:
    if not operation:
        return ""
    names = (
        "records",
        "stop",
        "fn",
        "size",
        "count",
        "buffer_size",
        "seed",
        "num_shards",
        "index",
        "length",
    )
    return " ".join(f"{k}={operation[k]}" for k in names if k in operation)
