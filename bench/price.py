#!/usr/bin/env python3
"""price.py: what a byte and an operation cost in CPU time, beside a local tmpfs and a file system of FUSE alone, in the same run.

Systems, by turns: `tmpfs` (a directory of /dev/shm), `null` (crates/fuse/examples/null_fs.rs: FUSE without storage), `one` (stria up: one process), `processes` (stria up --processes: a
metadata server, four OSTs and a mount over TCP). Stores are in /dev/shm; servers and mount are stopped and started again before each cold row. CPU time is that of the program and of all
daemons. Prints a row of JSON for each measure, system and `cpu.idle`, with all samples, and a table on standard error: bytes as difference to tmpfs, operations as multiples of null.
Without --idle, `deep` (idle CPUs left alone) and `auto` are measured.
"""
import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.dont_write_bytecode = True
from realrun.cluster import Failed, origin, say  # noqa: E402

HERE = Path(__file__).resolve().parent
MIB = 1 << 20
SYSTEMS = ("tmpfs", "null", "one", "processes")
BYTES = {"write": (0.25, 0.7), "read cold": (0.35, 0.8), "second read": (None, None), "third read": (None, None)}
OPERATIONS = {"random 4 KiB cold": (1.8, 3), "create": (1.8, 3), "stat": (1.8, 3), "unlink": (1.8, 3), "write 4 KiB file": (2, 3.5), "read 4 KiB file cold": (2, 3.5)}


class Bed:
    """A system that is mounted at `at`; `restart` makes its caches cold."""

    def __init__(self, name, place, a, idle):
        self.name, self.place, self.a, self.idle, self.child = name, place, a, idle, None
        self.at = place / "m"
        self.at.mkdir(parents=True)
        self.start()

    def start(self):
        if self.name == "null":
            self.child = subprocess.Popen([self.a.null, self.at], stdout=subprocess.PIPE, text=True)
            if not self.child.stdout.readline():
                raise Failed(f"{self.a.null} {self.at} did not start")
        elif self.name != "tmpfs":
            more = ["--processes"] if self.name == "processes" else []
            words = [self.a.stria, "up", "--dir", self.place / "c", "--mount", self.at, "--osts", "4", "--background", *more, "--set", f"cpu.idle={self.idle}"]
            done = subprocess.run([str(w) for w in words], capture_output=True, text=True, check=False)
            if done.returncode:
                raise Failed(f"stria up: {done.stderr.strip()}")

    def stop(self):
        if self.name == "null":
            subprocess.run(["umount", self.at], check=False)
            self.child.wait()
        elif self.name != "tmpfs":
            subprocess.run([self.a.stria, "umount", self.at], capture_output=True, check=True)
            while self.daemons():
                time.sleep(0.02)

    def restart(self):
        """Cold caches of everything but of the stores, which are memory."""
        if self.name not in ("tmpfs", "null"):
            self.stop()
            self.start()
        self.forget()

    def forget(self):
        """The kernel's names, attributes and pages of this mount."""
        if self.name != "tmpfs":
            os.sync()
            Path("/proc/sys/vm/drop_caches").write_text("3")

    def remove(self):
        self.stop()
        shutil.rmtree(self.place)

    def daemons(self):
        """Processes that serve this system."""
        if self.name == "null":
            return [self.child.pid]
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")) if self.name != "tmpfs" else ():
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue
            if str(self.place).encode() in words and words.startswith(str(self.a.stria).encode()):
                found.append(int(pid))
        return found

    def cpu(self):
        """Seconds of CPU of the daemons' threads so far."""
        total = 0
        for pid in self.daemons():
            for task in Path(f"/proc/{pid}/task").iterdir():
                try:
                    total += int((task / "schedstat").read_text().split()[0])
                except OSError:
                    continue
        return total / 1e9


def measured(bed, work):
    """CPU seconds of program and daemons, and seconds, of `work` in a process of its own."""
    before, since = bed.cpu(), time.monotonic()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work(bed)
            code = 0
        finally:
            os._exit(code)
    _, status, used = os.wait4(pid, 0)
    took = time.monotonic() - since
    if status:
        raise Failed(f"{bed.name}: the measured program failed")
    return used.ru_utime + used.ru_stime + bed.cpu() - before, took


