#!/usr/bin/env python3
"""test.py [STRIA]: the #STRIA lines with a real Slurm, once by prolog and epilog, once as a burst buffer. Needs root, /dev/fuse and
Debian's slurmctld, slurmd, slurm-client and munge:

    apt-get install --no-install-recommends slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge

Everything runs on the loopback interface, from a directory of its own; takes less than two minutes."""
import json, os, pathlib, pwd, secrets, shutil, socket, subprocess, sys, tempfile, time

HERE = pathlib.Path(__file__).resolve().parent
STRIA = str(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else HERE / "../../target/debug/stria").resolve())
MIB, USER = 1 << 20, "nobody"


def run(*words, **options):
    done = subprocess.run(words, capture_output=True, text=True, **options)
    assert done.returncode == 0, f"{' '.join(map(str, words))}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def wait(what, test, seconds=60):
    until = time.monotonic() + seconds
    while not (value := test()):
        assert time.monotonic() < until, f"{what} did not come within {seconds} s"
        time.sleep(0.1)
    return value


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Slurm:
    """A cluster of one node below a directory."""

    def __init__(self, at, burst_buffer):
        self.at, self.children = at, []
        host, tool = socket.gethostname().split(".")[0], HERE / "stria-slurm"
        self.env = dict(os.environ, SLURM_CONF=str(at / "slurm.conf"), STRIA_SLURM_STATE=str(at / "held"), STRIA=STRIA, STRIA_SLURM=str(tool))
        (at / "munge.key").write_bytes(secrets.token_bytes(1024))
        os.chmod(at / "munge.key", 0o400)
        scripts = ""
        for name in ("prolog", "epilog"):
            # slurmd gives them an environment of its own.
            lines = [f"export {k}={self.env[k]}" for k in ("SLURM_CONF", "STRIA_SLURM_STATE", "STRIA", "STRIA_SLURM", "PATH")]
            (at / name).write_text("#!/bin/sh\n" + "\n".join(lines) + f"\nexec {HERE}/{name}.sh\n")
            os.chmod(at / name, 0o755)
            scripts += f"{name.capitalize()}={at}/{name}\n"
        (at / "slurm.conf").write_text(f"""
ClusterName=stria
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={free_port()}
SlurmdPort={free_port()}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={at}/munge.sock
CredType=cred/munge
StateSaveLocation={at}/state
SlurmdSpoolDir={at}/spool
SlurmctldPidFile={at}/slurmctld.pid
SlurmdPidFile={at}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,bf_interval=1
PrologFlags=Alloc
ReturnToService=2
KillWait=1
{"BurstBufferType=burst_buffer/lua" if burst_buffer else scripts}
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=main Nodes={host} Default=YES MaxTime=10 State=UP OverSubscribe=FORCE:4
""")
        if burst_buffer:
            (at / "burst_buffer.conf").write_text("Directive=STRIA\n")
            shutil.copy(HERE / "burst_buffer.lua", at / "burst_buffer.lua")
        for name in ("state", "spool", "jobs"):
            (at / name).mkdir()
        os.chmod(at / "jobs", 0o777)
        self.start("munged", "munged", "-F", "--force", f"--key-file={at}/munge.key", f"--socket={at}/munge.sock", f"--pid-file={at}/munged.pid",
                   f"--seed-file={at}/munge.seed", f"--log-file={at}/munged.log")
        wait("munge's socket", (at / "munge.sock").exists)
        self.start("slurmctld", "slurmctld", "-D", "-f", at / "slurm.conf")
        self.start("slurmd", "slurmd", "-D", "-f", at / "slurm.conf", "-N", host)
        wait("the node", lambda: "idle" in self.try_slurm("sinfo", "-h", "-o", "%t"))

    def start(self, name, *words):
        out = open(self.at / f"{name}.out", "w")
        self.children.append(subprocess.Popen(list(map(str, words)), stdout=out, stderr=out, env=self.env))

    def try_slurm(self, *words):
        return subprocess.run(words, capture_output=True, text=True, env=self.env).stdout

    def submit(self, name, lines, body):
        script = self.at / "jobs" / name
        script.write_text("\n".join(["#!/bin/sh", *(f"#STRIA {line}" for line in lines), body, ""]))
        # Slurm gives root no burst buffer.
        words = ["sbatch", "--parsable", "-n", "1", "-D", "/", "-o", self.log(name), str(script)]
        done = subprocess.run(words, capture_output=True, text=True, env=self.env, user=USER, group=pwd.getpwnam(USER).pw_gid, extra_groups=[])
        return done.stdout.strip(), done.stderr

    def log(self, name):
        return str(self.at / "jobs" / f"{name}.log")

    def state(self, job):
        words = self.try_slurm("scontrol", "show", "job", job).split()
        return next((w.split("=")[1] for w in words if w.startswith("JobState=")), "GONE")

    def held(self):
        text = subprocess.run([str(HERE / "stria-slurm"), "show"], capture_output=True, text=True, env=self.env, check=True).stdout
        return json.loads(text)

    def stop(self):
        for child in reversed(self.children):
            child.terminate()
            try:
                child.wait(20)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def levels(path):
    return [r["level"] for r in json.loads(run(STRIA, "advice", "--json", path))["ranges"]]


