"""Reading and writing of array files."""

from __future__ import annotations

import os
import pickle
import resource
import signal
import socket
import struct
import subprocess
import sys
import textwrap
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from approxkmv.files import checked_output, read_array, read_text, write_array


def npy_bytes(shape: str, descr: str = "<f4", data: bytes = b"") -> bytes:
    """Return a version 1.0 file whose header says what it is told to say."""
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data


class Trap:
    """Unpickling this makes a file appear: what must never happen."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("dtype", ["f4", "f8", ">f8", "f2", "i4", "u1", "?"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3), (0, 5), (2, 3, 4)])
@pytest.mark.parametrize("memory_map", [False, True])
def test_npy_is_read_as_numpy_reads_it(
    tmp_path: Path, dtype: str, shape: tuple[int, ...], memory_map: bool
) -> None:
    """Values, type, shape and order agree with ``np.load`` for C and Fortran order."""
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    for order in (np.ascontiguousarray, np.asfortranarray):
        stored = order(array) if shape else array
        np.save(tmp_path / "a.npy", stored)
        found = read_array(tmp_path / "a.npy", memory_map=memory_map)
        assert found.dtype == stored.dtype
        assert found.shape == shape
        assert found.flags.f_contiguous == stored.flags.f_contiguous
        np.testing.assert_array_equal(found, stored)


def test_memory_map_does_not_read_the_file(tmp_path: Path) -> None:
    """A sparse file far larger than the memory is mapped, and one entry of it can be read."""
    n = 2**36  # 256 GiB of float32
    path = tmp_path / "large.npy"
    path.write_bytes(npy_bytes(f"({n},)"))
    try:
        os.truncate(path, path.stat().st_size + 4 * n)
    except OSError as error:
        pytest.fail(f"the file system has no sparse files: {error}")
    mapped = read_array(path, memory_map=True)
    assert isinstance(mapped, np.memmap)
    assert mapped.shape == (n,)
    assert mapped[n // 2] == 0
    assert not mapped.flags.writeable


@pytest.mark.parametrize("missing", [1, 3, 4, 400, -1, -400])
def test_truncated_npy_is_refused(tmp_path: Path, missing: int) -> None:
    """Cut anywhere in the data, or with data left over, the message gives both sizes."""
    path = tmp_path / "a.npy"
    np.save(path, np.zeros(100, np.float32))
    path.write_bytes((path.read_bytes() + bytes(400))[: -400 - missing or None])
    for memory_map in (False, True):
        with pytest.raises(ValueError, match=f"promises 400 bytes.* {400 - missing} are there"):
            read_array(path, memory_map=memory_map)


@pytest.mark.parametrize("kept", [0, 3, 6, 8, 9, 10, 40, 100])
def test_truncated_header_is_refused(tmp_path: Path, kept: int) -> None:
    """Cut anywhere in the header, the file is called unreadable."""
    path = tmp_path / "a.npy"
    path.write_bytes(npy_bytes("(1,)", data=bytes(4))[:kept])
    with pytest.raises(ValueError, match=r"a\.npy: not a readable \.npy file"):
        read_array(path)


@pytest.mark.parametrize(
    "shape", ["(64000000000000,)", "(9223372036854775807, 9223372036854775807)", "(2**62,)"]
)
def test_lying_header_is_refused_before_allocation(tmp_path: Path, shape: str) -> None:
    """A header claiming 233 TiB or more costs no memory: the file is compared with it first."""
    path = tmp_path / "a.npy"
    path.write_bytes(npy_bytes(shape, data=bytes(64)))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match=r"promises|not a readable"):
        read_array(path)
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.write(path, "a.npy")
    with pytest.raises(ValueError, match=r"promises|not a readable"):
        read_array(tmp_path / "a.npz")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # kB


@pytest.mark.parametrize("shape", ["(-1,)", "(True,)", "(0, 99999999999999999999)", "'ab'", "4"])
def test_impossible_shapes_are_refused(tmp_path: Path, shape: str) -> None:
    """Negative, boolean, too long and non-tuple shapes end in a ValueError."""
    path = tmp_path / "a.npy"
    path.write_bytes(npy_bytes(shape))
    with pytest.raises(ValueError, match=r"impossible shape|not a readable"):
        read_array(path)


def test_header_is_never_evaluated(tmp_path: Path) -> None:
    """An expression in the header is not run."""
    path = tmp_path / "a.npy"
    path.write_bytes(npy_bytes(f"__import__('os').mkdir('{tmp_path / 'ran'}')"))
    with pytest.raises(ValueError, match="not a readable"):
        read_array(path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("memory_map", [False, True])
def test_object_arrays_do_not_run(tmp_path: Path, memory_map: bool) -> None:
    """An array of objects is refused and its ``__reduce__`` does not run, in .npy and .npz."""
    trap = np.array([Trap(tmp_path / "ran")], dtype=object)
    np.save(tmp_path / "a.npy", trap, allow_pickle=True)
    np.savez(tmp_path / "a.npz", trap=trap)
    for source in ("a.npy", "a.npz:trap"):
        with pytest.raises(ValueError, match="expected real numbers, got the type object"):
            read_array(tmp_path / source, memory_map=memory_map)
    assert not (tmp_path / "ran").exists()
    np.load(tmp_path / "a.npy", allow_pickle=True)  # the trap works: pickle would have run it
    assert (tmp_path / "ran").exists()


def test_bare_pickle_does_not_run(tmp_path: Path) -> None:
    """A pickle under the name of an array file, which ``np.load`` would once run, is refused."""
    for name in ("a.npy", "a.npz", "a.safetensors"):
        (tmp_path / name).write_bytes(pickle.dumps(Trap(tmp_path / "ran")))
        with pytest.raises(ValueError, match="not a readable"):
            read_array(tmp_path / name)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("dtype", ["c16", "U3", "S3", "M8[s]", [("a", "f4")]])
def test_other_types_are_refused(tmp_path: Path, dtype: Any) -> None:
    """Complex numbers, text, dates and structures are not real numbers."""
    np.save(tmp_path / "a.npy", np.zeros(2, dtype))
    with pytest.raises(ValueError, match="expected real numbers, got the type"):
        read_array(tmp_path / "a.npy")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_members(tmp_path: Path, save: Any) -> None:
    """A member is read by name; the name may be left out when there is one."""
    q = np.asfortranarray(np.random.default_rng(0).random((40, 30)))
    empty = np.zeros((0, 4), np.float32)
    save(tmp_path / "two.npz", q=q, empty=empty)
    save(tmp_path / "one.npz", q=q)
    np.testing.assert_array_equal(read_array(tmp_path / "two.npz:q"), q)
    np.testing.assert_array_equal(read_array(tmp_path / "one.npz"), q)
    assert read_array(str(tmp_path / "two.npz:empty")).shape == (0, 4)
    with pytest.raises(ValueError, match=r"holds 2 arrays; say which, as in two\.npz:name \(emp"):
        read_array(tmp_path / "two.npz")
    with pytest.raises(ValueError, match="holds no array 'v'; it has: empty, q"):
        read_array(tmp_path / "two.npz:v")


def test_npz_member_outside_is_only_a_name(tmp_path: Path) -> None:
    """A member called ``../../x`` is read from the archive; no path is followed."""
    np.save(tmp_path / "a.npy", np.ones(3))
    inside = tmp_path / "inner" / "inner"
    inside.mkdir(parents=True)
    with zipfile.ZipFile(inside / "a.npz", "w") as archive:
        archive.write(tmp_path / "a.npy", "../../x.npy")
    np.testing.assert_array_equal(read_array(inside / "a.npz:../../x"), np.ones(3))
    assert not (tmp_path / "x.npy").exists()


def test_zip_bomb_is_refused(tmp_path: Path) -> None:
    """300 MB of zeros packed into 0.3 MB are refused by ratio, unread; 200 MB are allowed."""
    for megabytes, refused in ((300, True), (200, False)):
        with (
            zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive,
            archive.open("a.npy", "w") as member,
        ):
            member.write(npy_bytes(f"({megabytes * 2**18},)"))
            for _ in range(megabytes):
                member.write(bytes(2**20))
        if refused:
            with pytest.raises(ValueError, match=r"would unpack into .* more than the"):
                read_array(tmp_path / "a.npz")
        else:
            assert read_array(tmp_path / "a.npz").shape == (megabytes * 2**18,)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_damaged_npz_is_an_error_or_unharmed(tmp_path: Path, save: Any) -> None:
    """Any byte flipped in a small .npz gives the right array or a ValueError, nothing else."""
    array = np.arange(12.0)
    save(tmp_path / "a.npz", a=array)
    data = bytearray((tmp_path / "a.npz").read_bytes())
    refused = 0
    for position in range(len(data)):
        broken = data.copy()
        broken[position] ^= 0xFF
        (tmp_path / "b.npz").write_bytes(broken)
        try:
            np.testing.assert_array_equal(read_array(tmp_path / "b.npz"), array)
        except ValueError:
            refused += 1
    assert refused > len(data) / 4


def test_safetensors(tmp_path: Path) -> None:
    """Tensors are read by name and keep their type."""
    tensors: dict[str, np.ndarray[Any, Any]] = {
        "q": np.random.default_rng(0).random((4, 3)),
        "n": np.arange(3, dtype=np.int8),
    }
    safetensors.numpy.save_file(tensors, tmp_path / "a.safetensors")
    for name, array in tensors.items():
        found = read_array(tmp_path / f"a.safetensors:{name}")
        assert found.dtype == array.dtype
        np.testing.assert_array_equal(found, array)
    with pytest.raises(ValueError, match="holds no array 'k'; it has: n, q"):
        read_array(tmp_path / "a.safetensors:k")


def raw_safetensors(dtype: str, shape: list[int], data: bytes, end: int | None = None) -> bytes:
    """Return a safetensors file with one tensor ``t``, laid out as its specification says."""
    offsets = [0, len(data) if end is None else end]
    header = f'{{"t":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}'.encode()
    return struct.pack("<Q", len(header)) + header + data


def test_bfloat16_becomes_float32(tmp_path: Path) -> None:
    """bfloat16 is float32 without its lower 16 bits, so short fractions come back exactly."""
    values = np.array([[1.0, -2.5, 0.15625], [3.0, np.inf, 2.0**-130]], np.float32)
    upper = (values.view(np.uint32) >> 16).astype("<u2")
    path = tmp_path / "a.safetensors"
    path.write_bytes(raw_safetensors("BF16", [2, 3], upper.tobytes()))
    found = read_array(path)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, values)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a readable"),
        (raw_safetensors("F32", [2], bytes(8))[:-1], "not a readable"),
        (raw_safetensors("F32", [64_000_000_000_000], bytes(8), 2**48), "not a readable"),
        (struct.pack("<Q", 2**60) + b"{}", "not a readable"),
        (raw_safetensors("C64", [1], bytes(8)), "expected real numbers, got the type C64"),
        (raw_safetensors("F8_E4M3", [1], bytes(1)), "expected real numbers, got the type F8_E4M3"),
    ],
)
def test_bad_safetensors_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    """Truncated, lying and non-real files end in a ValueError with the file's name."""
    path = tmp_path / "a.safetensors"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"a\.safetensors.*{message}"):
        read_array(path)


