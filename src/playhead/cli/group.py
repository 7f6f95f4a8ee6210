"""The group of verbs. A verb's module is imported only when that verb is called."""

from __future__ import annotations

import importlib
from typing import Any

import click

from playhead import __version__

# name: (module, one line for the list of verbs); without a line it is not listed.
_VERBS = {
    "demo": ("demo", "Kill a real training again and again, and compare bit by bit."),
    "demo-train": ("digits", None),
    "index": ("index", "Find out where the records of TFRecord files lie, ahead of a run."),
    "inspect": ("inspect", "Say where a training run, or a saved position, stands."),
}


class _Verbs(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _VERBS:
            return None
        module = importlib.import_module(f"playhead.cli.{_VERBS[cmd_name][0]}")
        command = module.command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        lines = [(name, line) for name, (_, line) in sorted(_VERBS.items()) if line is not None]
        with formatter.section("Commands"):
            formatter.write_dl(lines)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        return [
            CompletionItem(name, help=line)
            for name, (_, line) in sorted(_VERBS.items())
            if line is not None and name.startswith(incomplete)
        ] + click.Command.shell_complete(self, ctx, incomplete)


@click.group(cls=_Verbs)
@click.version_option(__version__, prog_name="playhead")
def playhead() -> None:
    """Keeps the exact place of a training run in its data."""
