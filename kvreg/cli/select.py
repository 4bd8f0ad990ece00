"""`kvreg select`: which variants serve a device and head size, what they save and cost, and why others do not."""

from __future__ import annotations

from typing import Any

import click

from kvreg.cli import answers, render
from kvreg.core import asking, documents

REFUSED = 3


@click.command()
@click.option("--device", help="Key, name, arch or PCI id. Default: KVREG_DEVICE, else this machine's card.")
@click.option("--head-size", type=int, required=True, help="Channels of a head.")
@click.option("--mode", help="One KV quantization mode. Default: every mode.")
@click.option("--q-heads", type=int, help="Query heads. Default: 32.")
@click.option("--kv-heads", type=int, help="KV heads. Default: 8.")
@click.option("--page", type=int, help="Token slots of a cache page. Default: 16.")
@click.option("--dtype", help="The model's dtype: bf16, fp16 or fp32. Default: bf16.")
@click.option("--feature", "features", multiple=True, help="What attention must do; may be repeated. Default: causal.")
@click.option("--batch", type=int, help="Sequences of a step. Default: 32.")
@click.option("--context", type=int, help="Tokens of a sequence. Default: 8192.")
@click.option("--layout", help="Layout id of the cache. Default: planar.1.")
@click.option("--accuracy", help="exact, or fast where a looser class may serve. Default: exact.")
@click.option("--allow", multiple=True, help="Take weaker evidence too: interpreted.")
@click.option(
    "--explain", is_flag=True, help="Show each op's variant, evidence and launch parameters, and each decision."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document, schema 1.")
def select(features: tuple[str, ...], allow: tuple[str, ...], explain: bool, as_json: bool, **asked: Any) -> int:
    """Choose the kernel variants for a device and a head size, and say why.

    Ends with 3 when the mode that --mode names, or every mode, is refused.
    """
    answer = asking.ask(asked.pop("device"), features=features or None, allow=allow, **asked)
    if as_json:
        render.document(documents.selection(answer))
    else:
        answers.show(answer, explain=explain)
    return 0 if any(result.verdict == "selected" for result in answer.results) else REFUSED
