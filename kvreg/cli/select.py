"""`kvreg select`: which variants serve a device and head size, what they save and cost, and why others do not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvreg.cli import answers, render
from kvreg.cli.finite import Finite
from kvreg.cli.input_file import NamedPath
from kvreg.cli.once import Command
from kvreg.core import asking, documents
from kvreg.core.selections import Selection

if TYPE_CHECKING:
    from kvreg.core.tuned_misses import Miss

REFUSED = 3
_FROM_THE_MODEL = ("head_size", "q_heads", "kv_heads", "layers")


@click.command(cls=Command)
@click.option("--device", help="Key, name, arch or PCI id. Default: KVREG_DEVICE, else this machine's card.")
@click.option("--head-size", type=int, help="Channels of a head. Needed unless --model says.")
@click.option("--mode", help="One KV quantization mode. Default: every mode.")
@click.option("--q-heads", type=int, help="Query heads. Default: 32.")
@click.option("--kv-heads", type=int, help="KV heads. Default: 8.")
@click.option("--page", type=int, help="Token slots of a cache page. Default: 16.")
@click.option("--dtype", help="The model's dtype: bf16, fp16 or fp32. Default: bf16, or as --model says.")
@click.option("--feature", "features", multiple=True, help="What attention must do; may be repeated. Default: causal.")
@click.option("--batch", type=int, help="Sequences of a step. Default: 32.")
@click.option("--context", type=int, help="Tokens of a sequence. Default: 8192.")
@click.option("--layout", help="Layout id of the cache. Default: the mode's, planar.2 of int4, else planar.1.")
@click.option("--accuracy", help="exact, or fast where a looser class may serve. Default: exact.")
@click.option("--allow", multiple=True, help="Take weaker evidence too: interpreted.")
@click.option("--layers", type=click.IntRange(1), help="Layers with a cache: adds its size, and what of it fits.")
@click.option(
    "--weights-gb",
    type=Finite(0, 1e6),
    help="GB of the card that the weights take, with --layers or --model. Default: 0.",
)
@click.option(
    "--model",
    metavar="FOLDER",
    type=NamedPath(path_type=Path),
    help="A Hugging Face model's folder: answers for each group of its layers, as its config.json describes them.",
)
@click.option("--text-only", is_flag=True, help="With --model: leave out what only images need.")
@click.option(
    "--explain",
    is_flag=True,
    help="Show each op's variant, evidence and launch parameters, each decision, and what no tuned entry serves.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document, schema 1.")
def select(
    model: Path | None,
    text_only: bool,
    layers: int | None,
    weights_gb: float | None,
    explain: bool,
    as_json: bool,
    features: tuple[str, ...],
    allow: tuple[str, ...],
    **asked: Any,
) -> int:
    """Choose the kernel variants for a device and a head size, and say why.

    With --model the head size, heads, features and layers are the model's. Ends with 3 when the mode that --mode
    names, or every mode, is refused; for a model, when some group of its layers has no mode.
    """
    asked |= {"features": features or None, "allow": allow}
    if model is not None:
        return _model(model, text_only, layers, weights_gb or 0.0, explain, as_json, asked)
    if text_only:
        raise click.UsageError("--text-only is a matter of --model")
    if weights_gb is not None and layers is None:
        raise click.UsageError("--weights-gb is taken off what the cache may fill; add --layers N, or --model FOLDER")
    if asked["head_size"] is None:
        raise click.UsageError("missing option '--head-size', or --model FOLDER that says it")
    answer = asking.ask(asked.pop("device"), asked.pop("mode"), asked.pop("head_size"), **asked)
    sizes = None
    if layers is not None:
        from kvreg.core.sizing import GB, sizes_of  # a plain answer does without

        sizes = sizes_of(answer, layers, int((weights_gb or 0.0) * GB))
    missed = _missed(answer) if explain else {}
    if as_json:
        render.document(documents.selection(answer, sizes, missed))
    else:
        answers.show(answer, explain=explain, sizes=sizes, missed=missed)
    return 0 if any(result.verdict == "selected" for result in answer.results) else REFUSED


def _missed(answer: Selection) -> dict[str, tuple[Miss, ...]]:
    """Return, by mode, what was looked for among tuned entries in vain."""
    from kvreg.core.index import Index
    from kvreg.core.tuned_misses import misses  # reads every tuned entry of the device and its kin

    return misses(answer, Index.open())


def _model(
    model: Path,
    text_only: bool,
    layers: int | None,
    weights_gb: float,
    explain: bool,
    as_json: bool,
    asked: dict[str, Any],
) -> int:
    """Answer for a whole model; what its config.json says must not be said again."""
    told = {**asked, "layers": layers}
    for name in _FROM_THE_MODEL:
        if told[name] is not None:
            raise click.UsageError(
                f"--{name.replace('_', '-')} is the model's own; leave it out, or leave --model out"
            )
    from kvreg.cli import model_answers  # a plain answer does without these
    from kvreg.core.model_asking import ask_model
    from kvreg.core.sizing import GB

    words = {name: value for name, value in asked.items() if name not in (*_FROM_THE_MODEL, "device", "mode")}
    answer = ask_model(
        asked["device"], model, asked["mode"], text_only=text_only, weights_bytes=int(weights_gb * GB), **words
    )
    groups = [Selection(answer.resolution, each.request, each.results) for each in answer.groups]
    missed = [_missed(each) for each in groups] if explain else []
    if as_json:
        render.document(documents.model(answer, missed))
    else:
        model_answers.show(answer, explain=explain, missed=missed)
    return 0 if answer.served else REFUSED
