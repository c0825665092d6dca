"""A cluster of real processes for one experiment: a metadata server, an OSS for each OST, mounts with settings of their own."""
import fcntl
import json
import os
import random
import struct
import subprocess
import sys
import time
from pathlib import Path


class Failed(Exception):
    """What a user reads."""


def command(stria, *words):
    """Runs `stria WORDS`; what it printed."""
    words = [str(w) for w in words]
    done = subprocess.run([stria, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failed(f"stria {' '.join(words)}: {done.stderr.strip()} (exit code {done.returncode})")
    return done.stdout


class Cluster:
    """Started with `with`; everything is stopped and removed at its end. `settings`: KEY=VALUE of the OSTs."""

    def __init__(self, stria, place, osts, settings):
        self.stria, self.place, self.osts, self.settings = stria, Path(place), osts, list(settings)
        self.dir, self.servers, self.mounts = self.place / "c", [], {}

    def __enter__(self):
        self.place.mkdir(parents=True)
        self.log = open(self.place / "log", "a")
        try:
            self.run("mkfs", "--dir", self.dir, "--osts", self.osts, *self.sets())
            self.start_servers()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for at in list(self.mounts):
            self.umount(at)
        self.stop_servers()
        self.log.close()
        subprocess.run(["rm", "-rf", self.place], check=False)

    def run(self, *words):
        """Runs `stria WORDS`; what it printed."""
        return command(self.stria, *words)

    def daemon(self, *words):
        """Starts `stria WORDS` and waits for its word that it is ready."""
        words = [str(w) for w in words]
        child = subprocess.Popen([self.stria, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.log,
                                 text=True, env={**os.environ, "STRIA_ANNOUNCE": "1"})
        if not child.stdout.readline().startswith("ready "):
            child.wait()
            said = (self.place / "log").read_text().strip().splitlines()[-1:]
            raise Failed(f"stria {' '.join(words)} did not start: {' '.join(said)}")
        return child

    def start_servers(self):
        self.servers.append(self.daemon("mds", "--dir", self.dir))
        for i in range(self.osts):
            self.servers.append(self.daemon("oss", "--dir", self.dir, "--ost", i, *self.sets()))

    def sets(self):
        return [w for s in self.settings for w in ("--set", s)]

    def stop_servers(self):
        for child in self.servers:
            child.terminate()
        for child in self.servers:
            child.wait()
        self.servers = []

    def mount(self, name, *settings):
        """A mount of its own; its directory."""
        at = self.place / name
        at.mkdir(exist_ok=True)
        self.mounts[at] = self.daemon("mount", "--dir", self.dir, at, *[w for s in settings for w in ("--set", s)])
        end = time.monotonic() + 60
        # statvfs(3) counts the OSTs that are connected, and connects none.
        while os.statvfs(at).f_bavail == 0:
            self.run("status", at)
            if time.monotonic() > end:
                raise Failed(f"{at}: no OST has told of any space for a minute")
            time.sleep(0.01)
        return at

    def umount(self, at):
        child = self.mounts.pop(at)
        subprocess.run([self.stria, "umount", str(at)], capture_output=True, check=False)
        try:
            child.wait(30)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()

    def set(self, at, setting):
        """Sets parameters of a mount, or of the OSTs behind it."""
        self.run("set_param", "--at", at, setting)

    def param(self, at, pattern):
        """A parameter of a mount: the numbers that its lines tell, by their names."""
        found = {}
        for line in self.run("get_param", "-n", "--at", at, pattern).splitlines():
            words = line.replace(":", " ").split()
            if len(words) > 1 and words[1].isdigit():
                found[words[0]] = found.get(words[0], 0) + int(words[1])
        return found

    def directory(self, at, name, count, size):
        """A new directory whose files have `count` stripes of `size` bytes."""
        path = at / name
        path.mkdir()
        self.run("setstripe", "-c", count, "-S", size, path)
        return path

    def bench(self, *words):
        """`stria bench WORDS`: the phases of its JSON."""
        return json.loads(self.run("bench", "--json", *words))["phases"]


# A mount's ioctl for advice (types::advise): offset, length (0: all), what.
ADVISE = 1 << 30 | 24 << 16 | ord("S") << 8 | 0xAD


def forget(*files):
    """Drops what this host's caches hold of files on a mount: the kernel's, and the client's, whose kernel keeps advice to itself."""
    for path in files:
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        fcntl.ioctl(fd, ADVISE, struct.pack("=QQii", 0, 0, os.POSIX_FADV_DONTNEED, 0))
        os.close(fd)


def fill(path, size, block=4 << 20):
    """Writes `size` bytes, and syncs."""
    data = random.Random(str(path.name)).randbytes(block)
    with open(path, "wb", buffering=0) as f:
        for at in range(0, size, block):
            f.write(data[:min(block, size - at)])
        os.fsync(f.fileno())


def timed(action):
    """Seconds that it took."""
    since = time.monotonic()
    action()
    return time.monotonic() - since


def origin(stria, command):
    """What every row tells of its run."""
    here = Path(__file__).resolve().parent
    git = subprocess.run(["git", "-C", here, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    changed = subprocess.run(["git", "-C", here, "status", "--porcelain", "-uno"], capture_output=True, text=True, check=False)
    commit = (git.stdout.strip() or "unknown") + ("+" if changed.stdout.strip() else "")
    build = "debug" if "/debug/" in os.path.realpath(stria) else "release"
    return {"commit": commit, "command": command, "build": build, "machine": f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.0f} at the start"}


def say(text):
    """Progress goes where errors go: figures are on standard output."""
    print(text, file=sys.stderr, flush=True)
