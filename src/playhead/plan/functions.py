"""User functions: what they are, which form they run in, and how their errors name the element.

A function runs once per element in Python, unless a framework offers a *block form* for it: then it runs on
whole chunks. `FORMS` names the framework packages that offer one; they are imported only when a function
turns out to need them.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import sys
import traceback
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from playhead.errors import FormError, UnrepeatableFunction
from playhead.plan.block import Block, Element, Nest, Rows, leaves, taken
from playhead.plan.global_states import WATCHED, GlobalStates
from playhead.plan.lock import Lock
from playhead.plan.places import Places
from playhead.plan.randomness import Draws

FORMS = {"tf": ("tensorflow", "playhead.tensorflow.function")}
KNOWN_FORMS = ("python", *FORMS)


@dataclass(frozen=True, slots=True)
class Randomness:
    """The places that choose a block's random numbers, under the operation's own 128-bit key."""

    places: Places
    wide: int

    def slice(self, start: int, stop: int) -> Randomness:
        return Randomness(self.places.slice(start, stop), self.wide)


class BlockForm(Protocol):
    """A function that runs on whole blocks. `spec` says what it returns, where it is known."""

    spec: Nest | None

    def __call__(self, block: Block, randomness: Randomness | None) -> Block: ...


class UserFunction:
    """A function of one element (a tuple, but no namedtuple, is unpacked into arguments, as in tf.data).

    `form` is "auto", "python" or "tf". "auto" is decided at the first element: where the result holds
    TensorFlow tensors, the function is traced once and runs on chunks.
    """

    def __init__(self, fn: Callable[..., Any], *, form: str, op: str, where: str | None) -> None:
        if not callable(fn):
            raise TypeError(f"{op} needs a function, not {type(fn).__name__}")
        if form not in ("auto", *KNOWN_FORMS):
            known = ", ".join(repr(f) for f in ("auto", *KNOWN_FORMS))
            raise FormError(f"{op}(form={form!r}): the forms are {known}")
        self.fn = fn
        self.form = form
        self.op = op
        self.where = where
        self.name = function_name(fn)
        self.decided: str | None = None if form == "auto" else form
        self._told = form
        self._run: Callable[[Block, Randomness | None], Block] | None = None
        self._spec: Nest | None = None
        self._to_watch = WATCHED
        self._deciding = Lock()
        self._in_forms: dict[str, UserFunction] = {}

    def in_form(self, form: str) -> UserFunction:
        """This function, with its form told: as a position remembers it."""
        with self._deciding:
            if form not in self._in_forms:
                told = UserFunction(self.fn, form=form, op=self.op, where=self.where)
                self._in_forms[form] = told
            return self._in_forms[form]

    def tell(self, form: str) -> None:
        """Let it take the form that it took in another process, unless it has taken one already."""
        with self._deciding:
            if self.decided is None:
                self.decided = self._told = form

    def __getstate__(self) -> dict[str, Any]:
        decided = None if self._told == "auto" else self._told
        return self.__dict__ | {"_run": None, "_spec": None, "_in_forms": {}, "decided": decided}

    @functools.cached_property
    def identity(self) -> str | None:
        """ "3.11:" and a digest of the code; None where it cannot be told."""
        return identity(self.fn)

    def said(self, op: str) -> dict[str, Any]:
        """What a description says of an operation with it."""
        said: dict[str, Any] = {"op": op, "fn": self.name}
        return said if self.identity is None else said | {"code": self.identity}

    @property
    def spec(self) -> Nest | None:
        """What it returns, where a trace has told."""
        return self._spec

    def __call__(self, block: Block, randomness: Randomness | None = None) -> Block:
        """The results for a block's elements. Raises what the function raises, with notes that say where."""
        if not len(block):
            return Rows([])
        if self._run is None:
            with self._deciding:
                if self._run is None:
                    first = self._decide(block, randomness)
                    if first:
                        return self._in_python(block, randomness, first)
        assert self._run is not None
        return self._run(block, randomness)

    def on_one(self, element: Element) -> Any:
        """What it makes of one element, as it is: in Python, whatever that is."""
        return self._call(element, None, None, 0)

    def _decide(self, block: Block, randomness: Randomness | None) -> list[Element]:
        """Choose the form. Returns what finding out has computed: the first result, or nothing.

        A function is called once for each element, this one too: it may change its argument in place.
        """
        form, built = self._told, None
        first: list[Element] = []
        one, here = block.slice(0, 1), None if randomness is None else randomness.slice(0, 1)
        if form == "auto":
            try:
                form, first, built = self._probe(one, here)
            except Exception as error:
                _mark(error, 0, [])
                raise
        if form == "python":
            self.decided, self._run = form, self._in_python
            return first
        built = built or self._built(form, one, here)
        self._run, self._spec, self.decided = built, built.spec, form
        return []

    def _built(self, form: str, one: Block, randomness: Randomness | None) -> BlockForm:
        module = importlib.import_module(FORMS[form][1])
        built: BlockForm = module.block_form(self, one, randomness is not None)
        return built

    def _probe(
        self, one: Block, randomness: Randomness | None
    ) -> tuple[str, list[Element], BlockForm | None]:
        """The form that the function's result on one element asks for, with what was found out on the way."""
        try:
            draws = None if randomness is None else Draws(randomness.wide)
            result = self._call(one.rows()[0], draws, randomness, 0)
        except Exception as error:
            for form, (framework, _) in FORMS.items():
                if _is_about_tensors(error, framework):
                    built = self._fitting(form, one, randomness)
                    if built is not None:
                        return form, [], built
            raise
        for form, (framework, _) in FORMS.items():
            if _is_of(framework, result):
                return form, [], None
        return "python", [taken(result)], None

    def _fitting(self, form: str, one: Block, randomness: Randomness | None) -> BlockForm | None:
        """The block form of a function that Python values broke, where it runs on a framework's."""
        try:
            built = self._built(form, one, randomness)
            built(one, randomness)
        except UnrepeatableFunction:
            raise
        except Exception:
            return None
        return built

    def _call(
        self, element: Element, draws: Draws | None, randomness: Randomness | None, k: int
    ) -> Any:
        arguments = element if type(element) is tuple else (element,)
        if draws is not None and randomness is not None:
            arguments = (*arguments, draws.at(*randomness.places.at(k)))
        watch = GlobalStates(first=self._to_watch == WATCHED) if self._to_watch > 0 else None
        try:
            result = self.fn(*arguments)
        except StopIteration as error:
            raise self._stopped(error) from error
        if watch is not None:
            who = f"{self.op}({self.name}){_at(self.where)}"
            told = watch.warn(who, "take the numbers from map(fn, rng=True)")
            self._to_watch = 0 if told else self._to_watch - 1
        return result

    def _in_python(
        self, block: Block, randomness: Randomness | None, known: Sequence[Element] = ()
    ) -> Block:
        draws = None if randomness is None else Draws(randomness.wide)
        results, fn, rows = list(known), self.fn, block.rows()
        try:
            while len(results) < len(rows) and (draws is not None or self._to_watch > 0):
                k = len(results)
                results.append(taken(self._call(rows[k], draws, randomness, k)))
            for row in rows[len(results) :]:
                results.append(taken(fn(*row) if type(row) is tuple else fn(row)))
        except Exception as error:
            _mark(error, len(results), results)
            if isinstance(error, StopIteration):
                raise self._stopped(error) from error
            raise
        return Rows(results)

    def _stopped(self, error: StopIteration) -> RuntimeError:
        """What a StopIteration becomes, which would end the walk in silence."""
        became = RuntimeError(f"{self.name} raised StopIteration")
        became.__dict__.update(error.__dict__)
        return became


