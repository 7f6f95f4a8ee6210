"""What the layers of a model are, laid out flat so that two models with equal variables can be told apart.

Taken from `model.get_config()`, with layers named by their place: what a layer is called changes nothing
that is learned, and Keras numbers the names it makes up. What building a model adds is left out.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from playhead.errors import TrainingChanged

_LONG = 64  # more values than that (vocabularies, tables) are kept as a digest
_GRAPH = ("inbound_nodes", "input_layers", "output_layers")
_VALUES = {"TorchModuleWrapper": ("module",)}  # the module as bytes, with the values it has now
_LEFT_OUT = ("name", "layers", "build_input_shape", *_GRAPH)


def of(model: Any) -> dict[str, Any] | None:
    """The layers as places with JSON values, as in `{"layers[1]": "Dropout", "layers[1].rate": 0.1}`.

    `layers[1].name` is there to be shown. None for a model without a config; one of a subclassed model has
    what its `get_config()` gives, which rarely are its layers.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            config = json.loads(json.dumps(model.get_config(), default=_told))
    except Exception:  # whatever a user's get_config() raises
        return None
    return dict(_model("", config)) if isinstance(config, Mapping) else None


def require_same(saved: Any, now: Any) -> None:
    """Raises `TrainingChanged`, naming layers and fields, saved against now, where the layers differ."""
    if not saved or not now:
        return
    lines: list[str] = []
    replaced: tuple[str, ...] = ()  # of another kind of layer, the fields are others as well
    for key in [*now, *(key for key in saved if key not in now)]:
        before, after = saved.get(key, "(not there)"), now.get(key, "(not there)")
        if before == after or key.endswith(".name") or key.startswith(replaced):
            continue
        if key.endswith("]"):
            replaced += (f"{key}.",)
        lines.append(f"{_shown(key, now, saved)}  saved {before}   ->   now {after}")
    if lines:
        raise TrainingChanged(
            "the layers of the model are not those of the checkpoint\n    " + "\n    ".join(lines),
            help='go back to the saved layers, or override=["model"] to go on with those of now',
            differences=lines,
        )


def _model(at: str, config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    given = config.get("layers")
    parts = given if isinstance(given, list) else []
    layers = [part for part in parts if isinstance(part, Mapping) and "class_name" in part]
    if not any("inbound_nodes" in part for part in layers):
        # A Sequential gets its input layer when it is built.
        layers = [part for part in layers if part.get("class_name") != "InputLayer"]
    places = {_name(part): f"layers[{k}]" for k, part in enumerate(layers)}
    for k, part in enumerate(layers):
        here = f"{at}layers[{k}]"
        yield f"{here}.name", _name(part)
        yield from _flat(here, part)
        if part.get("inbound_nodes"):
            yield f"{here}.inputs", json.dumps(_placed(part["inbound_nodes"], places))
    for key in ("input_layers", "output_layers"):
        if key in config:
            yield f"{at}{key}", json.dumps(_placed(config[key], places))
    for key, value in config.items():
        if key not in _LEFT_OUT:
            yield from _flat(f"{at}{key}", value)


def _flat(at: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and "class_name" in value:
        kind, config = value["class_name"], value.get("config")
        if not isinstance(config, Mapping):
            yield at, config if isinstance(config, str) else kind
        elif kind == "__lambda__":
            yield at, "a lambda"
        elif kind.endswith("DTypePolicy"):
            yield at, config.get("name")
        else:
            yield at, kind
            left_out = (*_LEFT_OUT, *_VALUES.get(kind, ()))
            if isinstance(config.get("layers"), list):
                yield from _model(f"{at}.", config)
            else:
                yield from _flat(at, {k: v for k, v in config.items() if k not in left_out})
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from _flat(f"{at}.{key}", part)
    elif isinstance(value, list) and any(isinstance(part, Mapping) for part in value):
        for k, part in enumerate(value):
            yield from _flat(f"{at}[{k}]", part)
    elif isinstance(value, list) and len(value) > _LONG:
        digest = hashlib.blake2b(json.dumps(value).encode(), digest_size=8).hexdigest()
        yield at, f"{len(value)} values ({digest})"
    else:
        yield at, value


def _placed(value: Any, places: Mapping[str, str]) -> Any:
    """The graph's references to layers, by place instead of name."""
    if isinstance(value, list):
        if len(value) == 3 and isinstance(value[0], str) and value[0] in places:
            return [places[value[0]], *value[1:]]
        return [_placed(part, places) for part in value]
    if isinstance(value, Mapping):
        return {key: _placed(part, places) for key, part in value.items()}
    return value


def _name(layer: Mapping[str, Any]) -> str:
    config = layer.get("config")
    named = config.get("name") if isinstance(config, Mapping) else None
    return str(layer.get("name", named))


def _shown(key: str, *sides: Mapping[str, Any]) -> str:
    """`key` with the name of its layer: `dense_1.activation (layers[2])`."""
    place = key[: key.rfind("]") + 1]
    while place:
        for side in sides:
            if f"{place}.name" in side:
                field = key[len(place) :] or ""
                return f"{side[f'{place}.name']}{field} ({place})"
        place = place[: place[:-1].rfind("]") + 1]
    return f"model.{key}"


def _told(value: Any) -> Any:
    tolist = getattr(value, "tolist", None)
    return tolist() if callable(tolist) else type(value).__name__
