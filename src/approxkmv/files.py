"""Arrays in files: ``.npy``, ``.npz``, ``.safetensors``, ``.csv``, ``.parquet`` in, ``.npy`` out.

Never pickle.

What a file says about itself is compared with what the file is before anything is allocated, so a
broken or hostile file costs one line of error and no memory.
"""

from __future__ import annotations

import json
import math
import os
import re
import secrets
import stat
import struct
import sys
import textwrap
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from approxkmv._check import plain

Array = npt.NDArray[Any]
PathLike = str | os.PathLike[str]

# A member of a zip file may be this large, or this many times its compressed size. Floating-point
# data compress 1.1 to 10 times; 10 MB of zeros made to unpack into 10 GB is refused.
_FREE_BYTES = 256 * 2**20
_LARGEST_RATIO = 100
_LONGEST_HEADER = 10_000  # bytes of a .npy header, NumPy's own limit; ours have 128
_LONGEST_TABLE = 100_000_000  # bytes of a .safetensors header, the limit of its specification
# A damaged archive makes zipfile raise any of these, OSError by seeking before the start.
_DAMAGE = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, RuntimeError, OSError)
_LONGEST_LINE = 10_000_000  # bytes of the first line of a .csv file
_MOST_AXES = 32  # NumPy 1 has no more
# One entry of the table in a .npy header: a word, a text, a tuple or a list of tuples.
_ENTRY = re.compile(
    r"""\s*(?P<q>['"])(?P<key>\w+)(?P=q)\s*:\s*"""
    r"""(?P<value>\w+|'[^']*'|"[^"]*"|\([^()]*\)|\[[^\[\]]*\])\s*(?:,\s*|$)"""
)
# Python 2 wrote long integers with an L.
_SHAPE = re.compile(r"\((?:\s*-?\d{1,25}L?\s*,)*(?:\s*-?\d{1,25}L?)?\s*\)", re.ASCII)


def read_array(source: PathLike, *, memory_map: bool = False) -> Array:
    """Read one array of real numbers from a file.

    Parameters
    ----------
    source : str or path
        ``file.npy``, ``file.npz:name`` or ``file.safetensors:name``. The name may be left out
        when the file holds one array. Or a table, ``file.csv`` or ``file.parquet``: all its
        columns, or those of ``file.csv:height,weight``; a single name gives one dimension. A first
        line of a ``.csv`` file that is not all numbers is taken for names.
    memory_map : bool
        Map a ``.npy`` file read-only instead of reading it. The other formats are always read.

    Returns
    -------
    ndarray
        The array, in the type it was stored in; bfloat16 becomes float32.

    Raises
    ------
    ValueError
        The file is truncated, lies about its size, holds something else than real numbers, or
        has no array of that name.
    FileNotFoundError
        There is no such file.
    ImportError
        A ``.safetensors`` or ``.parquet`` file was given and the package ``safetensors`` or
        ``pyarrow`` is not installed.

    Examples
    --------
    >>> import tempfile, os
    >>> import numpy as np
    >>> from approxkmv.files import read_array, write_array
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "x.npy")
    ...     write_array(path, np.arange(3.0))
    ...     read_array(path)
    array([0., 1., 2.])
    """
    path, member = _split(source)
    suffix = path.suffix.lower()
    if suffix == ".npy":
        return _read_npy(path, memory_map)
    if suffix == ".npz":
        return _read_npz(path, member)
    if suffix == ".safetensors":
        return _read_safetensors(path, member)
    if suffix == ".csv":
        return _read_csv(path, member)
    if suffix == ".parquet":
        return _read_parquet(path, member)
    raise ValueError(
        f"{path}: expected a .npy, .npz, .safetensors, .csv or .parquet file, "
        f"got {suffix or 'none'}"
    )


def write_array(path: PathLike, array: Array) -> None:
    """Write a ``.npy`` file so that a reader sees the old file or the new one, never a part.

    The data go to a temporary file in the same folder, reach the disk, and take the place of the
    old file in one step.

    Parameters
    ----------
    path : str or path
        Where to write; the name must end in ``.npy``.
    array : ndarray
        Numbers of any shape; an array of Python objects, or with masked entries, is refused.

    Examples
    --------
    See :func:`read_array`.
    """
    target = checked_output(path)
    content = np.asarray(plain(array, "array"))

    def write(file: IO[bytes]) -> None:
        np.lib.format.write_array(file, content, allow_pickle=False)

    _replace(target, write)


