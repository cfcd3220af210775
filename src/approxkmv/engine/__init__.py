"""The engine: products with a stated error from a small share of the pairs.

One file per stage, in the order data flow: ``order``, ``pilot``, ``near``, ``probability``,
``sample``, ``planner``.
"""
