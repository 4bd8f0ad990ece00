"""The fp64 reference that every kernel is judged against; it shares no code with any kernel."""

from kvreg.oracle.attention import PagedRows, PlainRows, Reference, attention, over_cache
from kvreg.oracle.caches import Cache, dequantize, model_rows, store, stored_rows
from kvreg.oracle.quantize import quantize_fp8, quantize_int4, quantize_int8
from kvreg.oracle.rotation import rotate, unrotate
from kvreg.oracle.signs import signs

__all__ = [
    "Cache",
    "PagedRows",
    "PlainRows",
    "Reference",
    "attention",
    "dequantize",
    "model_rows",
    "over_cache",
    "quantize_fp8",
    "quantize_int4",
    "quantize_int8",
    "rotate",
    "signs",
    "store",
    "stored_rows",
    "unrotate",
]
