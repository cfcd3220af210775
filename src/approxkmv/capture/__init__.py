"""Queries, keys and values of every attention head of a language model, as the model uses them."""

from approxkmv.capture.head import Head, probabilities
from approxkmv.capture.model import LoadedModel, load_model
from approxkmv.capture.run import attention_difference, capture_heads

__all__ = [
    "Head",
    "LoadedModel",
    "attention_difference",
    "capture_heads",
    "load_model",
    "probabilities",
]
