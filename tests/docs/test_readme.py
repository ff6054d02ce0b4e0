"""The README is true: its links lead somewhere, its verbs exist, its calls get answers."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from perdure.cli.main import main
from tests.support.server import ServerProcess

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_to_a_file_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text())

    missing = [link for link in links if not (page.parent / link).exists()]

    assert missing == []


def test_every_make_verb_in_the_readme_exists() -> None:
    verbs = set(re.findall(r"^ +make (\w+)", README, re.MULTILINE))
    verbs |= set(re.findall(r"`make (\w+)", README))
    listed = subprocess.run(
        ["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout

    assert verbs
    assert [verb for verb in verbs if f"make {verb} " not in listed] == []


def test_the_curl_call_of_the_readme_is_answered(tmp_path: Path) -> None:
    (line,) = re.findall(r"^ +(curl .*)$", README, re.MULTILINE)
    words = shlex.split(line)
    name, _, value = words[words.index("-H") + 1].partition(": ")

    with ServerProcess(tmp_path / "readme.db") as server:
        url = words[-1].replace("http://127.0.0.1:8080", server.url)
        with urlopen(Request(url, headers={name: value})) as answer:
            assert answer.status == 200
            assert b'"workflows":[]' in answer.read()


def test_the_order_of_the_readme_is_fulfilled(tmp_path: Path) -> None:
    [line] = re.findall(r"^ +(DURABLEX_ENGINE_URL=.*)$", README, re.MULTILINE)
    _, python, program = shlex.split(line)
    assert python == ".venv/bin/python"

    with ServerProcess(tmp_path / "readme.db") as server:
        shown = subprocess.run(
            [sys.executable, program],
            cwd=ROOT,
            env={**os.environ, "DURABLEX_ENGINE_URL": server.url},
            capture_output=True,
            text=True,
            timeout=60,
        )

    assert shown.stdout.splitlines() == [
        "charged A1, label for A1, packed by Ann",
        "  charge: succeeded, attempt 2",
        "  label: succeeded, attempt 1",
        "  cool off: succeeded, attempt 1",
        "  packed: succeeded, attempt 1",
    ], shown.stderr


def test_serve_without_credentials_ends_with_one_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DW_AUTH_TOKEN", "DW_AUTH_DRIVER", "DW_WORKER_TOKEN"):
        monkeypatch.delenv(name, raising=False)

    assert main(["serve", "--port", "0"]) == 2

    assert capsys.readouterr().err.count("\n") == 1


def test_the_package_runs_as_a_module() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "perdure", "--version"], capture_output=True, text=True, check=True
    ).stdout

    assert shown.startswith("perdure ")
