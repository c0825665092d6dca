"""What users of the wheel do, in a directory of a mount and in one that is on none: check.py DIRECTORY ELSEWHERE. Says "well"; NATIVE=0 does
it without a mount."""
import io
import multiprocessing
import os
import pickle
import sys
import threading

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import stria

directory, NATIVE = sys.argv[1], os.environ.get("NATIVE") != "0"


def at(name):
    return os.path.join(directory, name)


def refused(kind, what):
    try:
        what()
    except kind as e:
        return e
    raise AssertionError(f"{kind} was due")


def files():
    data = os.urandom(3_000_000)
    with stria.open(at("f"), "wb") as f:
        assert isinstance(f, io.BufferedWriter) and f.raw.is_native == NATIVE
        for i in range(0, len(data), 7919):
            f.write(data[i:i + 7919])
    with open(at("f"), "rb") as kernel:
        assert kernel.read() == data
    with stria.open(at("f"), "rb") as f:
        assert f.read(100) == data[:100] and f.tell() == 100
        assert f.seek(-10, 2) == len(data) - 10 and f.read() == data[-10:] and f.read(1) == b""
        assert f.seek(0) == 0 and f.read() == data
    with stria.open(at("f"), "r+b") as f:
        f.seek(10)
        f.write(b"x" * 10)
        f.seek(5)
        assert f.read(20) == data[5:10] + b"x" * 10 + data[20:25]
    with stria.open(at("text"), "w") as f:
        f.write("zwölf\n" * 1000)
    with stria.open(at("text")) as f:
        assert f.readlines() == ["zwölf\n"] * 1000
    with stria.open(at("text"), "ab", buffering=0) as f:
        assert f.tell() == 7000 and f.write(b"end") == 3 and f.tell() == 7003
    assert os.path.getsize(at("text")) == 7003
    with stria.File(at("f"), "r+") as f:
        assert f.truncate(50) == 50 and f.seek(0, 2) == 50 and f.readall() == b"" and f.pread(100, 45) == f.pread(5, 45)
        f.sync()
        f.sync(data_only=True)
        assert f.pwrite(b"end", 100) == 3 and f.pread(3, 100) == b"end"
    refused(ValueError, f.fileno)
    refused(FileNotFoundError, lambda: stria.open(at("nowhere")))
    refused(FileExistsError, lambda: stria.File(at("f"), "x"))
    refused(ValueError, lambda: stria.File(at("f"), "q"))
    with stria.File(at("f")) as f:
        refused(io.UnsupportedOperation, lambda: f.write(b"x"))
        refused(BufferError, lambda: f.readinto(b"not writable"))
        assert refused(OSError, lambda: f.pread(1, -1)).errno == 22
        for wrong in (1 << 63, (1 << 64) + 5, -(1 << 64)):
            for what in (lambda: f.pread(3, wrong), lambda: f.seek(wrong), lambda: f.pread_many([(bytearray(3), wrong)])):
                refused(OverflowError, what)
        refused(TypeError, lambda: f.seek(1.5))
        f.seek((1 << 63) - 1)
        assert refused(OSError, lambda: f.seek(1, 1)).errno == 22 and f.tell() == (1 << 63) - 1 and f.seek(0) == 0
        copy = pickle.loads(pickle.dumps(f))
        assert copy.read(10) == f.read(10)


def names_and_places():
    """What does not fit is refused, and nothing is done instead."""
    with stria.File(at("victim"), "w") as f:
        f.write(b"0123456789")
        refused(OverflowError, lambda: f.pwrite(b"XYZ", (1 << 64) + 5))
    for path in ("victim\0.tmp", "nowhere\0"):
        for mode in ("r", "w", "x"):
            refused(ValueError, lambda: stria.open(at(path), mode))
    refused(ValueError, lambda: stria.File(os.fsencode(at("victim\0")), "w"))
    with open(at("victim"), "rb") as kernel:
        assert kernel.read() == b"0123456789"


