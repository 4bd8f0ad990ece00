"""The classes of kvreg's commands: an option of one value that is given twice is an error, and not the last one."""

from __future__ import annotations

from collections import Counter

import click


class Command(click.Command):
    """A command that takes each option once, unless it is declared `multiple`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse `args`; raises UsageError for an option with a value that comes again."""
        _require_once(self, ctx, args)
        return super().parse_args(ctx, args)


class Group(click.Group):
    """A group of such commands, and itself one. What works without a subcommand lends its options to none."""

    command_class = Command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse `args`; raises UsageError for an option with a value that comes again, or before a subcommand."""
        _require_once(self, ctx, args)
        if self.invoke_without_command:
            self._require_behind(ctx, args)
        return super().parse_args(ctx, args)

    def _require_behind(self, ctx: click.Context, args: list[str]) -> None:
        """Raise UsageError for an option of the group's own, which the subcommand would never see."""
        if ctx.resilient_parsing:
            return
        _, rest, order = self.make_parser(ctx).parse_args(args=list(args))
        given = next((each for each in order if isinstance(each, click.Option) and not each.is_eager), None)
        command = self.get_command(ctx, rest[0]) if rest else None
        if given is None or command is None:
            return
        option = max(given.opts, key=len)
        if any(option in each.opts for each in command.params):
            raise click.UsageError(f"{option} goes behind {rest[0]}", ctx)
        raise click.UsageError(f"{option}: required behind no subcommand, found {rest[0]}; leave one of them out", ctx)


def _require_once(command: click.Command, ctx: click.Context, args: list[str]) -> None:
    if ctx.resilient_parsing:  # a shell that completes a line
        return
    _, _, order = command.make_parser(ctx).parse_args(args=list(args))
    for option, times in Counter(each for each in order if _takes_one(each)).items():
        if times > 1:
            raise click.UsageError(f"{option.opts[0]}: required once, found {times} times; name one value", ctx)


def _takes_one(parameter: click.Parameter) -> bool:
    return isinstance(parameter, click.Option) and not (parameter.multiple or parameter.is_flag or parameter.count)
