"""What readers do to a book: run cells twice, interrupt them, work in odd folders, without a display."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest
from helpers.book import write_book
from helpers.tiny import slot_engine
from helpers.worlds import BATCHED, assert_as_alone
from jupyter_client.manager import start_new_kernel
from nbclient import NotebookClient

from llmserve.claims import MIME
from llmserve.loop import serve
from llmserve.measure import interleave
from llmserve.policies import Mixed, Static
from llmserve.request import Request
from llmserve.settings import Settings
from tools.cli import main
from tools.execute import MARKER, execute
from tools.project import Project

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = Settings(weights="random", threads=1)

# -- 17. notebooks ---------------------------------------------------------------------------------


def test_a_page_of_the_book_runs_twice_in_one_kernel() -> None:
    notebook = nbformat.read(ROOT / "book" / "08-hard-cases.ipynb", as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    notebook.cells = [nbformat.v4.new_code_cell(cell.source) for cell in [*code, *code]]
    client = NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(ROOT)}})
    client.execute()
    found = [
        output["data"].get(MIME) for cell in notebook.cells for output in cell.outputs if "data" in output
    ]
    claims = [(claim["id"], claim["verdict"]) for claim in found if claim]
    half = len(claims) // 2
    assert half >= 8 and claims[:half] == claims[half:]


INTERRUPTED = """\
from llmserve.costmodel import CostModel, SimulatedEngine
from llmserve.loop import serve
from llmserve.measure import interleave
from llmserve.policies import Mixed
from llmserve.workload import ZOMBIES
engine = SimulatedEngine(8, 224, CostModel(weights=0.03))
requests = ZOMBIES.requests()
once = lambda: serve(requests, Mixed(8), engine)
before = once()
"""


def test_an_interrupted_cell_leaves_the_next_one_usable() -> None:
    manager, client = start_new_kernel(cwd=str(ROOT))
    try:
        assert reply(client, INTERRUPTED) == "ok"
        # Without stop_on_error, which drops whatever is asked in the moment after a cell has failed.
        asked = client.execute("print('on'); interleave({'a': once}, rounds=10**6)", stop_on_error=False)
        while client.get_iopub_msg(timeout=60)["header"]["msg_type"] != "stream":
            pass  # until it measures
        manager.interrupt_kernel()
        assert answer_to(client, asked)["ename"] == "KeyboardInterrupt"
        assert reply(client, "assert once() == before") == "ok"
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def reply(client: object, code: str) -> str:
    return answer_to(client, client.execute(code))["status"]


def answer_to(client: object, asked: str) -> dict:
    """A kernel that was slow to start also answers those who asked meanwhile whether it had."""
    while (message := client.get_shell_msg(timeout=120))["parent_header"]["msg_id"] != asked:
        pass
    return message["content"]


def test_an_interrupt_in_the_middle_of_a_step_leaves_the_engine_usable() -> None:
    requests = [Request(f"r{i}", (3 + i, 7, 9), 6) for i in range(4)]
    engine = slot_engine(2)
    whole, calls = engine.model, iter(range(100))

    class Interrupted:
        def __getattr__(self, name: str) -> object:
            return getattr(whole, name)

        def __call__(self, *given: object) -> object:
            if next(calls) == 4:
                raise KeyboardInterrupt
            return whole(*given)

    engine.model = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        interleave({"a": lambda: serve(requests, Mixed(2), engine)}, rounds=2)
    for policy in (Mixed(2), Static(2)):
        assert_as_alone(serve(requests, policy, engine), requests, BATCHED)


def obey_permissions() -> None:
    """Take from root the right to write where it may not (a program run from here then lacks it)."""
    if os.getuid() == 0:
        drop_from_bounding_set, override = 24, 1  # PR_CAPBSET_DROP, CAP_DAC_OVERRIDE
        ctypes.CDLL(None).prctl(drop_from_bounding_set, override, 0, 0, 0)


@pytest.mark.skipif(sys.platform != "linux", reason="takes rights away in Linux's way")
def test_a_plain_python_without_display_in_a_folder_it_cannot_write_to(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    locked, log = tmp_path / "locked", tmp_path / "run.gz"
    locked.mkdir(mode=0o555)
    code = f"""