def _mark(error: Exception, position: int, done: list[Element]) -> None:
    """Say which element of its block an error came from, and keep the results before it."""
    error.__dict__.setdefault("playhead_element", position)
    error.__dict__.setdefault("playhead_done", done)


def _is_about_tensors(error: Exception, framework: str) -> bool:
    """Whether a function may have failed only because it was given numpy values, not the framework's.

    So it is where the framework itself refused them, or where they lacked an attribute or did not fit an
    operation. Any other error is the function's own and stays.
    """
    if framework not in sys.modules or isinstance(error, OSError | AssertionError):
        return False
    if isinstance(error, AttributeError | TypeError):
        return True
    innermost = None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        innermost = frame
    name = "" if innermost is None else str(innermost.f_globals.get("__name__", ""))
    return name.split(".")[0] == framework


def _is_of(framework: str, result: Any) -> bool:
    return any(type(leaf).__module__.split(".")[0] == framework for leaf in _all_leaves(result))


def _all_leaves(result: Any) -> list[Any]:
    found: list[Any] = []
    for leaf in leaves(result):
        if isinstance(leaf, list):
            for item in leaf:
                found += _all_leaves(item)
        else:
            found.append(leaf)
    return found


def _at(where: str | None) -> str:
    return f" at {where}" if where else ""


