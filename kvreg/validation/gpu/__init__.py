"""Everything that needs a card, in one command with one archive: `ci/gpu`. `stages` has the stages in their order."""

from kvreg.validation.gpu.command import main

__all__ = ["main"]