def arrays():
    array = np.arange(1_000_000, dtype=np.int64)
    with stria.File(at("array"), "w") as f:
        assert f.write(array) == array.nbytes
    assert (np.fromfile(at("array"), dtype=np.int64) == array).all()
    with stria.File(at("array")) as f:
        into = np.empty_like(array)
        assert f.readinto(into) == array.nbytes and (into == array).all()
        part = np.zeros(1000, dtype=np.int64)
        assert f.pread_into(part[100:200], 8 * 5000) == 800 and (part[100:200] == array[5000:5100]).all() and part[200] == 0
        refused((BufferError, ValueError), lambda: f.pread_into(part[::2], 0))
        f.seek(8 * 10)
        assert (np.fromfile(f, dtype=np.int64, count=5) == array[10:15]).all()
        assert (np.frombuffer(f.pread(80, 800), dtype=np.int64) == array[100:110]).all()
        # More at once than a connection takes.
        pieces = np.empty((100, 4096), dtype=np.uint8)
        offsets = [int(o) for o in np.random.default_rng(5).integers(0, array.nbytes - 4096, 100)]
        assert f.pread_many(zip(pieces, offsets)) == [4096] * 100
        raw = array.view(np.uint8)
        assert all((piece == raw[o:o + 4096]).all() for piece, o in zip(pieces, offsets))
        assert f.pread_many([(bytearray(10), array.nbytes - 4), (bytearray(0), 0)]) == [4, 0]

        # And so do several threads, of which one may find that the others have it all.
        told = []

        def many():
            for _ in range(20):
                told.append(f.pread_many([(bytearray(4096), o) for o in offsets]) == [4096] * 100)

        threads = [threading.Thread(target=many) for _ in range(4)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        assert told == [True] * 80

        def reader(n):
            mine = np.empty(1000, dtype=np.int64)
            for i in range(n, 900, 4):
                f.pread_into(mine, 8000 * i)
                assert (mine == array[1000 * i:1000 * i + 1000]).all()

        threads = [threading.Thread(target=reader, args=(n,)) for n in range(4)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        # Closed amid reads of other threads: each has its bytes, or is told that the file is closed.
        for _ in range(30):
            shared, ended = stria.File(at("array")), []

            def until_closed():
                mine, reads = np.empty(1000, dtype=np.int64), 0
                try:
                    while True:
                        assert shared.pread_into(mine, 8000) == 8000 and (mine == array[1000:2000]).all()
                        counts = shared.pread_many([(bytearray(4096), o) for o in offsets[:8]])
                        assert counts == [4096] * 8
                        reads += 1
                        begun.set()
                except ValueError:
                    ended.append(reads)

            begun = threading.Event()
            threads = [threading.Thread(target=until_closed) for _ in range(3)]
            [t.start() for t in threads]
            begun.wait(60)
            shared.close()
            [t.join() for t in threads]
            assert len(ended) == 3 and shared.closed and max(ended) > 0
            refused(ValueError, shared.fileno)

        # Workers, as data loaders have them: what they inherit goes through the kernel, and is right.
        with multiprocessing.get_context("fork").Pool(2) as pool:
            sums = pool.map(worker, [(f, i) for i in range(10)])
        assert sums == [int(array[1000 * i:1000 * i + 1000].sum()) for i in range(10)]


def worker(of):
    file, i = of
    return int(np.frombuffer(file.pread(8000, 8000 * i), dtype=np.int64).sum())


def tables():
    table = pa.table({"i": list(range(100_000)), "s": [str(i) for i in range(100_000)]})
    with stria.open(at("t.parquet"), "wb") as f:
        pq.write_table(table, f)
    with stria.open(at("t.parquet"), "rb") as f:
        assert pq.read_table(f).equals(table)
    with stria.File(at("t.parquet")) as f:
        assert pq.ParquetFile(f).read(["i"]).equals(table.select(["i"]))


def file_systems():
    fs, root = fsspec.core.url_to_fs("stria://" + directory)
    assert type(fs).__name__ == "StriaFileSystem" and root == directory
    with fsspec.open(f"stria://{directory}/d.txt", "wb") as f:
        assert f.raw.is_native == NATIVE
        f.write(b"0123456789")
    assert fs.cat(at("d.txt")) == b"0123456789" and fs.cat_file(at("d.txt"), 2, 5) == b"234"
    with fs.open(at("d.txt")) as f:
        assert f.size == 10 and f.mode == "rb"
    with fs.open(at("d.txt"), "r+b") as f:
        assert f.size == 10 and f.mode == "r+b"
    with stria.open(at("d.txt")) as f:
        assert f.mode == "r" and f.buffer.raw.mode == "rb"
    for opens in (fs.open, stria.open, stria.File):
        try:
            opens(root)
            raise AssertionError("a directory was opened")
        except IsADirectoryError as e:
            assert e.filename == root
    assert fs.info(at("d.txt"))["size"] == 10 and at("d.txt") in fs.ls(root, detail=False)
    assert fs.unstrip_protocol(at("d.txt")) == "stria://" + at("d.txt")
    fs.mv(at("d.txt"), at("e.txt"))
    assert not fs.exists(at("d.txt")) and fs.glob(f"stria://{directory}/e.*") == [at("e.txt")]
    table = pa.table({"i": list(range(1000))})
    pq.write_table(table, at("two.parquet"), filesystem=fs)
    assert pq.read_table(at("two.parquet"), filesystem=fs).equals(table)
    assert pickle.loads(pickle.dumps(fs)).cat(at("e.txt")) == b"0123456789"


def elsewhere(tmp):
    with stria.open(os.path.join(tmp, "f"), "w+b") as f:
        assert not f.raw.is_native
        f.write(b"through the kernel")
        f.seek(0)
        assert f.read() == b"through the kernel"
        f.raw.pread_many([(bytearray(3), 0)])


for step in (files, names_and_places, arrays, tables, file_systems):
    step()
elsewhere(sys.argv[2])
print("well")