def write(bed, size):
    data = memoryview(os.urandom(MIB))
    fd = os.open(bed.at / ("data" if bed.name == "null" else "big"), os.O_WRONLY | (0 if bed.name == "null" else os.O_CREAT), 0o644)
    for _ in range(size // MIB):
        if os.write(fd, data) != MIB:
            raise OSError("a short write")
    os.fsync(fd)
    os.close(fd)


def read(bed, size):
    fd, data = os.open(bed.at / ("data" if bed.name == "null" else "big"), os.O_RDONLY), bytearray(MIB)
    for _ in range(size // MIB):
        if os.readv(fd, [data]) != MIB:
            raise OSError("a short read")
    os.close(fd)


def places(bed, size, count):
    draw = random.Random(1)
    fd, data = os.open(bed.at / ("data" if bed.name == "null" else "big"), os.O_RDONLY), bytearray(4096)
    for _ in range(count):
        if os.preadv(fd, [data], draw.randrange(size // 4096) * 4096) != 4096:
            raise OSError("a short read")
    os.close(fd)


def files(bed, count, flags, act):
    for i in range(count):
        fd = os.open(f"{bed.at}/f{i}", flags, 0o644)
        act(fd)
        os.close(fd)


def each(bed, count, act):
    for i in range(count):
        act(f"{bed.at}/f{i}")


def sample(bed, rows, a):
    """One sample of each measure of a system."""
    def take(measure, count, work):
        cpu, took = measured(bed, work)
        rows.setdefault((measure, bed.name, bed.idle), []).append((cpu / count, count / took))

    gib, block = a.mib / 1024, b"x" * 4096
    take("write", gib, lambda b: write(b, a.mib * MIB))
    bed.restart()
    for measure in ("read cold", "second read", "third read"):
        take(measure, gib, lambda b: read(b, a.mib * MIB))
    bed.restart()
    take("random 4 KiB cold", a.reads, lambda b: places(b, a.mib * MIB, a.reads))
    take("create", a.files, lambda b: files(b, a.files, os.O_CREAT | os.O_WRONLY | os.O_EXCL, lambda _: None))
    bed.forget()
    take("stat", a.files, lambda b: each(b, a.files, os.stat))
    take("unlink", a.files, lambda b: each(b, a.files, os.unlink))
    take("write 4 KiB file", a.files, lambda b: files(b, a.files, os.O_CREAT | os.O_WRONLY | os.O_EXCL, lambda fd: os.write(fd, block)))
    bed.restart()
    take("read 4 KiB file cold", a.files, lambda b: files(b, a.files, os.O_RDONLY, lambda fd: os.read(fd, 4096)))
    each(bed, a.files, os.unlink)
    if bed.name != "null":
        os.unlink(bed.at / "big")


def table(rows, idle):
    """Medians: bytes minus tmpfs, operations divided by null."""
    def cpu(measure, system):
        return statistics.median(v for v, _ in rows[(measure, system, idle)])

    say(f"cpu.idle = {idle}: CPU time of program and daemons; in brackets: goals")
    for measure, goals in BYTES.items():
        floor = cpu(measure, "tmpfs")
        parts = [f"{s}: tmpfs {cpu(measure, s) - floor:+.2f} s/GiB ({g if g else 'kernel'}), {statistics.median(r for _, r in rows[(measure, s, idle)]) * 1024:.0f} MiB/s" for s, g in zip(("one", "processes"), goals)]
        say(f"{measure:22} tmpfs {floor:.2f} s/GiB; " + "; ".join(parts))
    for measure, goals in OPERATIONS.items():
        floor = cpu(measure, "null")
        parts = [f"{s}: {cpu(measure, s) / floor:.2f}x ({g}x), {1e6 * cpu(measure, s):.1f} us" for s, g in zip(("one", "processes"), goals)]
        say(f"{measure:22} null {1e6 * floor:.1f} us; " + "; ".join(parts))


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--stria", default=HERE / "../target/release/stria", type=Path, help="the program")
    p.add_argument("--null", default=HERE / "../target/release/examples/null_fs", type=Path, help="cargo build --release -p stria-fuse --example null_fs")
    p.add_argument("--idle", choices=("deep", "auto"), action="append", help="cpu.idle of servers and mount")
    p.add_argument("--repetitions", type=int, default=3, metavar="N", help="samples of each measure")
    p.add_argument("--mib", type=int, default=1024, metavar="MIB", help="size of the large file")
    p.add_argument("--files", type=int, default=5000, metavar="N", help="files of the rows of operations")
    p.add_argument("--reads", type=int, default=8192, metavar="N", help="random reads")
    p.add_argument("--out", type=Path, metavar="FILE", help="add the rows to this file, too")
    a = p.parse_args()
    for name in ("repetitions", "mib", "files", "reads"):
        if getattr(a, name) < 1:
            p.error(f"--{name} {getattr(a, name)}: at least 1")
    for program in (a.stria, a.null):
        if not os.access(program, os.X_OK):
            p.error(f"{program}: no program is there")
    if os.geteuid() != 0:
        p.error("caches are dropped by root only")
    a.stria, a.null = a.stria.resolve(), a.null.resolve()
    return a


def main():
    a = arguments()
    head = origin(a.stria, f"bench/price.py --repetitions {a.repetitions}")
    base, rows = Path(tempfile.mkdtemp(prefix="stria-price-", dir="/dev/shm")), {}
    try:
        for idle in a.idle or ("deep", "auto"):
            for i in range(a.repetitions):
                for name in SYSTEMS if i % 2 == 0 else SYSTEMS[::-1]:
                    bed = Bed(name, base / name, a, idle)
                    try:
                        sample(bed, rows, a)
                    finally:
                        bed.remove()
            table(rows, idle)
    except Failed as e:
        sys.exit(f"price.py: {e}")
    finally:
        shutil.rmtree(base, ignore_errors=True)
    lines = [json.dumps({**head, "metric": measure, "system": system, "idle": idle, "cpu_s": [round(c, 9) for c, _ in got], "per_s": [round(r, 2) for _, r in got]})
             for (measure, system, idle), got in rows.items()]
    print("\n".join(lines))
    if a.out:
        with open(a.out, "a") as f:
            f.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