def test_missing_safetensors_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the package the message says what to install."""
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(ImportError, match="pip install safetensors"):
        read_array(tmp_path / "a.safetensors")


@pytest.mark.parametrize("name", ["a.npy", "a.npz", "a.safetensors", "a.npz:x"])
def test_missing_files(tmp_path: Path, name: str) -> None:
    """A file that is not there is a FileNotFoundError in every format."""
    with pytest.raises(FileNotFoundError, match=r"a\."):
        read_array(tmp_path / name)


@pytest.mark.parametrize("name", ["a.txt", "a", "a.npy.gz"])
def test_other_formats_are_refused(tmp_path: Path, name: str) -> None:
    """Only five formats are read, and the message lists them."""
    with pytest.raises(
        ValueError, match=r"expected a \.npy, \.npz, \.safetensors, \.csv or \.parquet"
    ):
        read_array(tmp_path / name)


def test_member_of_npy_is_refused(tmp_path: Path) -> None:
    """``file.npy:name`` has no meaning."""
    with pytest.raises(ValueError, match="holds one array; leave out ':x'"):
        read_array(tmp_path / "a.npy:x")


def test_write_and_read_back(tmp_path: Path) -> None:
    """What is written is what NumPy reads; an old file is replaced and nothing else is left."""
    path = tmp_path / "y.npy"
    for array in (np.arange(5.0), np.asfortranarray(np.ones((3, 2), np.float32))):
        write_array(path, array)
        found = np.load(path)
        assert found.dtype == array.dtype
        np.testing.assert_array_equal(found, array)
    assert [entry.name for entry in tmp_path.iterdir()] == ["y.npy"]


def test_written_file_obeys_the_umask(tmp_path: Path) -> None:
    """Others may read the result, as with any other program (a private temporary may not stay)."""
    old = os.umask(0o022)
    try:
        write_array(tmp_path / "y.npy", np.ones(1))
    finally:
        os.umask(old)
    assert (tmp_path / "y.npy").stat().st_mode & 0o777 == 0o644


def test_objects_are_not_written(tmp_path: Path) -> None:
    """Objects would need pickle; the old file stays and the temporary file goes."""
    write_array(tmp_path / "y.npy", np.ones(2))
    with pytest.raises(ValueError, match="allow_pickle"):
        write_array(tmp_path / "y.npy", np.array([object()]))
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), np.ones(2))
    assert [entry.name for entry in tmp_path.iterdir()] == ["y.npy"]


def test_symbolic_link_is_followed(tmp_path: Path) -> None:
    """Writing through a link replaces the file it points to, not the link."""
    write_array(tmp_path / "y.npy", np.ones(2))
    (tmp_path / "link.npy").symlink_to("y.npy")
    write_array(tmp_path / "link.npy", np.zeros(2))
    assert (tmp_path / "link.npy").is_symlink()
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), np.zeros(2))


def test_unusable_outputs_are_refused(tmp_path: Path) -> None:
    """A device is never replaced; a wrong ending and a missing folder are said before any work."""
    os.mkfifo(tmp_path / "pipe.npy")
    with pytest.raises(ValueError, match="not an ordinary file"):
        checked_output(tmp_path / "pipe.npy")
    with pytest.raises(ValueError, match=r"must end in \.npy"):
        checked_output("/dev/null")
    with pytest.raises(ValueError, match=r"the folder .* does not exist"):
        checked_output(tmp_path / "none" / "y.npy")


def run_child(code: str, *arguments: object) -> subprocess.Popen[str]:
    """Start a Python process that runs `code`."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
    )


