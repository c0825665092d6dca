"""An fsspec file system, `stria:///mnt/stria/path`: names go through the kernel, bytes past it. Registered by the wheel."""
import os

from fsspec.implementations.local import LocalFileSystem

import stria


class StriaFileSystem(LocalFileSystem):
    """The local file system, but that files of Stria mounts are read and written natively."""

    protocol = "stria"

    @classmethod
    def _strip_protocol(cls, path):
        if isinstance(path, (list, tuple)):
            return [cls._strip_protocol(p) for p in path]
        path = str(path)
        if path.startswith("stria://"):
            path = path[len("stria://"):]
        return super()._strip_protocol(path)

    def unstrip_protocol(self, name):
        return "stria://" + self._strip_protocol(name)

    def _open(self, path, mode="rb", block_size=None, **kwargs):
        path = self._strip_protocol(path)
        if not kwargs.get("autocommit", True):
            # What appears at the end of a transaction is the local file system's own device.
            return super()._open(path, mode, block_size, **kwargs)
        if self.auto_mkdir and "w" in mode:
            self.makedirs(self._parent(path), exist_ok=True)
        file = stria.open(path, mode)
        if "w" not in mode:
            # As the local file system's files have it: some readers look for the end by it.
            file.size = os.fstat(file.fileno()).st_size
        return file
