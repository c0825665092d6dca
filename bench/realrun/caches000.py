"""Paper 000, R32 to R41: fine accesses beside coarse ones, under cache policies, on three OSTs with emulated disks (9 ms, 60 MB/s).

Everything is an eighth of the simulated experiment (sim/scenarios/paper000) but for fine accesses and stripes: caches of 150 MB at the client and of 90 MB at each
OST. The client is behind gigabit Ethernet. The kernel asks for a large direct read one MiB after the other, so that one disk works at a time;
programs with the native path (`--preload`) have three under way. Every run starts with cold caches, on servers and a mount that were started for it.
"""
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

from .cluster import Cluster, Failed, fill

KIB, MIB = 1 << 10, 1 << 20
OSTS = 3
FILES = 10
FINE = 64 * KIB
CASES = {"a": {"hot": 2 * MIB, "coarse": 8 * MIB}, "b": {"hot": 16 * MIB, "coarse": 4 * MIB}}
CLAIMS = {"a": ("R32", "R34", "R35"), "b": ("R33", None, "R36")}
SHARES = (0.9, 0.5, 0.1)
DISKS = ["store.kind=emulated", "store.profile=disk9ms", "oss.cache_bytes=90M"]


class Bed:
    """A cluster whose files stay, and whose servers and mount are started anew under each policy."""

    def __init__(self, cluster, client_bytes="150M"):
        self.cluster, self.client_bytes = cluster, client_bytes

    def start(self, policy):
        c = self.cluster
        c.stop_servers()
        c.settings = [*DISKS, f"oss.cache_policy={policy}"]
        c.start_servers()
        return c.mount("m", "net.profile=gbe", f"client.cache_bytes={self.client_bytes}", f"client.cache_policy={policy}",
                       "client.readahead_policy=none", "mount.kernel_cache=never")

    def stop(self, at):
        self.cluster.umount(at)

    def make(self, count, size):
        at = self.start("lru")
        d = self.cluster.directory(at, "d", -1, MIB)
        for i in range(count):
            fill(d / f"{i}", size)
        self.stop(at)


def mixed(rows, d, seed, share, accesses, sizes):
    """MB/s of all accesses, and the mean response of fine ones in ms: of a process with the native path, if a library is given."""
    env = {**os.environ, **({"LD_PRELOAD": rows.preload} if rows.preload else {})}
    told = [d, FILES, seed, share, accesses, sizes["hot"], sizes["coarse"], sizes["file"]]
    done = subprocess.run([sys.executable, "-m", "realrun.accesses", *map(str, told)], env=env, capture_output=True, text=True, check=False,
                          cwd=Path(__file__).resolve().parent.parent)
    if done.returncode:
        raise Failed(f"accesses below {d}: {done.stderr.strip()}")
    row = json.loads(done.stdout)
    return row["mb_per_s"], row["fine_ms"]


def case(rows, place, name, share):
    """R32, R34, R35 (case A) or R33, R36 (case B) at one p: LRU against FGF-LRU with the same accesses."""
    gain, rate, response = CLAIMS[name]
    sizes = {**CASES[name], "file": rows.scaled(256 * MIB, 16 * MIB)}
    accesses = max(int(1000 * rows.scale), 20)
    with Cluster(rows.stria, place, OSTS, DISKS) as c:
        bed = Bed(c)
        bed.make(FILES, sizes["file"])
        for seed in range(rows.repetitions):
            found = {}
            for policy in ("lru", "fgf_lru"):
                at = bed.start(policy)
                found[policy] = mixed(rows, at / "d", seed, share, accesses, sizes)
                bed.stop(at)
            (lru, slow), (fgf, quick) = found["lru"], found["fgf_lru"]
            rows.add(f"{gain} gain_percent_p{share}", (fgf / lru - 1) * 100, "%", {"lru": lru, "fgf_lru": fgf})
            if rate:
                rows.add(f"{rate} mb_per_s_p{share}", fgf, "MB/s")
            if slow > 0:
                rows.add(f"{response} change_percent_p{share}", (quick / slow - 1) * 100, "%", {"lru": slow, "fgf_lru": quick})


def reuse(rows, place):
    """R41: four files are read round and round in pieces of 4 MiB, 16 fine accesses to a larger one after each; all fit the caches."""
    each = rows.scaled(16 * MIB, 4 * MIB)
    rounds = 6
    with Cluster(rows.stria, place, OSTS, DISKS) as c:
        bed = Bed(c)
        bed.make(FILES, max(rows.scaled(256 * MIB, 16 * MIB), each))
        for seed in range(rows.repetitions):
            found = {}
            for policy in ("lru", "fgf_lru", "adaptive"):
                at = bed.start(policy)
                found[policy] = again(at / "d", seed, each, rounds)
                bed.stop(at)
            for policy in ("adaptive", "fgf_lru"):
                rows.add(f"R41 {policy}_over_lru_percent", (found[policy] / found["lru"] - 1) * 100, "%", found)


def again(d, seed, each, rounds):
    """MB/s."""
    draw = random.Random(seed)
    huge = os.open(d / "9", os.O_RDONLY)
    places = os.fstat(huge).st_size // FINE
    moved, begin = 0, time.monotonic()
    for i in range(rounds * 4):
        f = os.open(d / f"{i % 4}", os.O_RDONLY)
        for at in range(0, each, 4 * MIB):
            moved += len(os.pread(f, 4 * MIB, at))
            for _ in range(16):
                moved += len(os.pread(huge, FINE, draw.randrange(places) * FINE))
        os.close(f)
    took = time.monotonic() - begin
    os.close(huge)
    return moved / took / 1e6


def at_share(name, share):
    return lambda rows, place: case(rows, place, name, share)


PARTS = {**{f"{name}{share}": at_share(name, share) for name in CASES for share in SHARES}, "reuse": reuse}


def run(rows, place, parts):
    """The parts that are asked for, each on a cluster of its own."""
    for name in parts or PARTS:
        rows.begin(name)
        PARTS[name](rows, place)