def test_kill_during_save_keeps_the_old_file(tmp_path: Path) -> None:
    """A process killed after writing all data and before the replacement leaves the old file."""
    path = tmp_path / "y.npy"
    write_array(path, np.ones(3))
    child = run_child(
        """
        import os, sys, time
        import numpy as np
        from approxkmv.files import write_array

        def stop(descriptor):
            print("written", flush=True)
            time.sleep(60)

        os.fsync = stop
        write_array(sys.argv[1], np.zeros(100_000))
        """,
        path,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "written\n"
    child.send_signal(signal.SIGKILL)
    child.wait(timeout=30)
    np.testing.assert_array_equal(np.load(path), np.ones(3))
    assert max(entry.stat().st_size for entry in tmp_path.iterdir()) > 800_000  # it had written


def test_full_disk_keeps_the_old_file(tmp_path: Path) -> None:
    """When the data do not fit (a file size limit here), the old file stays and no part is left."""
    path = tmp_path / "y.npy"
    write_array(path, np.ones(3))
    child = run_child(
        """
        import resource, sys
        import numpy as np
        from approxkmv.files import write_array

        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        try:
            write_array(sys.argv[1], np.zeros(100_000))
        except OSError:
            print("refused", flush=True)
        """,
        path,
    )
    assert child.communicate(timeout=60)[0] == "refused\n"
    np.testing.assert_array_equal(np.load(path), np.ones(3))
    assert [entry.name for entry in tmp_path.iterdir()] == ["y.npy"]


@pytest.mark.parametrize("name", ["a.npy", "a.npz", "a.npz:x", "a.safetensors", "a.safetensors:x"])
@pytest.mark.parametrize("kind", ["fifo", "device", "folder", "socket"])
def test_only_ordinary_files_are_read(tmp_path: Path, name: str, kind: str) -> None:
    """A FIFO would wait for a writer and ``/dev/zero`` never ends: both are refused at once."""
    path = tmp_path / name.partition(":")[0]
    make_other_file(path, kind)
    with pytest.raises(ValueError, match="is not an ordinary file"):
        read_array(tmp_path / name)


@pytest.mark.parametrize("kind", ["fifo", "device", "folder", "socket"])
def test_only_ordinary_files_are_read_as_text(tmp_path: Path, kind: str) -> None:
    make_other_file(tmp_path / "a.txt", kind)
    with pytest.raises(ValueError, match=r"a\.txt: is not an ordinary file"):
        read_text(tmp_path / "a.txt")


def make_other_file(path: Path, kind: str) -> None:
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    else:
        before = Path.cwd()
        os.chdir(path.parent)  # the address of a socket may have 100 characters only
        try:
            with socket.socket(socket.AF_UNIX) as made:
                made.bind(path.name)
        finally:
            os.chdir(before)


def test_text_of_another_encoding_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("naïve".encode("latin-1"))
    with pytest.raises(ValueError, match=r"a\.txt: not text in UTF-8"):
        read_text(tmp_path / "a.txt")


@pytest.mark.parametrize("length", [10_001, 2**31, 2**32 - 1])
def test_header_that_claims_to_be_long_is_refused_before_allocation(
    tmp_path: Path, length: int
) -> None:
    """Version 2.0 has four bytes for the length of its header; 4 GiB of it are never made room."""
    path = tmp_path / "a.npy"
    path.write_bytes(b"\x93NUMPY\x02\x00" + struct.pack("<I", length) + bytes(20_000))
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.write(path, "a.npy")
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**28, hard))
    try:
        for source in (path, tmp_path / "a.npz"):
            with pytest.raises(ValueError, match="its header is too long"):
                read_array(source)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.mark.parametrize(
    "shape", [[1] * 33, [1] * 3000, [0, 2**62, 2**62]], ids=["33 axes", "3000 axes", "empty"]
)
@pytest.mark.parametrize("kind", ["npy", "npz", "F32", "BF16"])
def test_shapes_beyond_numpy_are_refused(tmp_path: Path, shape: list[int], kind: str) -> None:
    """More axes than NumPy has, or an empty array of impossible length, in every format."""
    size = {"F32": 4, "BF16": 2}.get(kind, 4) * int(0 not in shape)
    if kind in ("npy", "npz"):
        path = tmp_path / f"a.{kind}"
        content = npy_bytes(str(tuple(shape)), data=bytes(size))
        (tmp_path / "a.npy").write_bytes(content)
        if kind == "npz":
            with zipfile.ZipFile(path, "w") as archive:
                archive.write(tmp_path / "a.npy", "a.npy")
    else:
        path = tmp_path / "a.safetensors"
        path.write_bytes(raw_safetensors(kind, shape, bytes(size)))
    with pytest.raises(ValueError, match=r"/a\..*: the header gives the impossible shape") as found:
        read_array(path)
    assert len(str(found.value)) < len(str(path)) + 150


