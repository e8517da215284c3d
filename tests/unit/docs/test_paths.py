"""The files that the documentation names are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "spica_async"


@pytest.mark.parametrize("page", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_each_file_and_folder_is_there(page: str) -> None:
    named = re.findall(r"`([\w-]+(?:/[\w-]+)*(?:\.py|/))`", (ROOT / page).read_text())
    assert named
    places = (ROOT, PACKAGE, *PACKAGE.iterdir())
    assert not [name for name in named if not any((place / name).exists() for place in places)]


def test_the_walk_of_a_candidate_names_its_files() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    walk = text.partition("## One candidate")[2].partition("\n## ")[0]
    files = set(re.findall(r"`([\w/]+\.py)`", walk))
    assert len(files) > 20
    assert len(re.findall(r"^\d+\. ", walk, flags=re.MULTILINE)) <= 20
