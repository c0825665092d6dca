"""Paper 003, R51 to R57: readahead of a real client, over OSTs that answer a checkable pattern without a disk (null), or take 2 ms for every request."""
import os
import threading
import time

from .cluster import Cluster, fill, forget

KIB, MIB = 1 << 10, 1 << 20
OSTS = 4
NULL = ["store.kind=null"]
SLOW = ["store.kind=emulated", "store.profile=ssd", "store.profile_keys=seek_ms=2 request_us=2000 mb_per_s=100000", "oss.cache_bytes=0"]


class Bed:
    """A mount with a file of `size` bytes over all OSTs for each reader, and what reading them gives."""

    def __init__(self, c, size, readers=1):
        self.c, self.size = c, size
        self.at = c.mount("m", "mount.kernel_cache=never", "client.cache_bytes=" + ("1G" if size > 128 * MIB else "256M"))
        d = c.directory(self.at, "d", -1, MIB)
        self.files = [d / f"{i}" for i in range(readers)]
        for f in self.files:
            fill(f, size)

    def policy(self, name):
        self.c.set(self.at, f"llite.*.readahead_policy={name}")

    def stats(self):
        return self.c.param(self.at, "llite.*.read_ahead_stats")

    def read(self, io, skip=0, cold=True, readers=1, records=None):
        """MB/s that each reader gets of its file, in calls of `io` bytes with `skip` bytes between."""
        if cold:
            forget(*self.files[:readers])
        rates, gate = [0.0] * readers, threading.Barrier(readers)

        def one(i):
            fd = os.open(self.files[i], os.O_RDONLY)
            buffer = memoryview(bytearray(io))
            gate.wait()
            begin, moved, at = time.monotonic(), 0, 0
            while at + io <= self.size and (records is None or moved < records * io):
                moved += os.preadv(fd, [buffer], at)
                at += io + skip
            rates[i] = moved / (time.monotonic() - begin) / 1e6
            os.close(fd)

        threads = [threading.Thread(target=one, args=(i,)) for i in range(readers)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        return rates

    def calls(self, io, begin, end):
        """Seconds of each call of a sequential reader, which goes on where the last one ended."""
        if begin == 0:
            self.reader = os.open(self.files[0], os.O_RDONLY)
        buffer, took = memoryview(bytearray(io)), []
        for at in range(begin, end, io):
            since = time.perf_counter()
            os.preadv(self.reader, [buffer], at)
            took.append(time.perf_counter() - since)
        if end == self.size:
            os.close(self.reader)
        return took

    def used(self, action):
        """What an action changed in the statistics of readahead."""
        before = self.stats()
        result = action()
        after = self.stats()
        return result, {k: after[k] - before.get(k, 0) for k in after}


def null(rows, place):
    """R40, R51 to R55 over OSTs without disks."""
    cores = os.cpu_count() or 1
    with Cluster(rows.stria, place, OSTS, NULL) as c:
        bed = Bed(c, rows.scaled(256 * MIB, 16 * MIB), cores)
        for _ in range(rows.repetitions):
            model(rows, bed)
            bed.policy("miss")
            miss = bed.read(MIB)[0]
            bed.policy("ondemand")
            ondemand = bed.read(MIB)[0]
            rows.add("R52 ondemand_over_miss", ondemand / miss)
            bed.c.set(bed.at, "llite.*.readahead_ondemand_window_bytes=83886080")
            rows.add("R53 80m_over_40m_window", bed.read(MIB)[0] / ondemand)
            bed.c.set(bed.at, "llite.*.readahead_ondemand_window_bytes=41943040")
            bed.policy("parallel")
            ceiling(rows, bed, cores)


def model(rows, bed):
    """R51: 1/speed = (1 - m)/cached + m/uncached, of calls of 64 KiB. Speeds are those of the first half of the file's calls that found everything and of
    those that did not (the longest, as many as the client counts); with them the second half's share m predicts its speed."""
    io, half = 64 * KIB, bed.size // 2
    for name in ("miss", "ondemand"):
        bed.policy(name)
        forget(bed.files[0])
        first, counted = bed.used(lambda: bed.calls(io, 0, half))
        count = max(counted["misses"], 1)
        first.sort()
        cached, uncached = (io / (sum(t) / len(t)) / 1e6 for t in (first[:-count], first[-count:]))
        second, counted = bed.used(lambda: bed.calls(io, half, bed.size))
        m, rate = counted["misses"] / len(second), io * len(second) / sum(second) / 1e6
        expected = 1 / ((1 - m) / cached + m / uncached)
        rows.add(f"R51 error_percent_{name}", abs(expected / rate - 1) * 100, "%", {"cached": cached, "uncached": uncached, "misses": m, "rate": rate})


def ceiling(rows, bed, cores):
    """R54, R55: against what as many readers as cores get together; R40: what was prefetched and left the cache unused."""
    (rates, used) = bed.used(lambda: bed.read(MIB, readers=cores))
    most = sum(rates)
    for name, io in (("64k", 64 * KIB), ("1m", MIB), ("16m", 16 * MIB)):
        rows.add(f"R54 {name}_over_ceiling", bed.read(io)[0] / most)
    again = bed.read(64 * KIB, readers=cores)
    rows.add("R55 over_ceiling", sum(again) / most)
    rows.add("R55 slowest_over_mean", min(again) / (sum(again) / cores))
    rows.add("R40 wasted_percent", 100 * used["wasted_bytes"] / max(used["prefetched_bytes"], 1), "%")


def slow(rows, place):
    """R54 over OSTs of 2 ms: against the baseline that misses trigger."""
    with Cluster(rows.stria, place, OSTS, SLOW) as c:
        bed = Bed(c, rows.scaled(64 * MIB, 16 * MIB))
        for _ in range(rows.repetitions):
            for name, io in (("4k", 4 * KIB), ("64k", 64 * KIB), ("1m", MIB), ("16m", 16 * MIB)):
                bed.policy("miss")
                miss = bed.read(io)[0]
                bed.policy("parallel")
                (rate,), used = bed.used(lambda io=io: bed.read(io))
                rows.add(f"R54 {name}_over_miss", rate / miss)
                if name == "4k":
                    rows.add("R54 blocked_percent", 100 * used["misses"] / used["reads"], "%")


def strides(rows, place):
    """R56, and R57's bound on what is fetched for four bytes every 180 KiB."""
    with Cluster(rows.stria, place, OSTS, SLOW) as c:
        bed = Bed(c, rows.scaled(512 * MIB, 16 * MIB))
        for _ in range(rows.repetitions):
            sequential = bed.read(MIB, records=64)[0]
            for name, skip in (("1m", MIB), ("6m", 6 * MIB)):
                (rate,), used = bed.used(lambda skip=skip: bed.read(MIB, skip=skip))
                rows.add(f"R56 skip_{name}_over_sequential", rate / sequential)
                useful = MIB * -(-(bed.size - MIB + 1) // (MIB + skip))
                rows.add(f"R56 skip_{name}_fetched_over_used", (used["prefetched_bytes"] + used["missed_bytes"]) / useful)
            _, used = bed.used(lambda: bed.read(4, skip=180 * KIB - 4))
            calls = bed.size // (180 * KIB)
            rows.add("R57 sparse_fetched_over_used", (used["prefetched_bytes"] + used["missed_bytes"]) / (calls * 4 * KIB))


PARTS = {"null": null, "slow": slow, "strides": strides}


def run(rows, place, parts):
    """The parts that are asked for, each on a cluster of its own."""
    for name in parts or PARTS:
        rows.begin(name)
        PARTS[name](rows, place)