def safetensors_bytes(header: bytes, data: bytes) -> bytes:
    return struct.pack("<Q", len(header)) + header + data


def _tensor(begin: int, end: int, shape: str = "[2]") -> str:
    return f'{{"dtype":"F32","shape":{shape},"data_offsets":[{begin},{end}]}}'


@pytest.mark.parametrize(
    ("header", "n_bytes"),
    [
        (f'{{"a":{_tensor(0, 8)},"a":{_tensor(0, 4, "[1]")}}}', 8),
        (f'{{"a":{_tensor(0, 4, "[1]")},"a":{_tensor(0, 8)}}}', 8),
        (f'{{"a":{_tensor(0, 8)},"b":{_tensor(4, 12)}}}', 12),
        (f'{{"a":{_tensor(0, 8)},"b":{_tensor(0, 8)}}}', 8),
        (f'{{"a":{_tensor(0, 8)},"b":{_tensor(12, 20)}}}', 20),
        (f'{{"a":{_tensor(8, 0)}}}', 8),
        (f'{{"a":{_tensor(0, 8, "[-2]")}}}', 8),
        (f'{{"a":{_tensor(0, 8, "[1099511627776, 1099511627776]")}}}', 8),
        ("[1, 2]", 0),
        ("[" * 100_000, 0),
        ('{"a": 3}', 0),
        ("{not json", 0),
    ],
)
def test_lying_safetensors_headers_are_refused(tmp_path: Path, header: str, n_bytes: int) -> None:
    """A name twice, tensors over each other or with a gap between, impossible shapes, no table."""
    path = tmp_path / "a.safetensors"
    path.write_bytes(safetensors_bytes(header.encode(), bytes(n_bytes)))
    for source in (path, tmp_path / "a.safetensors:a"):
        with pytest.raises(ValueError, match=r"a\.safetensors: not a readable"):
            read_array(source)