def write_arrays(path: PathLike, arrays: Mapping[str, Array]) -> None:
    """Write several arrays to a ``.npz`` file, in one step as :func:`write_array` does.

    Parameters
    ----------
    path : str or path
        Where to write; the name must end in ``.npz``.
    arrays : mapping
        Numbers of any shape, by name.

    Examples
    --------
    >>> import os, tempfile
    >>> import numpy as np
    >>> from approxkmv.files import array_names, read_array, write_arrays
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "data.npz")
    ...     write_arrays(path, {"x": np.arange(3.0), "y": np.ones(2)})
    ...     print(array_names(path), read_array(f"{path}:y"))
    ['x', 'y'] [1. 1.]
    """
    target = checked_output(path, ".npz")
    content = {name: np.asarray(plain(array, name)) for name, array in arrays.items()}

    def write(file: IO[bytes]) -> None:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            for name, array in content.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)

    _replace(target, write)


def array_names(path: PathLike) -> list[str]:
    """Names of the arrays in a ``.npz`` file, in the order of the file.

    Examples
    --------
    See :func:`write_arrays`.
    """
    with open_regular(path) as raw:
        try:
            with zipfile.ZipFile(raw) as archive:
                return [name.removesuffix(".npy") for name in archive.namelist()]
        except _DAMAGE as error:
            raise ValueError(f"{path}: not a readable .npz file ({error})") from error


def write_text(path: PathLike, text: str, suffix: str) -> None:
    """Write a file of UTF-8 text in one step, as :func:`write_array` does; checks its suffix.

    Examples
    --------
    >>> import os, tempfile
    >>> from approxkmv.files import write_text
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_text(os.path.join(folder, "page.html"), "<p>", ".html")
    ...     os.listdir(folder)
    ['page.html']
    """
    _replace(checked_output(path, suffix), lambda file: file.write(text.encode()))


def read_text(path: PathLike, errors: str = "strict") -> str:
    """Read a file of UTF-8 text; what is not an ordinary file is refused.

    Examples
    --------
    >>> import os, tempfile
    >>> from approxkmv.files import read_text, write_text
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_text(os.path.join(folder, "a.txt"), "words", ".txt")
    ...     read_text(os.path.join(folder, "a.txt"))
    'words'
    """
    with open_regular(path) as file:
        content = file.read()
    try:
        return content.decode("utf-8", errors)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not text in UTF-8 ({error})") from error


def open_regular(path: PathLike) -> IO[bytes]:
    """Open an ordinary file to read; a folder, FIFO, socket or device is a ValueError.

    Opening a FIFO would wait for somebody to write to it, and a device may never end.

    Examples
    --------
    >>> from approxkmv.files import open_regular
    >>> open_regular("/dev/null")
    Traceback (most recent call last):
    ValueError: /dev/null: is not an ordinary file
    """
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise ValueError(f"{os.fspath(path)}: is not an ordinary file")
    return open(path, "rb")


def safetensors_header(path: PathLike) -> dict[str, dict[str, Any]]:
    """What a ``.safetensors`` file says about each of its tensors, without its metadata.

    Examples
    --------
    >>> from approxkmv.files import safetensors_header
    >>> safetensors_header("model.safetensors")["embedding"]["shape"]  # doctest: +SKIP
    [30522, 384]
    """
    with open_regular(path) as file:
        length = int.from_bytes(file.read(8), "little")
        if length > min(os.fstat(file.fileno()).st_size - 8, _LONGEST_TABLE):
            raise ValueError(f"{path}: not a readable .safetensors file (header too long)")
        try:
            header = json.loads(file.read(length), object_pairs_hook=_unique)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}: not a readable .safetensors file ({error})") from error
    if not isinstance(header, dict) or not all(isinstance(e, dict) for e in header.values()):
        raise ValueError(f"{path}: not a readable .safetensors file (header is no table)")
    header.pop("__metadata__", None)
    return header


