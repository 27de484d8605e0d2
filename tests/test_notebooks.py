"""How chapters are stored, and that nothing in the repository speaks of one machine."""

import re
import subprocess
import sys
from importlib import util
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
from IPython.core.inputtransformer2 import TransformerManager

from tools.project import Project

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted(
    path for path in (ROOT / "book").rglob("*.ipynb") if ".ipynb_checkpoints" not in path.parts
)
MAX_LINES = 25  # of code in a cell: what a reader takes in at once
EXERCISE = re.compile(r":::\{exercise-start\}\n:label: (\S+)\n:::\n(.+?)\n:::\{exercise-end\}", re.S)
SOLUTION = re.compile(r":::\{solution-start\} (\S+)\n:class: dropdown\n:::\n(.+?)\n:::\{solution-end\}", re.S)
# Put together here, so that this file does not hold them.
FORBIDDEN = [
    "/work" + "/",
    "/ro" + "ot/",
    ".lib" + "rary",
    "../" + "shared",
    "py" + "pi.org",
    "python" + "hosted",
]


def read(path: Path) -> nbformat.NotebookNode:
    return nbformat.read(path, as_version=4)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_notebook_is_valid_and_stored_without_results(path: Path) -> None:
    notebook = read(path)
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.name == "python3"
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert not cell.outputs, f"outputs are stored with: {cell.source[:60]}"
            assert cell.execution_count is None, f"an execution count is stored with: {cell.source[:60]}"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_code_cells_are_short(path: Path) -> None:
    for cell in read(path).cells:
        if cell.cell_type == "code":
            lines = [line for line in cell.source.splitlines() if line.strip()]
            assert len(lines) <= MAX_LINES, f"{len(lines)} lines: {cell.source[:60]}"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_every_chapter_has_exercises_whose_solutions_run(path: Path) -> None:
    text = "\n".join(
        f"```python\n{cell.source}\n```" if cell.cell_type == "code" else cell.source
        for cell in read(path).cells
    )
    asked, solved = dict(EXERCISE.findall(text)), dict(SOLUTION.findall(text))
    assert 2 <= len(asked) <= 4
    assert list(asked) == list(solved)
    assert any(re.search("predict|guess", question, re.I) for question in asked.values())
    for label, solution in solved.items():
        assert "```python" in solution, f"{label}: the solution is not run"


def test_every_chapter_starts_with_the_same_hidden_cell_for_colab() -> None:
    cells = [next(cell for cell in read(path).cells if cell.cell_type == "code") for path in NOTEBOOKS]
    assert len({cell.source for cell in cells}) == 1
    for cell in cells:
        assert cell.metadata.tags == ["remove-cell"]  # from the page, not from the notebook


@pytest.mark.parametrize(
    ("on_colab", "is_there", "fetched"),
    [(True, False, True), (True, True, False), (False, False, False)],
    ids=["Colab", "Colab, again", "a kernel without the package"],
)
def test_only_colab_fetches_the_package(
    on_colab: bool, is_there: bool, fetched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[tuple[str, str]] = []
    shell = SimpleNamespace(run_line_magic=lambda name, line: ran.append((name, line)))
    if on_colab:
        monkeypatch.setitem(sys.modules, "google.colab", SimpleNamespace())
    monkeypatch.setattr(util, "find_spec", lambda name: object() if is_there else None)
    cell = next(cell for cell in read(NOTEBOOKS[0]).cells if cell.cell_type == "code")
    exec(TransformerManager().transform_cell(cell.source), {"get_ipython": lambda: shell})
    assert bool(ran) == fetched
    for name, line in ran:
        assert name == "pip" and "git+https://github.com/" in line
        assert "torch" not in line and "--upgrade" not in line  # Colab's own stays


def test_toc_names_files_that_exist_and_every_chapter() -> None:
    chapters = Project(ROOT).chapters()  # raises if the table names a missing file
    assert sorted(chapter.path for chapter in chapters) == NOTEBOOKS
    numbers = [chapter.number for chapter in chapters]
    assert numbers == sorted(set(numbers)), "chapters are numbered by their file names, in order"


def test_no_file_speaks_of_one_machine() -> None:
    try:
        listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    for name in filter(None, names.split("\0")):
        path = ROOT / name
        if path.is_file():
            text = path.read_text(encoding="utf-8", errors="ignore")
            assert not [word for word in FORBIDDEN if word in text], name