def check(slurm, files, burst_buffer):
    one, two = map(str, files)
    released = lambda path: wait(f"the release of {path}", lambda: levels(path) == [])
    # Advised, staged in before the job begins, released when it is over.
    lines = [f"advise=high path={one} stage_in", f"advise=low path={two} range=0-1048576"]
    job, _ = slurm.submit("good", lines, f"{STRIA} advice --json {one} {two}; sleep 1")
    wait("the job's end", lambda: slurm.state(job) == "COMPLETED")
    said = [json.loads(line)["ranges"] for line in pathlib.Path(slurm.log("good")).read_text().splitlines()]
    assert [(r[0]["level"], r[0]["start"], r[0]["end"]) for r in said] == [("high", 0, None), ("low", 0, MIB)], said
    assert said[0][0]["fetched"] == said[0][0]["to_fetch"] > 0, said
    [released(path) for path in (one, two)]
    # A job that fails, and one that is cancelled.
    job, _ = slurm.submit("fails", [f"path={one}"], "exit 3")
    wait("the failure", lambda: slurm.state(job) == "FAILED")
    released(one)
    job, _ = slurm.submit("cancelled", [f"path={one}"], "sleep 600")
    wait("the job", lambda: slurm.state(job) == "RUNNING")
    assert wait("its advice", lambda: levels(one)) == ["high"]
    run("scancel", job, env=slurm.env)
    wait("the cancellation", lambda: slurm.state(job) == "CANCELLED")
    released(one)
    # Two jobs hold one file: the last one releases it, until then it stays at what the other one asked for.
    first, _ = slurm.submit("first", [f"path={one} advise=high"], "sleep 600")
    wait("the first job", lambda: slurm.state(first) == "RUNNING")
    second, _ = slurm.submit("second", [f"path={one} advise=med"], "sleep 600")
    wait("the second job", lambda: slurm.state(second) == "RUNNING")
    wait("both", lambda: len(slurm.held()) == 2)
    run("scancel", first, env=slurm.env)
    wait("the first one's end", lambda: len(slurm.held()) == 1)
    assert levels(one) == ["med"], levels(one)
    run("scancel", second, env=slurm.env)
    released(one)
    # Kept beyond the job, and released by a later one.
    job, _ = slurm.submit("keeps", [f"path={one} keep"], "true")
    wait("the job's end", lambda: slurm.state(job) == "COMPLETED" and not slurm.held())
    assert levels(one) == ["high"]
    job, _ = slurm.submit("releases", [f"path={one} release"], "true")
    wait("the job's end", lambda: slurm.state(job) == "COMPLETED")
    released(one)
    # Bad lines: refused at submission by the burst buffer; told, and no harm to the job, by the prolog.
    job, said = slurm.submit("bad", ["advise=often path=/x"], "echo ran")
    if burst_buffer:
        assert job == "" and "advise=often: write one of cache, low, med, high" in said, (job, said)
    else:
        wait("the job's end", lambda: slurm.state(job) == "COMPLETED")
        assert pathlib.Path(slurm.log("bad")).read_text() == "ran\n"
    wait("nothing to be held", lambda: not slurm.held())
    # A job that Slurm knows no more: its node died, and no epilog ran.
    script = slurm.at / "jobs" / "gone"
    script.write_text(f"#!/bin/sh\n#STRIA path={one}\n")
    run(HERE / "stria-slurm", "begin", "999999", str(pwd.getpwnam(USER).pw_uid), script, env=slurm.env)
    assert levels(one) == ["high"] and list(slurm.held()) == ["999999"]
    run(HERE / "stria-slurm", "sweep", env=slurm.env)
    assert levels(one) == [] and not slurm.held()


def main():
    missing = [p for p in ("slurmctld", "slurmd", "sbatch", "munged") if not shutil.which(p)]
    if missing:
        print(f"skipped: {', '.join(missing)} not found; {__doc__}")
        return 77
    at = pathlib.Path(tempfile.mkdtemp(prefix="stria-slurm-", dir="/dev/shm"))
    os.chmod(at, 0o755)
    mount = at / "mnt"
    mount.mkdir()
    slurm = None
    try:
        run(STRIA, "up", "--dir", at / "cluster", "--mount", mount, "--osts", "2", "--background")
        files = [mount / "one", mount / "two"]
        [f.write_bytes(bytes(4 * MIB)) for f in files]
        os.sync()
        for burst_buffer in (False, True):
            place = at / ("burst" if burst_buffer else "prolog")
            place.mkdir()
            slurm = Slurm(place, burst_buffer)
            try:
                check(slurm, files, burst_buffer)
            except AssertionError:
                for log in sorted(place.glob("*.out")):
                    print(f"== {log.name}\n{log.read_text()[-3000:]}", file=sys.stderr)
                raise
            finally:
                slurm.stop()
            print(f"ok: {'burst_buffer.lua' if burst_buffer else 'prolog and epilog'}", flush=True)
    finally:
        subprocess.run([STRIA, "umount", mount], capture_output=True)
        shutil.rmtree(at, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
