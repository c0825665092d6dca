"""Files of a Stria mount, past the kernel: file objects over libstria.

    with stria.open("/mnt/stria/f", "rb") as f:          # as the built-in open: buffered, text or binary
        f.read(100)
    with stria.File("/mnt/stria/f") as f:                # raw: reads go straight into a buffer that is there
        f.readinto(array); f.pread_into(array, offset)

On files of other file systems the same objects go through the kernel. `stria.fs` is an fsspec file system, `stria://`."""
import ctypes
import errno
import io
import operator
import os
import pathlib
import stat
import threading

__all__ = ["File", "open"]

_BUFFER_BYTES = 1 << 20
_REQUEST_BYTES_MAX = 1 << 20
_OFFSET_MAX = (1 << 63) - 1
_O = {"r": os.O_RDONLY, "w": os.O_WRONLY | os.O_CREAT | os.O_TRUNC, "a": os.O_WRONLY | os.O_CREAT | os.O_APPEND,
      "x": os.O_WRONLY | os.O_CREAT | os.O_EXCL}


class _Buffer(ctypes.Structure):
    """Py_buffer."""
    _fields_ = [("at", ctypes.c_void_p), ("of", ctypes.py_object), ("len", ctypes.c_ssize_t), ("itemsize", ctypes.c_ssize_t),
                ("readonly", ctypes.c_int), ("ndim", ctypes.c_int), ("format", ctypes.c_char_p), ("shape", ctypes.c_void_p),
                ("strides", ctypes.c_void_p), ("suboffsets", ctypes.c_void_p), ("internal", ctypes.c_void_p)]


class _Memory:
    """The memory of an object that has the buffer protocol, in one piece and without a copy, until it is left."""

    def __init__(self, of, writable):
        self._view = _Buffer()
        _get_buffer(of, ctypes.byref(self._view), 1 if writable else 0)
        self.at, self.len = self._view.at, self._view.len

    def __enter__(self):
        return self

    def __exit__(self, *_):
        _release_buffer(ctypes.byref(self._view))


_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.argtypes = [ctypes.py_object, ctypes.c_void_p, ctypes.c_int]
_release_buffer = ctypes.pythonapi.PyBuffer_Release
_release_buffer.argtypes, _release_buffer.restype = [ctypes.c_void_p], None


class _Done(ctypes.Structure):
    _fields_ = [("user", ctypes.c_void_p), ("result", ctypes.c_ssize_t)]


def _load():
    beside = pathlib.Path(__file__).with_name("libstria.so.0")
    library = ctypes.CDLL(str(beside) if beside.exists() else "libstria.so.0", use_errno=True)
    pointer, size, offset, word = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64, ctypes.c_int
    for name, back, takes in [
        ("open", pointer, [ctypes.c_char_p, word, ctypes.c_uint]), ("close", word, [pointer]), ("fileno", word, [pointer]),
        ("is_native", word, [pointer]), ("pread", ctypes.c_ssize_t, [pointer, pointer, size, offset]),
        ("pwrite", ctypes.c_ssize_t, [pointer, pointer, size, offset]), ("fsync", word, [pointer]), ("fdatasync", word, [pointer]),
        ("queue_new", pointer, []), ("queue_free", None, [pointer]),
        ("queue_pread", word, [pointer, pointer, pointer, size, offset, pointer]),
        ("queue_reap", word, [pointer, ctypes.POINTER(_Done), ctypes.c_uint, ctypes.c_uint]),
    ]:
        function = getattr(library, "stria_" + name)
        function.restype, function.argtypes = back, takes
    return library


_lib = _load()


def _offset(of):
    """A place in a file, as the library takes it: ctypes would take the lowest 64 bits of any number."""
    at = operator.index(of)
    if not -_OFFSET_MAX <= at <= _OFFSET_MAX:
        raise OverflowError("an offset has 64 bits")
    return at


def _failed(path=None):
    code = ctypes.get_errno()
    return OSError(code, os.strerror(code), path) if path is not None else OSError(code, os.strerror(code))


# Of what files are in use by. A signal's handler may come while its own thread has it, so that it may be taken again.
_lock = threading.RLock()
_forks = 0


def _in_child():
    global _forks
    _forks += 1
    _lock.release()


# A child must not get it from another thread, which it does not have.
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_in_child)