def damaged_headers() -> list[bytes]:
    """Whole files with one or two bytes of the header changed, or a piece left out."""
    rng = np.random.default_rng(3)
    whole = npy_bytes("(3, 2)", "<f8", bytes(48))
    damaged = []
    for _ in range(1000):
        content = bytearray(whole)
        for at in rng.integers(10, 60, rng.integers(1, 3)):
            content[at] = (
                rng.integers(256) if rng.random() < 0.5 else rng.choice(list(b"({['\\0L,"))
            )
        if rng.random() < 0.3:
            first = int(rng.integers(10, 60))
            content[first : first + 9] = b" " * 9
        damaged.append(bytes(content))
    return damaged


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_damaged_headers_are_one_line_and_no_warning(tmp_path: Path, suffix: str) -> None:
    """Whatever a header holds, the answer is the numbers or a ValueError that names the file."""
    messages = []
    path = tmp_path / f"a{suffix}"
    for content in damaged_headers():
        if suffix == ".npz":
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr("x.npy", content)
        else:
            path.write_bytes(content)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                assert read_array(path).nbytes == 48, content
            except ValueError as error:
                messages.append(str(error))
    assert len(messages) > 500
    assert [m for m in messages if "\n" in m or not m.startswith(str(path))] == []


@pytest.mark.parametrize(
    "header",
    [
        "{'shape': (3L, 2L), 'fortran_order': False, 'descr': '<f8'}",
        '{"descr":"<f8","fortran_order":False,"shape":(3,2)}\n',
        " {'descr': 'f8', 'fortran_order': False, 'shape': ( 3 , 2 , ) , } ",
    ],
)
def test_headers_of_other_writers(tmp_path: Path, header: str) -> None:
    """Python 2, and libraries that write the table in their own order and quotes."""
    numbers = np.arange(6.0).reshape(3, 2)
    content = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode()
    (tmp_path / "a.npy").write_bytes(content + numbers.tobytes())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(read_array(tmp_path / "a.npy"), numbers)


def test_masked_entries_are_not_written(tmp_path: Path) -> None:
    """A mask cannot be stored; where nothing is masked the numbers are."""
    path = tmp_path / "a.npy"
    with pytest.raises(ValueError, match=r"array must have no masked entries, but array\[1\]"):
        write_array(path, np.ma.masked_array([1.0, 2.0], [False, True]))
    assert list(tmp_path.iterdir()) == []
    write_array(path, np.ma.masked_array([1.0, 2.0], [False, False]))
    np.testing.assert_array_equal(read_array(path), [1.0, 2.0])