def function_name(fn: Any) -> str:
    if isinstance(fn, functools.partial):
        return function_name(fn.func)
    return getattr(fn, "__name__", type(fn).__name__)


def identity(fn: Any) -> str | None:
    """A digest of what a function does: bytecode, names, constants, simple defaults and closure values.

    Equal code gives equal digests within one Python minor version. None for what has no Python code.
    """
    digest = hashlib.blake2b(digest_size=6)
    if not _feed(fn, digest.update, 0):
        return None
    return f"{sys.version_info.major}.{sys.version_info.minor}:{digest.hexdigest()}"


def _feed(fn: Any, update: Callable[[bytes], None], depth: int) -> bool:
    if isinstance(fn, functools.partial):
        update(_simple([fn.args, sorted(fn.keywords.items())]))
        return _feed(fn.func, update, depth)
    if isinstance(fn, types.MethodType):
        return _feed(fn.__func__, update, depth)
    wrapped = getattr(fn, "__wrapped__", None)
    code = getattr(fn, "__code__", None)
    if not isinstance(code, types.CodeType):
        return wrapped is not None and depth < 4 and _feed(wrapped, update, depth + 1)
    _feed_code(code, update)
    update(_simple([fn.__defaults__, fn.__kwdefaults__]))
    for cell in fn.__closure__ or ():
        try:
            value = cell.cell_contents
        except ValueError:
            continue
        if depth < 4 and callable(value) and _feed(value, update, depth + 1):
            continue
        update(_simple(value))
    return True


def _feed_code(code: types.CodeType, update: Callable[[bytes], None]) -> None:
    update(code.co_code)
    update(repr((code.co_names, code.co_varnames, code.co_freevars)).encode())
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            _feed_code(constant, update)
        else:
            update(_simple(constant))


def function_of(node: object) -> UserFunction | None:
    """The user's function that an operation calls, if it has one for each element."""
    function = getattr(node, "function", None)
    return function if isinstance(function, UserFunction) else None


def _simple(value: Any) -> bytes:
    """Bytes for values made of numbers, strings and containers of them; nothing for others."""
    if isinstance(value, bool | int | float | complex | str | bytes | None | type(...)):
        return f"{type(value).__name__}:{value!r};".encode()
    if isinstance(value, tuple | list):
        return b"(" + b"".join(_simple(v) for v in value) + b")"
    if isinstance(value, set | frozenset):
        return b"{" + b"".join(sorted(_simple(v) for v in value)) + b"}"
    if isinstance(value, dict):
        return b"{" + b"".join(_simple(k) + _simple(v) for k, v in value.items()) + b"}"
    return b"?"
