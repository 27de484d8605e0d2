"""The repository's address, from every form a remote or GitHub Actions gives it in."""

import subprocess
from pathlib import Path

import pytest
import yaml

from tools.repository import detect, parse_remote
from tools.stage import ADDRESS, _place_address, with_repository

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize(
    "url",
    [
        "https://github.com/acme/batching",
        "https://github.com/acme/batching/",
        "https://github.com/acme/batching.git",
        "http://github.com/acme/batching.git\n",
        "https://GitHub.com/acme/batching.git",
        "https://www.github.com/acme/batching",
        "https://s3cret@github.com/acme/batching.git",
        "https://x-access-token:s3cret@github.com/acme/batching.git",
        "https://github.com:443/acme/batching.git",
        "git@github.com:acme/batching.git",
        "git@github.com:/acme/batching",
        "github.com:acme/batching.git",
        "ssh://git@github.com/acme/batching.git",
        "ssh://git@github.com:22/acme/batching",
        "ssh://git@ssh.github.com:443/acme/batching.git",
        "git://github.com/acme/batching.git",
    ],
)
def test_github_remotes(url: str) -> None:
    assert parse_remote(url) == "acme/batching"


def test_a_name_may_hold_dots() -> None:
    assert parse_remote("git@github.com:acme/batching.llm.git") == "acme/batching.llm"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "https://gitlab.com/acme/batching.git",
        "https://github.com.example.org/acme/batching.git",
        "https://example.org/github.com/acme/batching",
        "https://user@example.org/@github.com/acme/batching",
        "https://github.com/acme",
        "https://github.com/acme/..",
        "https://github.com/acme/batching/tree/main",
        "git@example.org:acme/batching.git",
        "/srv/git/acme/batching.git",
        "../batching",
        "file:///srv/github.com/acme/batching.git",
    ],
)
def test_anything_else_is_no_repository(url: str) -> None:
    assert parse_remote(url) is None


def test_actions_first_then_the_remote(tmp_path: Path) -> None:
    assert detect(tmp_path, {"GITHUB_REPOSITORY": "acme/batching"}) == "acme/batching"
    elsewhere = {"GITHUB_REPOSITORY": "acme/batching", "GITHUB_SERVER_URL": "https://git.example.org"}
    assert detect(tmp_path, elsewhere) is None
    git = ["git", "-C", str(tmp_path)]
    subprocess.run([*git, "init", "-q"], check=True)
    assert detect(tmp_path, {}) is None
    subprocess.run(
        [*git, "remote", "add", "origin", "https://u:s3cret@github.com/acme/other.git"], check=True
    )
    assert detect(tmp_path, {}) == "acme/other"
    assert detect(tmp_path, {"GITHUB_REPOSITORY": "not a name"}) == "acme/other"


def test_buttons_work_or_are_left_out() -> None:
    config = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
    with_none = with_repository(config, None, "book/00-one.ipynb")
    assert not with_none["repository"]["url"]
    assert "binderhub_url" not in with_none["launch_buttons"]
    assert with_none["parse"]["myst_substitutions"]["binder_badge"] == ""
    made = with_repository(config, "acme/batching", "book/00-one.ipynb")
    assert made["repository"] == {
        "url": "https://github.com/acme/batching",
        "path_to_book": "",
        "branch": "main",
    }
    assert made["html"]["use_repository_button"]
    badge = made["parse"]["myst_substitutions"]["binder_badge"]
    assert "/v2/gh/acme/batching/main?urlpath=lab/tree/book/00-one.ipynb" in badge


def test_the_commands_that_fetch_the_book_name_its_address(tmp_path: Path) -> None:
    told = (ROOT / "book" / "running.md").read_text(encoding="utf-8")
    assert told.count(ADDRESS) == 2
    page = tmp_path / "running.md"
    page.write_text(told, encoding="utf-8")
    _place_address(page, "acme/batching")
    made = page.read_text(encoding="utf-8")
    assert ADDRESS not in made and made.count("git clone https://github.com/acme/batching ") == 1
    _place_address(tmp_path / "no such page", "acme/batching")
