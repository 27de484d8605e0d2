"""The repository's address, from every form a remote or GitHub Actions gives it in."""

import subprocess
from pathlib import Path

import pytest
import yaml

from tests.helpers.book import write_book
from tools.cli import main
from tools.repository import detect, parse_remote, written
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
    assert set(with_none["parse"]["myst_substitutions"].values()) == {""}
    made = with_repository(config, "acme/batching", "book/00-one.ipynb")
    assert made["repository"] == {
        "url": "https://github.com/acme/batching",
        "path_to_book": "",
        "branch": "main",
    }
    assert made["html"]["use_repository_button"]
    assert made["launch_buttons"]["colab_url"] and made["launch_buttons"]["binderhub_url"]
    badges = made["parse"]["myst_substitutions"]
    assert "/v2/gh/acme/batching/main?urlpath=lab/tree/book/00-one.ipynb" in badges["binder_badge"]
    assert "/github/acme/batching/blob/main/book/00-one.ipynb" in badges["colab_badge"]


def test_the_commands_that_fetch_the_book_name_its_address(tmp_path: Path) -> None:
    told = (ROOT / "book" / "running.md").read_text(encoding="utf-8")
    assert told.count(ADDRESS) == 1
    page = tmp_path / "running.md"
    page.write_text(told, encoding="utf-8")
    _place_address(page, "acme/batching")
    made = page.read_text(encoding="utf-8")
    assert ADDRESS not in made and made.count("git clone https://github.com/acme/batching ") == 1
    picture = tmp_path / "picture.png"
    picture.write_bytes(b"\x89")
    _place_address(picture, "acme/batching")  # is left alone


def test_the_address_is_written_where_github_shows_files_as_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GITHUB_REPOSITORY", raising=False)
    book = write_book(tmp_path, first_cell=f"%pip install git+{ADDRESS}").root / "book"
    told = f"mybinder.org/v2/gh/OWNER/NAME/main {ADDRESS}/tree github.com/OWNER/NAME-2 OWNER/NAME"
    (tmp_path / "README.md").write_text(told)
    git = ["git", "-C", str(tmp_path)]
    subprocess.run([*git, "init", "-q"], check=True)
    assert main(["address"], tmp_path) == 1
    assert "git remote add origin" in capsys.readouterr().err
    subprocess.run([*git, "remote", "add", "origin", "git@github.com:acme/batching.git"], check=True)
    for files in (2, 0):  # the second time there is nothing to do
        assert main(["address"], tmp_path) == 0
        assert f"acme/batching: written into {files} files" in capsys.readouterr().out
    assert "git+https://github.com/acme/batching" in (book / "00-one.ipynb").read_text()
    assert (tmp_path / "README.md").read_text() == (
        "mybinder.org/v2/gh/acme/batching/main https://github.com/acme/batching/tree "
        "github.com/OWNER/NAME-2 OWNER/NAME"
    )


def test_buttons_of_the_readme_and_cells_of_the_chapters_name_one_repository() -> None:
    slug = written(ROOT)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"mybinder.org/v2/gh/{slug}/main?urlpath=lab/tree/book/00-why-batch.ipynb" in readme
    assert f"colab.research.google.com/github/{slug}/blob/main/book/00-why-batch.ipynb" in readme
    for chapter in (ROOT / "book").glob("*.ipynb"):
        assert f"git+https://github.com/{slug}" in chapter.read_text(encoding="utf-8"), chapter.name
