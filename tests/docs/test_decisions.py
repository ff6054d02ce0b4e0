"""The index of decisions names every record, and records keep their form."""

import re
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "docs" / "decisions"
RECORDS = sorted(FOLDER.glob("0*.md"))
INDEX = (FOLDER / "README.md").read_text()
COLUMNS_MAX = 100


def test_the_index_names_every_record_with_its_title() -> None:
    rows = re.findall(r"^\| \[(\d+)\]\(([^)]+)\) \| (.+?) \| ", INDEX, re.MULTILINE)
    titles = []
    for path in RECORDS:
        heading = re.match(r"# (\d+)\. (.+)", path.read_text())
        assert heading is not None, path.name
        assert int(path.name[:4]) == int(heading[1]), path.name
        titles.append((heading[1], path.name, heading[2]))
    assert rows == titles


def test_missing_numbers_are_explained() -> None:
    known = {int(path.name[:4]) for path in RECORDS}
    missing = set(range(1, max(known))) - known
    explained = INDEX.split("The numbers ")[1].split(" were reserved")[0]
    assert {int(number) for number in re.findall(r"\d+", explained)} == missing


def test_lines_of_records_are_at_most_100_columns() -> None:
    for path in RECORDS:
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            is_long = len(line) > COLUMNS_MAX and not line.startswith("|")
            assert not is_long, f"{path.name}:{number} has {len(line)} columns"
