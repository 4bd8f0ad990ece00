"""What the stages `tune` and `space` of `ci/gpu` work on: by default int4 decode at head 128, group 4, three buckets.

`--workload bench` is the decodes and writes of `kvreg bench`; a preset, a bucket or a YAML file has head 128, group 4
and 8 KV heads. `--variant` names what is tuned instead of int4 decode, in that order.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvreg.bench import workload as bench
from kvreg.core.buckets import Bucket
from kvreg.core.devices import Device
from kvreg.core.errors import UsageError, wrong
from kvreg.core.modes import Mode
from kvreg.core.requests import Op
from kvreg.core.variants import Variant
from kvreg.validation.gpu.asked import Options
from kvreg_tuning import planning
from kvreg_tuning.spaces import Space
from kvreg_tuning.workloads import Shape, Workload, find

HEAD_SIZE, GROUP, KV_HEADS = 128, 4, 8

SMOKE = Workload("smoke", {Op.WRITE: (Bucket(64, 0),)})
"""On the cpu a decode has nothing to tune, so the path is tried with a write; of bench's several shapes with two."""
SMOKE_HEADS = (64, HEAD_SIZE)


def spaces(options: Options, device: Device) -> tuple[Space, ...]:
    """Return the spaces of a call, by the order of the variants that it names; raises Refused for none."""
    op = _usual_op(options)
    modes, ops = ((), ()) if options.tuned else ([Mode.INT4_PER_TOKEN_HEAD], [op])
    found = planning.spaces_of(device, shapes(options), modes=modes, ops=ops, names=options.tuned)
    place = {name: number for number, name in enumerate(options.tuned)}

    def named(space: Space) -> int:
        full = space.subject.variant
        return min(place.get(full, len(place)), place.get(full.partition("@")[0], len(place)))

    return tuple(sorted(found, key=named))


def shapes(options: Options) -> tuple[Shape, ...]:
    """Return what is tuned for; raises UsageError for a workload that nobody knows."""
    return tuple(shape for word in options.workloads for shape in _shapes_of(word, options))


def _shapes_of(word: str, options: Options) -> Sequence[Shape]:
    if word == bench.NAME and not options.smoke:
        return bench.shapes_to_tune(options.head_sizes)
    heads = SMOKE_HEADS if word == bench.NAME else (HEAD_SIZE,)
    work = SMOKE if options.smoke else find(word, also=(bench.NAME,))
    return tuple(planning.plain_shapes(heads, GROUP, KV_HEADS, "bf16", ("causal",), work))


def require_known(options: Options, variants: Sequence[Variant]) -> None:
    """Raise UsageError for a workload that nobody knows and for a variant that has no part in it."""
    ops = {op for shape in shapes(options) for op in shape.workload.buckets}
    takes_any = not options.smoke
    tuned = [v.id for v in variants if v.op in ops and (takes_any or v.mode is Mode.INT4_PER_TOKEN_HEAD)]
    for name in options.tuned:
        if name not in {word for each in tuned for word in (each.name, str(each))}:
            required = f"one of {', '.join(map(str, tuned)) or 'none here'}"
            raise UsageError(wrong("--variant", required=required, found=repr(name), remedy="take one"))


def _usual_op(options: Options) -> Op:
    return Op.WRITE if options.smoke else Op.DECODE
