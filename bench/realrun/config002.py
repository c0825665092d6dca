"""Paper 002, R42 to R50: striping, processes, blocks, clients and networks, on five emulated OSTs of 100 MB/s each."""
import json
import os
import subprocess
from collections import Counter
from pathlib import Path

from .cluster import Cluster, forget

KIB, MIB = 1 << 10, 1 << 20
OSTS = 5
# One head that moves for nothing: the rate alone counts. Without caches reads come from the device.
DISK = ["store.kind=emulated", "store.profile=paper001", "store.profile_keys=seek_ms=0 request_us=0 mb_per_s=100", "oss.cache_bytes=0"]
ON_MOUNT = Path(__file__).resolve().parent / "on_mount.sh"


class Load:
    """`stria bench` on a new directory with this layout; MB/s (10^6) of writing, fsync within the time, and of cold reading."""

    def __init__(self, cluster, number=0):
        self.cluster, self.number = cluster, number

    def directory(self, at, count, size):
        self.number += 1
        return self.cluster.directory(at, f"d{self.number}", count, size)

    def run(self, at, total, tasks=1, transfer=MIB, count=-1, size=MIB, shared=False):
        block = max(total // tasks // transfer, 1) * transfer
        base = self.directory(at, count, size) / "f"
        words = ["-o", base, "-b", block, "-t", transfer, "-N", tasks, *([] if shared else ["-F"])]
        wrote = self.cluster.bench(*words, "-w", "-e", "-k")[0]
        files = sorted(base.parent.iterdir())
        forget(*files)
        read = self.cluster.bench(*words, "-r", "-k")[0]
        for f in files:
            f.unlink()
        return {"write": wrote["mb_per_s"], "read": read["mb_per_s"]}


def networks(rows, c, load, total):
    """R42, R43."""
    slow, fast = c.mount("gbe", "net.profile=gbe"), c.mount("qdr", "net.profile=ib-qdr")
    for _ in range(rows.repetitions):
        gbe, qdr = load.run(slow, total, tasks=2), load.run(fast, total, tasks=2)
        for phase in ("write", "read"):
            rows.add(f"R42 {phase}", gbe[phase], "MB/s")
            rows.add(f"R43 {phase}_over_gbe", qdr[phase] / gbe[phase])
    c.umount(slow)
    c.umount(fast)


def stripes(rows, c, load, total):
    """R44, R45, R46."""
    at = c.mount("eight", "client.max_pages_per_rpc=256")
    c.set(at, "llite.*.max_read_ahead_per_file_mb=8")
    for _ in range(rows.repetitions):
        by_size = {s: load.run(at, total, count=-1, size=s * KIB)["read"] for s in (64, 256, 1024, 4096, 65536)}
        rows.add("R44 1m_over_best", by_size[1024] / max(by_size.values()), series=by_size)
        rows.add("R44 64m_over_1m", by_size[65536] / by_size[1024])
    c.umount(at)
    at = c.mount("wide", "net.profile=ib-qdr")
    for _ in range(rows.repetitions):
        # One file: its stripes are all the OSTs there are for it.
        by_count = {k: load.run(at, total, tasks=2, count=k, shared=True) for k in range(1, OSTS + 1)}
        for phase in ("write", "read"):
            one = by_count[1][phase]
            scaled = {k: by_count[k][phase] / one / k for k in by_count}
            rows.add(f"R45 {phase}_least_share_of_k", min(scaled.values()), series=scaled)
    for count in (1, 2, 3):
        rows.add(f"R46 difference_of_counts_{count}_stripes", balance(c, load, at, count, rows.creates))
    c.umount(at)


def balance(c, load, at, count, creates):
    """Objects of the fullest OST less those of the emptiest, for each 100 creates."""
    d = load.directory(at, count, MIB)
    for i in range(creates):
        (d / f"{i}").write_bytes(b"")
    counts = Counter({i: 0 for i in range(OSTS)})
    for line in c.run("getstripe", "-y", *sorted(d.iterdir())).splitlines():
        if "l_ost_idx:" in line:
            counts[int(line.split("l_ost_idx:")[1].split(",")[0].strip(" }"))] += 1
    assert sum(counts.values()) == count * creates, f"getstripe tells of {sum(counts.values())} objects, not of {count * creates}"
    return (max(counts.values()) - min(counts.values())) / (creates / 100)


def processes(rows, c, load, total):
    """R47."""
    at = c.mount("procs", "net.profile=ib-qdr")
    for _ in range(rows.repetitions):
        by = {n: load.run(at, total, tasks=n) for n in (1, 2, 4, 8, 16, 32)}
        for phase in ("write", "read"):
            curve = {n: by[n][phase] for n in by}
            rows.add(f"R47 {phase}_32_over_best", curve[32] / max(curve.values()), series=curve)
    c.umount(at)


def blocks(rows, c, load, total):
    """R48."""
    at = c.mount("blocks", "net.profile=ib-qdr")
    for _ in range(rows.repetitions):
        by = {k: load.run(at, total, tasks=4, transfer=k * KIB) for k in (4, 64, 256, 1024, 4096)}
        for phase in ("write", "read"):
            curve = {k: by[k][phase] for k in by}
            large = [v for k, v in curve.items() if k >= 64]
            rows.add(f"R48 {phase}_64k_to_4m_least_over_best", min(large) / max(large), series=curve)
            rows.add(f"R48 {phase}_4k_over_1m", curve[4] / curve[1024])
    c.umount(at)


def clients(rows, c, load, total):
    """R49, and how close agents of four mounts begin (R50)."""
    mounts = [c.mount(f"client{i}", "net.profile=gbe") for i in range(4)]
    common = c.place / "common"
    common.mkdir()
    for _ in range(rows.repetitions):
        rates = {n: together(rows, c, load, mounts[:n], common, total // 4) for n in (1, 4)}
        rows.add("R49 read_4_over_1", rates[4] / rates[1], series=rates)
    for at in mounts:
        c.umount(at)


def together(rows, c, load, mounts, common, each):
    """MB/s that an agent on each mount reads together; every mount is at `common` in its agent's own mount namespace."""
    d = load.directory(mounts[0], -1, MIB)
    base = common / d.name / "f"
    words = ["-o", base, "-b", each // MIB * MIB, "-t", MIB, "-F", *[w for m in mounts for w in ("--on", f"{ON_MOUNT} {m} {common}")]]
    c.bench(*words, "-w", "-e", "-k")
    for m in mounts:
        forget(*sorted((m / d.name).iterdir()))
    read = c.bench(*words, "-r", "-k", "-C")[0]
    rows.add(f"R50 start_spread_{len(mounts)}_ms", read["start_spread_ns"] / 1e6, "ms")
    for f in (mounts[0] / d.name).iterdir():
        f.unlink()
    return read["mb_per_s"]


def other_tool(rows, c, load, total):
    """R50: the same accesses by fio, where IOR is not packaged."""
    at = c.mount("fio", "net.profile=ib-qdr")
    for _ in range(rows.repetitions):
        ours = load.run(at, total, tasks=4)
        theirs = fio(load.directory(at, -1, MIB), total)
        for phase in ("write", "read"):
            rows.add(f"R50 {phase}_over_fio", ours[phase] / theirs[phase])
    c.umount(at)


def fio(d, total):
    """MB/s of writing and cold reading by four processes with a file each."""
    found = {}
    for phase in ("write", "read"):
        words = [f"--rw={phase}", f"--size={total // 4 // MIB}M", "--bs=1M", "--numjobs=4", "--group_reporting", "--ioengine=psync"]
        # As stria bench writes: no space is reserved before.
        words += ["--end_fsync=1", "--fallocate=none"] if phase == "write" else []
        run = subprocess.run(["fio", "--name=f", f"--directory={d}", "--output-format=json", "--invalidate=1", "--thread", *words],
                             capture_output=True, text=True, check=True)
        found[phase] = json.loads(run.stdout)["jobs"][0][phase]["bw_bytes"] / 1e6
        files = [f for f in d.iterdir() if f.is_file()]
        forget(*files)
    for f in files:
        f.unlink()
    return found


PARTS = {"networks": networks, "stripes": stripes, "processes": processes, "blocks": blocks, "clients": clients, "fio": other_tool}


def run(rows, place, parts):
    """The parts that are asked for, on one cluster."""
    total = rows.scaled(320 * MIB)
    with Cluster(rows.stria, place, OSTS, DISK) as c:
        load = Load(c)
        for name in parts or PARTS:
            if name == "fio" and not any(os.access(Path(p) / "fio", os.X_OK) for p in os.get_exec_path()):
                rows.cannot("R50 write_over_fio", "fio is not installed")
                continue
            rows.begin(name)
            PARTS[name](rows, c, load, total)
