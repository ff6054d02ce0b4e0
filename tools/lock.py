"""Writes locks/*.txt: complete, hash-pinned lists of wheels that name no registry and no machine.

Runs pip-compile in a throwaway environment, through whatever registry pip is configured with. Pins
that still fit are kept; `--upgrade` (or any other option of pip-compile) is passed on.
"""

import email
import re
import subprocess
import sys
import tempfile
import tomllib
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SDK = "durable-workflow"
SDK_VERSIONS = ("0.4.106", "2.0.0", "2.12.0")
PUSH_SDK = "duraton==0.1.2"  # the published SDK of the push protocol: locks/sdk-duraton.txt

# Requirements of an SDK that could not be met when the lock was written, and what we take instead.
RELAXED = {"2.12.0": {"certifi>=2026.10.19": "certifi==2026.10.18"}}
RELAXED_NOTE = """\
#
# durable-workflow 2.12.0 asks for certifi>=2026.10.19, but the newest to be had at the time was
# 2026.10.18. The list is complete, so --no-deps installs it; `pip check` still mentions it.
"""
HEADER = """\
# Written by `make lock`. Install with: pip install --no-deps --require-hashes -r {name}.txt
"""
COMPILE = [
    *("--quiet", "--generate-hashes", "--allow-unsafe", "--strip-extras"),
    *("--no-header", "--annotation-style=line", "--no-emit-options"),
    *("--no-emit-index-url", "--no-emit-trusted-host", "--no-emit-find-links"),
]
FORBIDDEN = re.compile(r"https?:|file:/|--index-url|--find-links|--trusted-host|via .*[ ,]/")


def main(options: list[str]) -> None:
    """Write every lock, from the smallest to the largest."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    runtime = project["project"]["dependencies"]
    dev = project["dependency-groups"]["dev"] + project["build-system"]["requires"]

    with tempfile.TemporaryDirectory() as directory:
        bench = Workbench(Path(directory), options)
        bench.compile("runtime", runtime)
        bench.compile("dev", ["-c runtime.txt", *runtime, *dev])
        for version in SDK_VERSIONS:
            if version in RELAXED:
                bench.compile_relaxed(f"sdk-{version}", version, RELAXED[version])
            else:
                bench.compile(f"sdk-{version}", [f"{SDK}=={version}"])
        bench.compile("sdk-duraton", [PUSH_SDK])


class Workbench:
    """A throwaway directory with pip-tools in it, where locks are compiled under relative names."""

    def __init__(self, directory: Path, options: list[str]) -> None:
        self._directory = directory
        self._options = options
        venv.create(directory / "venv", with_pip=True)
        self._run("pip", "install", "-q", "--disable-pip-version-check", "pip-tools")

    def compile(
        self, name: str, requirements: list[str], *, note: str = "", more: str = ""
    ) -> None:
        """Resolve the requirements and write locks/NAME.txt."""
        target = ROOT / "locks" / f"{name}.txt"
        lock = self._directory / f"{name}.txt"
        if target.exists():
            lock.write_text(target.read_text())  # pip-compile keeps the pins it finds here
        (self._directory / f"{name}.in").write_text("\n".join(requirements) + "\n")
        self._run("pip-compile", *COMPILE, *self._options, "-o", lock.name, f"{name}.in")

        text = re.sub(r"\n# The following packages are .*", "", lock.read_text())
        text = text.replace(f"-r {name}.in", "us").replace("-c runtime.txt", "runtime")
        text = HEADER.format(name=name) + note + "\n" + text + more
        if leak := FORBIDDEN.search(text):
            raise SystemExit(f"locks/{name}.txt would name a registry or a path: {leak[0]!r}")
        target.write_text(text)
        print(f"wrote locks/{name}.txt")

    def compile_relaxed(self, name: str, version: str, relaxed: dict[str, str]) -> None:
        """Resolve an SDK's own requirements, some of them relaxed, and add its wheel unresolved."""
        pin = f"{SDK}=={version}"
        wheels = self._directory / name
        download = ("--no-deps", "--only-binary", ":all:", "-d", str(wheels))
        self._run("pip", "download", "-q", "--disable-pip-version-check", *download, pin)
        [wheel] = wheels.iterdir()
        [digest] = re.findall(r"--hash=\S+", self._run("pip", "hash", str(wheel)))
        with zipfile.ZipFile(wheel) as archive:
            [metadata] = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
            required = email.message_from_bytes(archive.read(metadata)).get_all("Requires-Dist", [])
        needed = [relaxed.get(line, line) for line in required if "extra ==" not in line]
        more = f"{pin} \\\n    {digest}\n    # via us\n"
        self.compile(name, needed, note=RELAXED_NOTE, more=more)

    def _run(self, program: str, *arguments: str) -> str:
        command = [str(self._directory / "venv" / "bin" / program), *arguments]
        return subprocess.run(
            command, cwd=self._directory, check=True, text=True, stdout=subprocess.PIPE
        ).stdout


if __name__ == "__main__":
    main(sys.argv[1:])
