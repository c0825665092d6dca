"""Builds the wheel: `pip wheel --no-deps -w DIRECTORY crates/libstria/python`, or `python3 backend.py DIRECTORY` where there is no pip.

The wheel holds the package and libstria.so.0, linked from the archive that STRIA_ARCHIVE names, or from a release build that is
made for it. It needs nothing of PyPI, neither to be built nor to be used; numpy, pyarrow and fsspec are the user's choice."""
import base64
import hashlib
import os
import pathlib
import subprocess
import sys
import sysconfig
import tempfile
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
LIBRARY = HERE.parent
ROOT = LIBRARY.parent.parent


def version():
    lines = (ROOT / "Cargo.toml").read_text().split("[workspace.package]")[1].splitlines()
    return next(line.split('"')[1] for line in lines if line.startswith("version"))


def archive():
    told = os.environ.get("STRIA_ARCHIVE")
    if told:
        return pathlib.Path(told).resolve()
    subprocess.run(["cargo", "build", "--release", "-p", "stria-libstria"], cwd=ROOT, check=True)
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    return target / "release" / "libstria.a"


def metadata(name):
    text = f"Metadata-Version: 2.1\nName: stria\nVersion: {version()}\nSummary: Files of a Stria mount, past the kernel\n"
    wheel = f"Wheel-Version: 1.0\nGenerator: backend.py\nRoot-Is-Purelib: false\nTag: {tag()}\n"
    points = "[fsspec.specs]\nstria = stria.fs:StriaFileSystem\n"
    return {f"{name}/METADATA": text, f"{name}/WHEEL": wheel, f"{name}/entry_points.txt": points}


def tag():
    return "py3-none-" + sysconfig.get_platform().replace("-", "_").replace(".", "_")


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    name = f"stria-{version()}.dist-info"
    files = {path: text.encode() for path, text in metadata(name).items()}
    for source in sorted((HERE / "stria").glob("*.py")):
        files[f"stria/{source.name}"] = source.read_bytes()
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run(["sh", LIBRARY / "link.sh", archive(), directory], check=True)
        subprocess.run(["strip", "--strip-debug", f"{directory}/libstria.so.0"], check=False)
        files["stria/libstria.so.0"] = pathlib.Path(directory, "libstria.so.0").read_bytes()
    digest = lambda data: base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    record = "".join(f"{path},sha256={digest(data)},{len(data)}\n" for path, data in files.items())
    files[f"{name}/RECORD"] = (record + f"{name}/RECORD,,\n").encode()
    wheel = f"stria-{version()}-{tag()}.whl"
    with zipfile.ZipFile(pathlib.Path(wheel_directory, wheel), "w", zipfile.ZIP_DEFLATED) as out:
        for path, data in files.items():
            out.writestr(path, data)
    return wheel


if __name__ == "__main__":
    print(build_wheel(sys.argv[1]))
