#!/usr/bin/env python3
"""CPU time of the threads of a mount's process for cold reads, creates and stats, without and with two movers, alternating.

Over TCP, one MDS and one OSS of three OSTs, each a process. A line of JSON for each run.
Usage: bench/threads.py TEST_BINARY uring|dev REPETITIONS MIB (TEST_BINARY: cargo test -p stria-cluster --test wide --no-run)."""
import json, os, subprocess, sys, tempfile, time, ctypes, threading
binary, transport, reps, mib = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
libc = ctypes.CDLL(None, use_errno=True)
HZ = os.sysconf("SC_CLK_TCK")

def role(*words):
    env = dict(os.environ, STRIA_TEST_ROLE="\n".join(words))
    p = subprocess.Popen([binary, "--exact", "a_role_serves_in_a_process_of_its_own", "--nocapture"], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    for line in p.stdout:
        if line.startswith("ready "):
            return p, line[6:].strip()
    raise SystemExit(f"{words}: ended")

def threads(pid):
    """CPU ns by thread: schedstat is exact, stat counts ticks."""
    out = {}
    for t in os.listdir(f"/proc/{pid}/task"):
        try:
            name = open(f"/proc/{pid}/task/{t}/comm").read().strip()
            ns = int(open(f"/proc/{pid}/task/{t}/schedstat").read().split()[0])
        except OSError:
            continue
        key = name if name.startswith(("mover", "oss")) else "shard" if "a_role" in name else "other"
        out[key] = out.get(key, 0) + ns
    return out

def diff(a, b):
    return {k: (b.get(k, 0) - a.get(k, 0)) / 1e6 for k in b}

def read(path, out, i, step=1 << 20):
    fd = os.open(path, os.O_RDONLY)
    n, buf = 0, bytearray(step)
    while True:
        got = os.readv(fd, [buf])
        if got == 0: break
        n += got
    os.close(fd)
    out[i] = n

def main():
    with tempfile.TemporaryDirectory(dir="/dev/shm") as d:
        os.makedirs(d + "/stores")
        mds, mnid = role("mds", d + "/mdt0", "127.0.0.1:0")
        oss, onid = role("oss", d + "/stores", "127.0.0.1:0", mnid, "0,1,2")
        def mounted(movers, work):
            at = tempfile.mkdtemp(dir=d, prefix="mnt")
            p, _ = role("mount", mnid, "3", transport + (f"+{movers}" if movers > 1 else ""), at)
            try:
                before, began = threads(p.pid), time.monotonic()
                work(at)
                took = time.monotonic() - began
                return diff(before, threads(p.pid)), took
            finally:
                libc.umount2(at.encode(), 2)
                p.wait(60)
        def fill(at):
            for f in range(4):
                with open(f"{at}/f{f}", "wb", buffering=0) as out:
                    for i in range(mib // 4):
                        out.write(os.urandom(4096) * 256)
        def one(at):
            for f in range(4):
                got = [0]; read(f"{at}/f{f}", got, 0); assert got[0] == mib // 4 << 20
        def four(at):
            got = [0] * 4
            ts = [threading.Thread(target=read, args=(f"{at}/f{f}", got, f)) for f in range(4)]
            [t.start() for t in ts]; [t.join() for t in ts]
            assert sum(got) == mib << 20
        def creates(at):
            sub = tempfile.mkdtemp(dir=at)
            for i in range(500):
                os.close(os.open(f"{sub}/n{i}", os.O_CREAT | os.O_WRONLY))
        def stats(at):
            for r in range(4):
                for f in range(4):
                    for i in range(125):
                        os.stat(f"{at}/f{f}")
        print(json.dumps({"what": "write", "movers": 0, "mib": mib, "cpu_ms": mounted(1, fill)[0]}))
        for rep in range(reps):
            for what, work, of in (("one reader", one, mib), ("four readers", four, mib), ("create", creates, 500), ("stat", stats, 2000)):
                order = (1, 2) if rep % 2 == 0 else (2, 1)
                for movers in order:
                    cpu, took = mounted(movers, work)
                    print(json.dumps({"what": what, "rep": rep, "transport": transport, "movers": 0 if movers == 1 else movers, "of": of, "seconds": round(took, 3), "cpu_ms": {k: round(v, 2) for k, v in sorted(cpu.items()) if v > 0.005}}), flush=True)
        for p in (oss, mds):
            p.kill()
main()