def checked_output(path: PathLike, suffix: str = ".npy") -> Path:
    """Return the file that `path` names after checking that it could be replaced.

    Called before a long computation, so that a misspelt folder is reported at once.
    """
    target = Path(os.path.realpath(path))
    if target.suffix.lower() != suffix:
        raise ValueError(f"{path}: the name of an output file must end in {suffix}")
    if target.exists() and not stat.S_ISREG(target.stat().st_mode):
        raise ValueError(f"{path}: exists and is not an ordinary file")
    if not target.parent.is_dir():
        raise ValueError(f"{path}: the folder {target.parent} does not exist")
    return target


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A table of JSON in which no name stands twice: readers differ in which one they take."""
    table = dict(pairs)
    if len(table) < len(pairs):
        raise ValueError("a name stands twice in its header")
    return table


def _replace(target: Path, write: Callable[[IO[bytes]], object]) -> None:
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
    try:
        with open(temporary, "xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(target.parent)


def _split(source: PathLike) -> tuple[Path, str | None]:
    """Split ``file.npz:name`` into the file and the name."""
    text = os.fspath(source)
    for suffix in (".npz:", ".safetensors:", ".csv:", ".parquet:", ".npy:"):
        position = text.lower().rfind(suffix)
        if position >= 0:
            end = position + len(suffix)
            if suffix == ".npy:":
                raise ValueError(f"{text}: a .npy file holds one array; leave out ':{text[end:]}'")
            return Path(text[: end - 1]), text[end:]
    return Path(text), None


def _read_npy(path: Path, memory_map: bool) -> Array:
    with open_regular(path) as file:
        shape, order, dtype = _npy_header(file, str(path))
        offset = file.tell()
        _check_size(str(path), shape, dtype, os.fstat(file.fileno()).st_size - offset)
        size = math.prod(shape)
        if memory_map and size > 0:  # an empty region cannot be mapped
            return np.memmap(path, dtype, "r", offset, shape, order)
        flat = np.fromfile(file, dtype, size)
    if len(flat) != size:
        raise ValueError(f"{path}: the file changed while it was read")
    return flat.reshape(shape, order=order)


def _read_npz(path: Path, member: str | None) -> Array:
    with open_regular(path) as raw:
        try:
            with zipfile.ZipFile(raw) as archive:
                return _read_member(archive, path, member)
        except _DAMAGE as error:
            raise ValueError(f"{path}: not a readable .npz file ({error})") from error


def _read_member(archive: zipfile.ZipFile, path: Path, member: str | None) -> Array:
    entries = {entry.filename: entry for entry in archive.infolist()}
    name = _chosen(path, [n.removesuffix(".npy") for n in entries], member)
    entry = entries[name if name in entries else name + ".npy"]
    where = f"{path}:{name}"
    if entry.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
        raise ValueError(f"{where}: packed in a way that NumPy does not write")
    allowed = max(_FREE_BYTES, _LARGEST_RATIO * entry.compress_size)
    if entry.file_size > allowed:
        raise ValueError(
            f"{where}: {entry.compress_size} bytes would unpack into {entry.file_size}, "
            f"more than the {allowed} allowed"
        )
    with archive.open(entry) as file:
        shape, order, dtype = _npy_header(file, where)
        _check_size(where, shape, dtype, entry.file_size - file.tell())
        flat = np.empty(math.prod(shape), dtype)
        _fill(file, flat, where)
    return flat.reshape(shape, order=order)


def _fill(file: IO[bytes], flat: Array, where: str) -> None:
    """Read exactly the bytes of `flat`, and find that nothing follows them."""
    buffer = flat.view(np.uint8)
    filled = 0
    while filled < len(buffer):
        chunk = file.read(min(len(buffer) - filled, 2**20))
        if not chunk:
            raise ValueError(f"{where}: truncated, {filled} of {len(buffer)} bytes are there")
        buffer[filled : filled + len(chunk)] = np.frombuffer(chunk, np.uint8)
        filled += len(chunk)
    if file.read(1):
        raise ValueError(f"{where}: more data than its header says")


def _read_safetensors(path: Path, member: str | None) -> Array:
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise ImportError(
            f"{path}: reading .safetensors files needs the package safetensors. "
            "Install it with: pip install safetensors"
        ) from error
    header = safetensors_header(path)
    try:
        # Opening checks the header: sizes, offsets, and that they cover the file without a gap.
        with safe_open(path, framework="np") as tensors:
            name = _chosen(path, list(tensors.keys()), member)
            kind = tensors.get_slice(name).get_dtype()
            _check_shape(f"{path}:{name}", header[name]["shape"], np.dtype(np.float64))
            if kind == "BF16":
                return _read_bfloat16(path, header[name])
            if kind not in {"F64", "F32", "F16", "BOOL"} and kind[0] not in "IU":
                raise ValueError(f"{path}:{name}: expected real numbers, got the type {kind}")
            return np.asarray(tensors.get_tensor(name))
    except SafetensorError as error:
        raise ValueError(f"{path}: not a readable .safetensors file ({error})") from error


def _read_csv(path: Path, member: str | None) -> Array:
    """Numbers between commas, with a line of names or without."""
    with open_regular(path) as file:
        first = file.readline(_LONGEST_LINE).decode("utf-8-sig", "replace")
    if not first.strip():
        raise ValueError(f"{path}: has no first line with numbers or names")
    cells = [cell.strip().strip('"') for cell in first.split(",")]
    has_names = not all(map(_is_number, cells))
    wanted = _wanted(path, cells if has_names else [], member)
    try:
        with open_regular(path) as file:
            found = np.loadtxt(
                file,
                np.float64,
                delimiter=",",
                comments=None,
                quotechar='"',
                skiprows=int(has_names),
                usecols=wanted,
                ndmin=2,
                encoding="utf-8-sig",
            )
    except ValueError as error:
        raise ValueError(f"{path}: not a table of numbers ({error})") from error
    return found[:, 0] if wanted is not None and len(wanted) == 1 else found


def _read_parquet(path: Path, member: str | None) -> Array:
    """Columns of numbers without missing values."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError(
            f"{path}: reading .parquet files needs the package pyarrow. "
            "Install it with: pip install pyarrow"
        ) from error
    with open_regular(path) as file:
        try:
            names = pyarrow.parquet.read_schema(file).names
            wanted = _wanted(path, names, member)
            chosen = names if wanted is None else [names[i] for i in wanted]
            file.seek(0)
            table = pyarrow.parquet.read_table(file, columns=chosen)
        except (pyarrow.ArrowException, OSError) as error:
            raise ValueError(f"{path}: not a readable .parquet file ({error})") from error
    columns = []
    for name in chosen:
        column = table.column(name)
        if column.null_count:
            raise ValueError(f"{path}:{name}: must have no missing values, has {column.null_count}")
        columns.append(column.to_numpy())
        if columns[-1].dtype.kind not in "iuf":
            raise ValueError(f"{path}:{name}: expected real numbers, got {column.type}")
    if not columns:
        raise ValueError(f"{path}: has no columns")
    return columns[0] if wanted is not None and len(wanted) == 1 else np.stack(columns, axis=1)


