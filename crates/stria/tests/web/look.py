#!/usr/bin/env python3
"""The page of `stria web` in a real Chromium, over a real cluster: looks, keyboard, widths, dark mode, a killed OST.

    python3 crates/stria/tests/web/look.py target/debug/stria PICTURES

Needs root, /dev/fuse and a program `chromium` (apt-get install chromium). Makes a cluster of three OSTs in a temporary
directory, puts some load on it, and drives Chromium over its debugging pipe. Ends with 1 and the reason when a check fails;
the pictures in the directory PICTURES are for people to look at. CI does not run it: Chromium is several 100 MB.
"""
import json
import os
import pathlib
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from base64 import b64decode

PATIENCE_S = 60


class Browser:
    """A headless Chromium with one page."""

    def __init__(self, profile):
        (ours_in, theirs_out), (theirs_in, ours_out) = os.pipe(), os.pipe()

        def descriptors():
            # Chromium reads commands from 3 and writes answers to 4.
            os.dup2(theirs_in, 13)
            os.dup2(theirs_out, 14)
            os.dup2(13, 3)
            os.dup2(14, 4)

        self.process = subprocess.Popen(
            ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run",
             f"--user-data-dir={profile}", "about:blank"],
            preexec_fn=descriptors, close_fds=False, stderr=subprocess.DEVNULL)
        os.close(theirs_in)
        os.close(theirs_out)
        self.read, self.write, self.rest, self.number, self.session = ours_in, ours_out, b"", 0, None
        self.complaints = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ["Page", "Runtime", "Log"]:
            self.call(f"{domain}.enable")

    def message(self, until):
        while b"\0" not in self.rest:
            if not select.select([self.read], [], [], max(0, until - time.monotonic()))[0]:
                raise SystemExit("chromium does not answer")
            piece = os.read(self.read, 1 << 20)
            if not piece:
                raise SystemExit("chromium ended")
            self.rest += piece
        line, self.rest = self.rest.split(b"\0", 1)
        return json.loads(line)

    def call(self, method, **parameters):
        self.number += 1
        question = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            question["sessionId"] = self.session
        os.write(self.write, json.dumps(question).encode() + b"\0")
        until = time.monotonic() + PATIENCE_S
        while True:
            told = self.message(until)
            if told.get("id") == self.number:
                if "error" in told:
                    raise SystemExit(f"{method}: {told['error']}")
                return told["result"]
            if told.get("method") == "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(told["params"])[:600])
            if told.get("method") == "Log.entryAdded" and told["params"]["entry"]["level"] == "error":
                self.complaints.append(told["params"]["entry"]["text"] + " " + told["params"]["entry"].get("url", ""))

    def value(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        check("exceptionDetails" not in result, f"{expression}: {result}")
        return result["result"].get("value")

    def until(self, expression):
        end = time.monotonic() + PATIENCE_S
        while not self.value(expression):
            check(time.monotonic() < end, f"never: {expression}; the page says {self.value('document.body.innerText')[:800]}")
            time.sleep(0.1)

    def press(self, key, shift=False):
        codes = {"Tab": 9, "Enter": 13, "Escape": 27}
        event = {"key": key, "code": key, "windowsVirtualKeyCode": codes[key], "modifiers": 8 if shift else 0}
        self.call("Input.dispatchKeyEvent", type="keyDown", text="\r" if key == "Enter" else "", **event)
        self.call("Input.dispatchKeyEvent", type="keyUp", **event)

    def size(self, width, height, dark=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        # Two frames: the layout is the new one then.
        self.value("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def picture(self, path):
        self.value("scrollTo({top: 0, behavior: 'instant'})")
        taken = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(b64decode(taken["data"]))

    def end(self):
        self.process.kill()
        self.process.wait()


def check(so, why):
    if not so:
        raise SystemExit(f"look.py: {why}")


def work(at, over):
    """Load that schedulers, caches and jobs show."""
    block = os.urandom(1 << 20)
    while not over.is_set():
        for name in ["a", "b", "c"]:
            with open(at / name, "wb") as f:
                for _ in range(8):
                    f.write(block)
                os.fsync(f.fileno())
            with open(at / name, "rb") as f:
                while f.read(1 << 20):
                    pass


def structure(page):
    """What a screen reader goes by."""
    for expression in [
        "document.documentElement.lang === 'en'",
        "document.querySelectorAll('main').length === 1 && document.querySelectorAll('h1').length === 1",
        "[...document.querySelectorAll('table')].every(t => t.caption && t.caption.textContent)",
        "[...document.querySelectorAll('section')].every(s => document.getElementById(s.getAttribute('aria-labelledby')))",
        "[...document.querySelectorAll('select, input')].every(s => s.labels.length > 0)",
        "[...document.querySelectorAll('svg[role=img]')].every(s => s.getAttribute('aria-label'))",
        "[...document.querySelectorAll('.scroll')].every(s => s.tabIndex === 0)",
        "[...document.querySelectorAll('[aria-live], [role=alert], [role=status]')].length <= 3",
    ]:
        check(page.value(expression), f"not so: {expression}")


def keyboard(page):
    """A policy is switched without a mouse."""
    page.value("document.activeElement.blur(), scrollTo(0, 0)")
    page.press("Tab")
    check(page.value("document.activeElement.className") == "skip", "the first stop is the way past the links")
    page.press("Enter")
    check(page.value("document.activeElement.id") == "main", "the way past the links leads to the cluster")
    page.value("{const s = document.getElementById('switch-nrs'); s.value = 'crrn'; s.dispatchEvent(new Event('change')); s.focus()}")
    page.press("Tab")
    page.press("Enter")
    check(page.value("document.getElementById('confirm').open"), "the page asks before it switches")
    check("ost.OSS.ost_io.nrs_policies to crrn" in page.value("document.getElementById('confirm-text').textContent"), "says what")
    page.press("Escape")
    check(not page.value("document.getElementById('confirm').open"), "Escape leaves it as it is")
    page.press("Enter")
    page.press("Tab")
    check(page.value("document.activeElement.id") == "confirm-yes", "the second button switches")
    page.press("Enter")
    page.until("document.getElementById('policies-result').textContent.startsWith('set to crrn: ost.OSS')")
    page.until("[...document.querySelectorAll('#schedulers tbody tr')].every(r => r.cells[1].textContent === 'crrn')")


def looks(page, pictures):
    """No width makes the page scroll sideways; pictures of each."""
    for name, width, height, dark in [("wide", 1280, 900, False), ("wide-dark", 1280, 900, True), ("tablet", 768, 1000, False),
                                      ("phone", 360, 740, False), ("phone-dark", 360, 740, True)]:
        page.size(width, height, dark)
        over = page.value("document.documentElement.scrollWidth - innerWidth")
        check(over <= 0, f"{name}: the page is {over} px wider than {width}")
        page.picture(pictures / f"{name}.png")
    page.size(1280, 900)


def run(stria, pictures, place):
    cluster, at = place / "c", place / "mnt"
    at.mkdir()
    call = lambda *arguments: subprocess.run([stria, *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout
    call("up", "--dir", str(cluster), "--mount", str(at), "--osts", "3", "--processes", "--background")
    over, web, page = threading.Event(), None, None
    load = threading.Thread(target=work, args=(at, over))
    try:
        load.start()
        environment = {**os.environ, "STRIA_ANNOUNCE": "1"}
        web = subprocess.Popen([stria, "web", str(at), "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True, env=environment)
        url = web.stdout.readline().strip().removeprefix("ready ")
        page = Browser(place / "profile")
        page.call("Page.navigate", url=url.split("?")[0])
        page.until("document.readyState === 'complete' && !!document.querySelector('form')")
        page.size(360, 740)
        page.picture(pictures / "login.png")
        # The refusal before the token was shown is meant.
        page.complaints.clear()
        page.size(1280, 900)
        page.call("Page.navigate", url=url)
        page.until("document.getElementById('state')?.textContent === 'live'")
        page.until("document.querySelector('#servers tbody').rows.length === 4")
        page.until("document.querySelectorAll('#uses tbody th').length > 1 && !/–/.test(document.querySelector('#charts').textContent)")
        check("token" not in page.value("location.href"), "the token stays in the address")
        check("stria-web" not in page.value("document.cookie"), "scripts see the cookie")
        structure(page)
        time.sleep(15)
        looks(page, pictures)
        # Who comes later sees what was before.
        page.call("Page.reload")
        page.until("document.getElementById('state')?.textContent === 'live'")
        page.until("document.querySelector('#charts path').getAttribute('d').split('L').length > 10")
        keyboard(page)
        stop_one(stria, page, place, pictures)
        stop_mount(call, page, at, pictures)
        check(not page.complaints, f"the browser complains: {page.complaints}")
    finally:
        over.set()
        for process in [web, page and page.process]:
            if process:
                process.kill()
                process.wait()
        load.join()
        subprocess.run([stria, "umount", str(at)], check=False)


def stop_one(stria, page, place, pictures):
    """A stopped OST is shown as such, and what to do; then it goes on."""
    listed = subprocess.run([stria, "status", "--dir", str(place / "c")], stdout=subprocess.PIPE, text=True, check=True).stdout
    pid = next(int(line.split()[2]) for line in listed.splitlines() if line.startswith("  ost1 "))
    os.kill(pid, signal.SIGSTOP)
    try:
        page.until(f"document.getElementById('troubles').textContent.includes('kill -CONT {pid}')")
        page.until("/does not answer since/.test(document.querySelector('#servers tbody').textContent)")
        page.until("document.title.startsWith('(1) Stria')")
        page.picture(pictures / "stopped.png")
        page.size(360, 740)
        page.picture(pictures / "stopped-phone.png")
        page.size(1280, 900)
    finally:
        os.kill(pid, signal.SIGCONT)
    page.until("document.getElementById('troubles').textContent.includes('none that is known')")


def stop_mount(call, page, at, pictures):
    """The daemon that is asked stands still: the page says so and keeps what was known."""
    pid = json.loads(call("status", "--json", str(at)))["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        page.until("document.getElementById('state').textContent.startsWith('this mount does not answer since')")
        page.until(f"document.getElementById('troubles').textContent.includes('kill -CONT {pid}')")
        check(page.value("document.querySelector('#servers tbody').rows.length") == 4, "what was known stays")
        check("serves" not in page.value("document.getElementById('servers').textContent"), "the page says what it does not know")
        page.picture(pictures / "stale.png")
    finally:
        os.kill(pid, signal.SIGCONT)
    page.until("document.getElementById('state').textContent === 'live'")


def main():
    check(len(sys.argv) == 3, "write: look.py STRIA PICTURES")
    check(shutil.which("chromium"), "there is no chromium: apt-get install chromium")
    pictures = pathlib.Path(sys.argv[2])
    pictures.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        run(str(pathlib.Path(sys.argv[1]).absolute()), pictures, pathlib.Path(place))
    print(f"fine; the pictures are in {pictures}")


if __name__ == "__main__":
    main()
