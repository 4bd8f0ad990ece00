"""The numerical check that validate, the tuner and the tests share."""

from kvreg.gate.attention import check_attention
from kvreg.gate.reports import (
    Failure,
    GateReport,
    RotationReport,
    SequenceResult,
    WriteReport,
    WriteResult,
    write_checks,
)
from kvreg.gate.run import quantization_error, reference_of, run_attention, run_write
from kvreg.gate.write import check_rotation, check_write, snapshot

__all__ = [
    "Failure",
    "GateReport",
    "RotationReport",
    "SequenceResult",
    "WriteReport",
    "WriteResult",
    "check_attention",
    "check_rotation",
    "check_write",
    "quantization_error",
    "reference_of",
    "run_attention",
    "run_write",
    "snapshot",
    "write_checks",
]
