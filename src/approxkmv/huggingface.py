"""Attention for Hugging Face transformers: one call registers it under a name."""

from approxkmv._calibration import Calibration, calibrate
from approxkmv._transformers import EPS, attention_forward, register

__all__ = ["EPS", "Calibration", "attention_forward", "calibrate", "register"]