class _Use:
    """A call that has the library's file: a close meanwhile, by another thread or a signal's handler, is carried out at its end."""

    def __init__(self, of):
        self._of = of

    def __enter__(self):
        of = self._of
        with _lock:
            file = of._open()
            if of._used_in != _forks:
                # By threads that this process does not have.
                of._used_in, of._uses = _forks, 0
            of._uses += 1
        return file

    def __exit__(self, *_):
        of = self._of
        with _lock:
            of._uses -= 1
            file = None
            if of._uses == 0:
                file, of._closing = of._closing, None
        if file is not None and _lib.stria_close(file) != 0:
            raise _failed(of.name)


class File(io.RawIOBase):
    """An open file: unbuffered, with a position of its own. Threads may share it for pread_into and pwrite, and close it at any time:
    calls that have begun go on, later ones raise ValueError."""

    def __init__(self, path, mode="r"):
        self._file, self._closing, self._uses, self._used_in = None, None, 0, _forks
        kind = mode.replace("b", "").replace("+", "")
        if kind not in _O or mode.count("+") > 1:
            raise ValueError(f"mode {mode!r}: r, w, a or x, and perhaps b and +")
        flags = _O[kind]
        if "+" in mode:
            flags = flags & ~os.O_ACCMODE | os.O_RDWR
        self.name, self.mode, self._flags, self._at = os.fspath(path), mode, flags, 0
        encoded = os.fsencode(path)
        if b"\0" in encoded:
            # A path for the library ends there.
            raise ValueError("embedded null byte")
        self._file = _lib.stria_open(encoded, flags | os.O_CLOEXEC, 0o666)
        if not self._file:
            self._file = None
            raise _failed(self.name)
        if stat.S_ISDIR(self._stat().st_mode):
            self.close()
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), self.name)
        if kind == "a":
            self._at = self._size()

    def _open(self):
        if self._file is None:
            raise ValueError("I/O operation on closed file")
        return self._file

    def _stat(self):
        with _Use(self) as file:
            return os.fstat(_lib.stria_fileno(file))

    def _size(self):
        return self._stat().st_size

    def _must(self, holds, what):
        self._open()
        if not holds:
            raise io.UnsupportedOperation(f"{self.name} is not open for {what}")

    @property
    def is_native(self):
        """Whether its bytes go past the kernel."""
        with _Use(self) as file:
            return _lib.stria_is_native(file) == 1

    def close(self):
        if self._file is not None:
            super().close()
            with _lock:
                file, self._file = self._file, None
                if self._uses and self._used_in == _forks:
                    self._closing, file = file, None
            if file is not None and _lib.stria_close(file) != 0:
                raise _failed(self.name)

    def fileno(self):
        """The kernel's descriptor, whose position is not this object's."""
        with _Use(self) as file:
            return _lib.stria_fileno(file)

    def readable(self):
        self._open()
        return self._flags & os.O_ACCMODE != os.O_WRONLY

    def writable(self):
        self._open()
        return self._flags & os.O_ACCMODE != os.O_RDONLY

    def seekable(self):
        self._open()
        return True

    def seek(self, offset, whence=io.SEEK_SET):
        if whence not in (io.SEEK_SET, io.SEEK_CUR, io.SEEK_END):
            raise ValueError(f"whence {whence}: 0, 1 or 2")
        self._open()
        at = _offset(offset) + (0, self._at, self._size() if whence == io.SEEK_END else 0)[whence]
        if not 0 <= at <= _OFFSET_MAX:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        self._at = at
        return at

    def tell(self):
        self._open()
        return self._at

    def truncate(self, size=None):
        self._must(self.writable(), "writing")
        size = self._at if size is None else size
        with _Use(self) as file:
            os.ftruncate(_lib.stria_fileno(file), size)
        return size

    def pread_into(self, buffer, offset):
        """Reads at `offset` into a writable buffer (bytearray, memoryview, array, numpy.ndarray ...), without a copy beside it."""
        self._must(self.readable(), "reading")
        offset = _offset(offset)
        with _Use(self) as file, _Memory(buffer, True) as memory:
            n = _lib.stria_pread(file, memory.at, memory.len, offset) if memory.len else 0
            if n < 0:
                raise _failed()
        return n

    def pread(self, len, offset):
        """Reads at `offset`: bytes."""
        into = bytearray(len)
        n = self.pread_into(into, offset)
        del into[n:]
        return bytes(into)

    def pread_many(self, reads):
        """Reads many pieces at once: `reads` are (buffer, offset), each of at most 1 MiB. How many bytes each brought."""
        self._must(self.readable(), "reading")
        with _Use(self) as file:
            return self._pread_many(file, list(reads))

    def _pread_many(self, file, reads):
        counts = []
        queue, done, memories = _lib.stria_queue_new(), (_Done * 32)(), []
        under_way, failure = 0, None

        def reap(least):
            taken = _lib.stria_queue_reap(queue, done, least, 32)
            for one in done[:taken]:
                # The user's word is a number, and None where that is 0.
                counts[one.user or 0] = one.result
            return taken

        try:
            for number, (buffer, offset) in enumerate(reads):
                offset = _offset(offset)
                memory = _Memory(buffer, True)
                memories.append(memory)
                counts.append(0)
                if memory.len > _REQUEST_BYTES_MAX:
                    raise ValueError(f"{memory.len} bytes in one piece: at most {_REQUEST_BYTES_MAX}")
                while _lib.stria_queue_pread(queue, file, memory.at, memory.len, offset, number) != 0:
                    if ctypes.get_errno() != errno.EAGAIN:
                        raise _failed()
                    if under_way == 0:
                        # Other threads have all there is for reads that go together: this one goes alone.
                        n = _lib.stria_pread(file, memory.at, memory.len, offset)
                        counts[number] = n if n >= 0 else -ctypes.get_errno()
                        break
                    under_way -= reap(1)
                else:
                    under_way += 1
            while under_way:
                under_way -= reap(1)
        finally:
            _lib.stria_queue_free(queue)
            for memory in memories:
                memory.__exit__()
        failure = next((-n for n in counts if n < 0), None)
        if failure is not None:
            raise OSError(failure, os.strerror(failure))
        return counts

    def readinto(self, buffer):
        n = self.pread_into(buffer, self._at)
        self._at += n
        return n

    def readall(self):
        parts = []
        while True:
            part = self.read(max(self._size() - self._at, 0) + 1)
            if not part:
                return b"".join(parts)
            parts.append(part)

    def pwrite(self, data, offset):
        """Writes at `offset`, or at the end where the file is open for appending. How many bytes."""
        self._must(self.writable(), "writing")
        offset = _offset(offset)
        with _Use(self) as file, _Memory(data, False) as memory:
            n = _lib.stria_pwrite(file, memory.at, memory.len, offset) if memory.len else 0
            if n < 0:
                raise _failed()
        return n

    def write(self, data):
        n = self.pwrite(data, self._at)
        self._at = self._size() if self._flags & os.O_APPEND else self._at + n
        return n

    def sync(self, data_only=False):
        """fsync(2), or fdatasync(2)."""
        with _Use(self) as file:
            if (_lib.stria_fdatasync if data_only else _lib.stria_fsync)(file) != 0:
                raise _failed()

    def __reduce__(self):
        if not self._flags & os.O_ACCMODE == os.O_RDONLY:
            raise TypeError(f"{self.name} is open for writing and cannot be pickled")
        return _again, (self.name, self.mode, self._at)

    def __repr__(self):
        return f"<stria.File {self.name!r} mode={self.mode!r}{' closed' if self._file is None else ''}>"


def _again(path, mode, at):
    file = File(path, mode)
    file.seek(at)
    return file


def open(path, mode="r", buffering=-1, encoding=None, errors=None, newline=None):
    """As the built-in open. Buffers are of 1 MiB."""
    binary = "b" in mode
    if "t" in mode and binary:
        raise ValueError(f"mode {mode!r}: text or binary")
    if buffering == 0 and not binary:
        raise ValueError("text is buffered")
    raw = File(path, mode.replace("t", "") + ("" if binary else "b"))
    if buffering == 0:
        return raw
    bytes_max = _BUFFER_BYTES if buffering in (-1, 1) else buffering
    kind = io.BufferedRandom if "+" in mode else io.BufferedReader if raw.readable() else io.BufferedWriter
    buffered = kind(raw, bytes_max)
    if binary:
        return buffered
    text = io.TextIOWrapper(buffered, encoding, errors, newline, line_buffering=buffering == 1)
    text.mode = mode
    return text
