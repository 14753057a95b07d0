"""The flag --plugin. Plugins are loaded before a command is parsed, because options of their methods become flags."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click

from coterie.errors import ConfigError
from coterie.plugins.loading import load_installed, load_plugin

FLAG = "--plugin"
NAMES = (click.types.StringParamType, click.Path, click.Choice)
"""Types of options that name something. Numbers may be given again, to override those of a script."""
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
        self._refuse_repeated(ctx, args)
        return super().parse_args(ctx, args)

    def _refuse_repeated(self, ctx: click.Context, args: Sequence[str]) -> None:
        """Raise ConfigError for a name, such as that of a column, that is given twice: only the last would count."""
        given = [each for each in self.make_parser(ctx).parse_args(list(args))[2] if isinstance(each, click.Option)]
        for option in given:
            if not option.multiple and isinstance(option.type, NAMES) and given.count(option) > 1:
                raise ConfigError(f"{option.opts[0]} is given more than once, but it takes one value: give it once")


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
