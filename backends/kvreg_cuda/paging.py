"""Where the rows of a cache lie: as in kvreg_triton.paging, for tokens that are not negative."""

import triton
import triton.language as tl


@triton.jit
def place_of(page_row, tokens, valid, PAGE: tl.constexpr):
    """Do what kvreg_triton.paging.slots_of does for tokens that are not negative: 3 instructions a token less."""
    token = tokens.to(tl.uint32, bitcast=True)
    page = tl.load(page_row + (token // PAGE).to(tl.int32, bitcast=True), mask=valid, other=0).to(tl.int64)
    return page, (token % PAGE).to(tl.int32, bitcast=True)
