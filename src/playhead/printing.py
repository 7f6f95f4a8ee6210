"""A dataset as text: its pipeline, one operation a line."""

from __future__ import annotations

from playhead.plan.node import INFINITE, UNKNOWN, Node

HIDDEN = ("op", "content", "kind", "code", "reduce_code", "size_code", "numpy", "drawn")
HIDDEN_TOO = ("algorithm", "block")


def printed(node: Node) -> str:
    """The whole pipeline: what it gives, then its operations from the sources on."""
    count = {INFINITE: "endless", UNKNOWN: "of unknown length"}.get(
        node.cardinality, f"of {node.cardinality} elements"
    )
    kind = "seekable" if node.seekable else "stream"
    return f"<playhead.Dataset {count}, {kind}>\n" + "\n".join(_lines(node, "  "))


def _lines(node: Node, indent: str) -> list[str]:
    """One operation a line, sources first."""
    before: list[str] = []
    if len(node.parents) == 1:
        before = _lines(node.parent, indent)
    else:
        for number, parent in enumerate(node.parents):
            before += [f"{indent}[{number}]", *_lines(parent, indent + "  ")]
    return [*before, indent + _line(node)]


def _line(node: Node) -> str:
    said = node.said()
    shown = ", ".join(f"{k}={v}" for k, v in said.items() if k not in (*HIDDEN, *HIDDEN_TOO))
    count = {INFINITE: "endless", UNKNOWN: "? elements"}.get(
        node.cardinality, f"{node.cardinality} elements"
    )
    spec = node.static_spec()
    parts = [f"{said['op']}({shown})", count, "seekable" if node.seekable else "stream"]
    if spec is not None:
        parts.append(str(spec))
    if node.info.name:
        parts.append(f"name={node.info.name}")
    if node.info.where:
        parts.append(node.info.where)
    return "  ".join(parts)
