"""The engine: products with a stated error from a small share of the pairs.

One file per stage, in the order data flow: ``order``, ``pilot``, ``sketch``, ``near``,
``probability``, ``forecast``, ``sample``, ``planner``. Beside them ``attention`` with its own order
and rates, and ``density`` with its cells.
"""
