"""What a SPIR-V module calls, read from its words: DPAS and block loads are imported functions there.

A module is 32-bit words: five of header, then instructions whose first word holds their length (high half) and
opcode. An imported function has its name in a LinkageAttributes decoration, and each use is an OpFunctionCall.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Iterator

MAGIC = 0x07230203
_HEADER_WORDS = 5
_DECORATE, _FUNCTION_CALL = 71, 57
_LINKAGE_ATTRIBUTES = 41

_DPAS = re.compile(r"matrix_mad_k(?P<depth>\d+).*?(?:Dv(?P<rows>\d+)_)?[fi]$")
"""`_Z38intel_sub_group_f16_f16_matrix_mad_k16Dv8_sDv8_iDv8_f`: the last vector is the accumulator, a row each."""
BLOCK_LOAD = "2d_block_read"


def calls(module: bytes) -> Counter[str]:
    """Return how often each imported function is called; raises ValueError for what is no SPIR-V."""
    names: dict[int, str] = {}
    called: Counter[int] = Counter()
    for opcode, operands in instructions(module):
        if opcode == _DECORATE and operands[1] == _LINKAGE_ATTRIBUTES:
            names[operands[0]] = _text(operands[2:])
        elif opcode == _FUNCTION_CALL:
            called[operands[2]] += 1
    return Counter({names[function]: count for function, count in called.items() if function in names})


def instructions(module: bytes) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield (opcode, operand words) of each instruction."""
    if len(module) % 4 or len(module) < 4 * _HEADER_WORDS:
        raise ValueError(f"SPIR-V is whole words after a header of five, found {len(module)} bytes")
    words = struct.unpack(f"<{len(module) // 4}I", module)
    if words[0] != MAGIC:
        raise ValueError(f"SPIR-V begins with {MAGIC:#010x}, found {words[0]:#010x}")
    place = _HEADER_WORDS
    while place < len(words):
        length, opcode = words[place] >> 16, words[place] & 0xFFFF
        if length == 0:
            raise ValueError(f"an instruction of no words at word {place}")
        yield opcode, words[place + 1 : place + length]
        place += length


def dpas(called: Counter[str], columns: int) -> tuple[int, list[str]]:
    """Return how many DPAS a module holds, and their shapes (m8n16k16); `columns` is the sub-group size."""
    found = {name: match for name in called if (match := _DPAS.search(name))}
    shapes = {f"m{match['rows'] or 1}n{columns}k{match['depth']}" for match in found.values()}
    return sum(called[name] for name in found), sorted(shapes)


def _text(words: tuple[int, ...]) -> str:
    return struct.pack(f"<{len(words)}I", *words).partition(b"\0")[0].decode("utf-8", errors="replace")