def _wanted(path: Path, names: Sequence[str], member: str | None) -> list[int] | None:
    """Places of the columns asked for by name; None for all."""
    if member is None:
        return None
    places = []
    for name in member.split(","):
        if name not in names:
            known = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "") or "none"
            raise ValueError(f"{path}: has no column {name!r}; its names are: {known}")
        places.append(list(names).index(name))
    return places


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _read_bfloat16(path: Path, entry: dict[str, Any]) -> Array:
    """Read a bfloat16 tensor, which NumPy has no type for: the upper half of a float32."""
    with open(path, "rb") as file:
        header_bytes = int.from_bytes(file.read(8), "little")
        begin, end = entry["data_offsets"]
        file.seek(8 + header_bytes + begin)
        upper = np.fromfile(file, "<u2", (end - begin) // 2)
    bits: Array = upper.astype(np.uint32) << 16
    shape: list[int] = entry["shape"]
    return bits.view(np.float32).reshape(shape)


def _chosen(path: Path, names: list[str], member: str | None) -> str:
    """Return the array to read: the one asked for, or the only one."""
    listed = ", ".join(sorted(names)[:8]) + (", ..." if len(names) > 8 else "")
    if member is None:
        if len(names) == 1:
            return names[0]
        raise ValueError(
            f"{path}: holds {len(names)} arrays; say which, as in {path.name}:name ({listed})"
        )
    if member not in names:
        raise ValueError(f"{path}: holds no array {member!r}; it has: {listed or 'nothing'}")
    return member


def _npy_header(file: IO[bytes], where: str) -> tuple[tuple[int, ...], Any, np.dtype[Any]]:
    """Read and check the header; returns (shape, order, dtype) and leaves `file` at the data."""
    try:
        version = np.lib.format.read_magic(file)
        # Version 3 exists for structured types with non-Latin names, which are refused anyway.
        if version not in {(1, 0), (2, 0)}:
            raise ValueError(f"format version {version[0]}.{version[1]}")
        length = int.from_bytes(file.read(2 if version == (1, 0) else 4), "little")
        # NumPy would make room for what the length says before it looks at its own limit.
        if length > _LONGEST_HEADER:
            raise ValueError("its header is too long")
        header = file.read(length)
        if len(header) < length:
            raise ValueError("it ends within its header")
        shape, fortran, descr = _parsed(header.decode("latin-1"))
    except ValueError as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{where}: not a readable .npy file ({reason})") from error
    dtype = _number_type(descr, where)
    _check_shape(where, shape, dtype)
    return shape, "F" if fortran else "C", dtype


def _parsed(header: str) -> tuple[tuple[int, ...], bool, str]:
    """Shape, Fortran order and type as written. NumPy's reader raises and warns at random damage.

    Only what describes numbers is understood: Python's parser has warnings of its own.
    """
    table = re.fullmatch(r"\s*\{(.*)\}\s*", header, re.DOTALL)
    entries = list(_ENTRY.finditer(table[1])) if table else []
    found = {entry["key"]: entry["value"] for entry in entries}
    whole = table is not None and "".join(entry[0] for entry in entries) == table[1]
    if not whole or len(entries) != 3 or found.keys() != {"descr", "fortran_order", "shape"}:
        raise ValueError("its header does not give descr, fortran_order and shape")
    shape, order, descr = found["shape"], found["fortran_order"], found["descr"]
    if not _SHAPE.fullmatch(shape) or order not in {"True", "False"}:
        raise ValueError(
            f"its header gives the shape {shape!a:.80} and fortran_order {order!a:.80}"
        )
    lengths = tuple(int(number) for number in re.findall(r"-?\d+", shape))
    return lengths, order == "True", descr.strip("'\"")


def _number_type(descr: str, where: str) -> np.dtype[Any]:
    """The type of real numbers that the header names."""
    try:
        if re.fullmatch(r"[<>=|]?[fiub]\d*|\?", descr):
            return np.dtype(descr)
    except TypeError:  # a size that NumPy does not have
        pass
    shown = "object" if descr == "|O" else ascii(descr)
    raise ValueError(f"{where}: expected real numbers, got the type {shown:.80}")


def _check_shape(where: str, shape: Sequence[int], dtype: np.dtype[Any]) -> None:
    """Refuse what no array can have, also where one length is 0 and no data are promised."""
    lengths = all(not isinstance(n, bool) and 0 <= n <= sys.maxsize for n in shape)
    if not lengths or len(shape) > _MOST_AXES:
        raise ValueError(f"{where}: the header gives the impossible shape {_short(shape)}")
    # Without a 0, a shape that promises too much is told how many bytes are there.
    if 0 in shape and math.prod(max(n, 1) for n in shape) * dtype.itemsize > sys.maxsize:
        raise ValueError(f"{where}: the header gives the impossible shape {_short(shape)}")


def _short(shape: Sequence[int]) -> str:
    return textwrap.shorten(str(tuple(shape)), 80, placeholder=" ...)")


def _check_size(where: str, shape: tuple[int, ...], dtype: np.dtype[Any], there: int) -> None:
    """Compare the bytes the header promises with the bytes that are there."""
    promised = math.prod(shape) * dtype.itemsize
    if promised != there:
        raise ValueError(
            f"{where}: the header promises {promised} bytes of {dtype} in shape {shape}, "
            f"{there} are there"
        )


def sync_folder(folder: Path) -> None:
    """Make the new name itself durable, where folders can be opened (not on Windows)."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
