"""The type of an option that is a number with limits, among which nan and inf are none."""

from __future__ import annotations

import math
from typing import Any

import click


class Finite(click.FloatRange):
    """A float in a range; click's own lets nan through every limit."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number; raises click.BadParameter for one that is not finite."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is no finite number", param, ctx)
        return number
