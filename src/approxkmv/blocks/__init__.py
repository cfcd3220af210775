"""Products cut into blocks of queries and keys: what is shared by clusters and by runs from files.

Read ``product.py`` first: one block. ``keyside.py`` is what its key chunk brings, ``combine.py``
what the errors of all blocks add up to, ``rows.py`` how rows are read from files.
"""

from approxkmv.blocks.combine import combine_infos as combine_infos
from approxkmv.blocks.keyside import KeySide as KeySide
from approxkmv.blocks.keyside import key_side as key_side
from approxkmv.blocks.product import Block as Block
from approxkmv.blocks.product import BlockInfo as BlockInfo
from approxkmv.blocks.product import Request as Request
from approxkmv.blocks.product import entropy_of as entropy_of
from approxkmv.blocks.product import kernel_block as kernel_block
from approxkmv.blocks.product import kernel_sum as kernel_sum
from approxkmv.blocks.rows import FileRows as FileRows
from approxkmv.blocks.rows import as_rows as as_rows
