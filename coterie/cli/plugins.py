"""The flag --plugin. Plugins are loaded before a command is parsed, because options of their methods become flags."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click

from coterie.plugins.loading import load_installed, load_plugin

FLAG = "--plugin"
HELP = (
    "Python file or module that registers your own methods, scenarios or other components; may be given several times, "
    "also before the command: 'coterie --plugin FILE run ...'."
)


class PluginCommand(click.Command):
    """A command that loads installed plugins and those of --plugin before it reads its arguments."""

    def __init__(self, *arguments: object, **settings: object) -> None:
        super().__init__(*arguments, **settings)  # type: ignore[arg-type]
        self.params.append(plugin_option())

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        for plugin in plugins_in(args):
            load_plugin(plugin)
        load_installed()
        return super().parse_args(ctx, args)


def plugin_option() -> click.Option:
    """Return the flag --plugin, whose values `plugins_in` reads."""
    return click.Option([FLAG], multiple=True, expose_value=False, metavar="FILE", help=HELP)


def plugins_in(arguments: Sequence[str]) -> Iterator[str]:
    """Yield the values of all flags --plugin among the arguments of a command."""
    for place, argument in enumerate(arguments):
        if argument == "--":
            return
        if argument == FLAG and place + 1 < len(arguments):
            yield arguments[place + 1]
        elif argument.startswith(f"{FLAG}="):
            yield argument.removeprefix(f"{FLAG}=")


def load_all(ctx: click.Context, param: click.Parameter, plugins: Sequence[str]) -> None:
    """Load the plugins that are named before the command."""
    for plugin in plugins:
        load_plugin(plugin)