import os, sys
sys.path.insert(0, {str(ROOT)!r})
from llmserve import plots
from llmserve.costmodel import CostModel, SimulatedEngine
from llmserve.loop import serve
from llmserve.policies import Static
from llmserve.workload import ZOMBIES
run = serve(ZOMBIES.requests(), Static(8), SimulatedEngine(8, 224, CostModel(weights=0.03)))
print(run.summary()["n"].item(), type(plots.timeline(run)).__name__)
try:
    run.save("run.gz")
except PermissionError as error:
    print("cannot write", error.filename)
"""
    hidden = {"DISPLAY", "WAYLAND_DISPLAY", "MPLBACKEND"}
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    environment |= {"PYTHONDONTWRITEBYTECODE": "1", "HOME": str(locked)}
    told = subprocess.run(
        [sys.executable, "-c", code],
        cwd=locked,
        env=environment,
        capture_output=True,
        text=True,
        preexec_fn=obey_permissions,
    )
    assert told.stdout.splitlines() == ["48 Figure", "cannot write run.gz"], told.stderr
    assert not list(locked.iterdir()) and not log.exists()


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("SCALE", "banana", "LLMSERVE_SCALE='banana': choose one of quick, full"),
        ("THREADS", "0", "LLMSERVE_THREADS='0': give a whole number of threads, at least 1"),
    ],
)
def test_a_bad_setting_ends_every_command_with_one_sentence(
    name: str,
    value: str,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(f"LLMSERVE_{name}", value)
    for command in (["html"], ["book"], ["record"], ["chapter", "0"]):
        assert main(command, write_book(tmp_path).root) == 1
        assert capsys.readouterr().err.strip() == words


# -- 18. the runner --------------------------------------------------------------------------------

SLOW_RUN = """\
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tools import cli
cli.COMMANDS["book"] = lambda project, options: cli.require(
    cli.run_chapters(project, project.chapters(), cli.Settings(weights="random", threads=1))
)
sys.exit(cli.main(["book"], Path(sys.argv[2])))
"""


def started(project: Project) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SLOW_RUN, str(ROOT), str(project.root)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return (
        "Z" not in Path(f"/proc/{process}/stat").read_text().split()[2:3] if Path("/proc").is_dir() else True
    )


def wait_for(path: Path) -> None:
    limit = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < limit, f"{path.name} never came"
        time.sleep(0.05)


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "killed"])
def test_an_interrupted_run_ends_its_kernel_and_can_be_started_again(tmp_path: Path, end: int) -> None:
    in_cell = tmp_path / "in_cell"
    slow = f"""\
import os, time
from pathlib import Path
Path({str(in_cell)!r}).write_text(str(os.getpid()))
time.sleep(600)"""
    project = write_book(tmp_path / "a book with spaces", slow)
    run = started(project)
    wait_for(in_cell)
    second = started(project)
    assert second.wait(timeout=60) == 1
    assert f"Another `python -m tools book` (process {run.pid}) is running here" in second.stderr.read()
    run.send_signal(end)
    assert run.wait(timeout=60) != 0
    kernel = int(in_cell.read_text() or 0)
    limit = time.monotonic() + 20
    while is_alive(kernel):
        assert time.monotonic() < limit, "the kernel of the interrupted run goes on"
        time.sleep(0.05)
    assert not list(project.executed.rglob(MARKER))

    chapter = write_book(project.root, "6 * 7").chapter(0)
    outcome = execute(project, chapter, SETTINGS, "again")
    assert outcome.failure is None and outcome.ran


def test_a_book_in_a_folder_with_spaces_and_letters_of_other_alphabets_runs(tmp_path: Path) -> None:
    project = write_book(tmp_path / "mein Büch (2)", "40 + 2")
    outcome = execute(project, project.chapter(0), SETTINGS, "one")
    assert outcome.failure is None and outcome.ran
