"""The scheduling core imports the standard library only, works without metadata, and policies stay short."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import llmserve

PACKAGE = Path(llmserve.__file__).parent
# base.py holds the questions themselves and order.py the keys: neither is an answer
NO_POLICY = ("__init__", "base", "order")
POLICY_FILES = sorted(p for p in (PACKAGE / "policies").glob("*.py") if p.stem not in NO_POLICY)
HEAVY = {"torch", "numpy", "pandas", "tqdm", "matplotlib", "transformers", "joblib", "IPython", "scipy"}

SIMULATE = """
import json, sys
import llmserve, llmserve.settings, llmserve.progress
from llmserve import costmodel, loop, metrics, policies, pool, request, run, workload
from llmserve import commands, race, trace, traffic
engine = costmodel.SimulatedEngine(8, 416, costmodel.CostModel(weights=0.04, per_token=0.001))
outputs = []
for policy in (policies.Static(8), policies.Dynamic(8, 0.3), policies.Bucketed(8), policies.Continuous(8),
               policies.Mixed(8), policies.Chunked(8, 64), policies.ShortestRemaining(8, 32)):
    log = loop.serve(workload.HEADLINE.requests(0.04), policy, engine)
    log.save(sys.argv[1])
    outputs.append(metrics.summarise(run.Run.load(sys.argv[1]), metrics.SLO.relative(0.04)).n)
raced = race.race([policies.Static(8), policies.Chunked(8, 64)], traffic.read_csv(traffic.EXAMPLE))
trace.write_trace(raced.runs["Static(8)"], sys.argv[1])
assert str(raced) and raced._repr_html_() and not raced.errors
llmserve.settings.Settings.from_env({})
from llmserve import playtext
assert "result" in json.loads(playtext.answer('{"settings": {"requests": 8}}'))
print(json.dumps([outputs, llmserve.__version__, sorted(sys.modules)]))
"""


@pytest.mark.parametrize("flags", [[], ["-S"]], ids=["as installed", "without site-packages"])
def test_the_core_simulates_on_the_standard_library_alone(flags: list[str], tmp_path: Path) -> None:
    # a copy outside the checkout and any installed metadata, found through PYTHONPATH only
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "llmserve").symlink_to(PACKAGE, target_is_directory=True)
    environ = {**os.environ, "PYTHONPATH": str(tmp_path / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, *flags, "-c", SIMULATE, str(tmp_path / "run.gz")],
        cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    outputs, version, modules = json.loads(done.stdout)
    assert outputs == [64] * 7
    assert version == llmserve.__version__
    loaded = {name.partition(".")[0] for name in modules}
    assert not loaded & HEAVY
    if "-S" in flags:  # nothing but ours and Python's own
        assert loaded - set(sys.stdlib_module_names) <= {"llmserve", "__main__"}


def code_lines(path: Path) -> int:
    """Lines that hold code: not blank, not a comment, not a docstring."""
    text = path.read_text(encoding="utf-8")
    lines = {
        n for n, line in enumerate(text.splitlines(), 1) if line.strip() and not line.strip().startswith("#")
    }
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            lines -= set(range(node.lineno, node.end_lineno + 1))
    return len(lines)


@pytest.mark.parametrize("path", POLICY_FILES, ids=lambda path: path.name)
def test_a_policy_file_has_at_most_30_lines_of_code(path: Path) -> None:
    assert code_lines(path) <= 30


def test_there_is_one_file_a_policy() -> None:
    names = {path.stem for path in POLICY_FILES}
    assert {"static", "dynamic", "bucketed", "continuous", "mixed", "chunked", "preemptive"} <= names
