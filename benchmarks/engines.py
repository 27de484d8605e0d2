"""One workload on this engine and on every other that is installed, in turn, round after round.

    python benchmarks/engines.py --setup      make the environments of the others (some GB, once); TORCH_INDEX
                                              as in the Makefile
    python benchmarks/engines.py              three rounds; --rounds, --only NAME,... and --json FILE

64 requests, all queued at the start, their lengths forced, greedy, float32, at most 8 sequences at once.
Each engine is a process of its own that loads the same weights; while one runs the others are stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from llmserve.hardware import machine, measure_peak
from llmserve.models.load import resolve_weights, source_model
from llmserve.roofline import Peak
from llmserve.settings import Settings
from llmserve.workload import Lognormal, Prompts, Workload

HERE = Path(__file__).resolve().parent
ENVIRONMENTS = HERE / ".environments"
WORKLOAD = Workload("engines", 64, 8, 416, Lognormal(mean=64, sigma=0.8), Prompts(long_share=0.1))
UNWANTED = {"vllm": ("torchvision", "torchaudio", "torchcodec")}  # builds that do not load beside a CPU torch
DISTURBED = 0.9  # a run whose CPU share is below this part of the engine's best is taken again, at most twice
MOST_REDONE = 2


@dataclass(frozen=True)
class Contestant:
    """A script of peers/ and the environment it runs in: None is this one."""

    script: str
    environment: str | None = None
    arguments: tuple[str, ...] = ()

    def command(self, folder: Path) -> list[str]:
        python = ENVIRONMENTS / self.environment / "bin" / "python" if self.environment else sys.executable
        return [str(python), str(HERE / "peers" / f"{self.script}.py"), str(folder), *self.arguments]

    @property
    def installed(self) -> bool:
        return not self.environment or (ENVIRONMENTS / self.environment / ".installed").exists()


CONTESTANTS = {
    "continuous": Contestant("ours", None, ("streamed", "continuous")),
    "chunked-14": Contestant("ours", None, ("streamed", "chunked", "14")),
    "chunked-64": Contestant("ours", None, ("streamed", "chunked", "64")),
    "chunked-256": Contestant("ours", None, ("streamed", "chunked", "256")),
    "packed": Contestant("ours", None, ("packed", "continuous")),
    "openvino": Contestant("openvino_continuous", "openvino"),
    "openvino-own-cap": Contestant("openvino_own_cap", "openvino"),
    "vllm": Contestant("vllm_compiled", "vllm"),
    "transformers": Contestant("transformers_continuous"),
    "transformers-static": Contestant("transformers_static"),
    "ctranslate2": Contestant("ctranslate2_static", "ctranslate2"),
    "llamacpp": Contestant("llamacpp_continuous", "llamacpp"),
}


class Worker:
    """One engine's process: it answers a line "run" with the outcome of the whole workload."""

    def __init__(self, contestant: Contestant, folder: Path) -> None:
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            contestant.command(folder),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
        )
        self.name = self._answer()["engine"]
        self._pause()

    def run(self) -> dict[str, Any]:
        self.process.send_signal(signal.SIGCONT)
        self.process.stdin.write("run\n")
        self.process.stdin.flush()
        answer = self._answer()
        self._pause()
        return answer

    def end(self) -> None:
        self.process.kill()
        self.process.wait()

    def _pause(self) -> None:
        """Some engines' idle threads go on spinning, which would slow down whoever runs."""
        self.process.send_signal(signal.SIGSTOP)

    def _answer(self) -> dict[str, Any]:
        for line in self.process.stdout:
            if line.startswith("@"):
                return json.loads(line[1:])
        self.log.seek(0)
        raise RuntimeError("".join(self.log.readlines()[-5:]).strip() or "it ended without a word")


def main() -> None:
    asked = arguments()
    if asked.setup:
        return set_up()
    settings = Settings.from_env()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        weights = resolve_weights(settings.weights)
        prepare(folder, weights, settings.threads)
        workers = start(asked.only, folder)
        try:
            rounds, peaks = take_rounds(workers, asked.rounds)
        finally:
            for worker in workers.values():
                worker.end()
    record = {
        "machine": {**machine(), "threads": settings.threads, "weights": weights},
        "date": datetime.now(UTC).date().isoformat(),
        "workload": {**asdict(WORKLOAD), **totals()},
        "bandwidth": [peak.bandwidth for peak in peaks],
        "flops": [peak.flops for peak in peaks],
        "engines": [summary(workers[name].name, name, runs, rounds) for name, runs in rounds.items()],
    }
    report(record)
    if asked.json:
        asked.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--setup", action="store_true", help="make the other engines' environments")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(CONTESTANTS))
    parser.add_argument("--json", type=Path, help="write what was measured to this file")
    asked = parser.parse_args()
    unknown = sorted(set(asked.only) - set(CONTESTANTS))
    if unknown or asked.rounds < 1:
        parser.error(f"--only {', '.join(unknown)}: there are {', '.join(CONTESTANTS)}; --rounds at least 1")
    return asked


def set_up() -> None:
    """An environment for each requirements file. One that cannot be made is told of, and left out."""
    for needs in sorted(HERE.glob("requirements-*.txt")):
        place = ENVIRONMENTS / needs.stem.removeprefix("requirements-")
        print(f"{place.name}: installing ...", flush=True)
        subprocess.run([sys.executable, "-m", "venv", place], check=True)
        install = [place / "bin" / "python", "-m", "pip", "install", "--quiet", "-r", needs]
        extra = ["--extra-index-url", index] if (index := os.environ.get("TORCH_INDEX")) else []
        if subprocess.run(install + extra).returncode:
            print(f"{place.name}: could not be installed; it will be left out", flush=True)
            continue
        for package in UNWANTED.get(place.name, ()):
            subprocess.run([place / "bin" / "python", "-m", "pip", "uninstall", "--quiet", "-y", package])
        (place / ".installed").touch()


def totals() -> dict[str, int]:
    return {
        "prompt_tokens": sum(WORKLOAD.prompt_lengths()),
        "output_tokens": sum(WORKLOAD.output_lengths()),
    }


def prepare(folder: Path, weights: str, threads: int) -> None:
    """What every engine is started with: the weights and the requests."""
    source_model(weights).save_pretrained(folder / "weights")
    requests = WORKLOAD.requests()
    workload = {
        "prompts": [list(request.prompt_token_ids) for request in requests],
        "max_tokens": [request.max_tokens for request in requests],
        "max_num_seqs": WORKLOAD.max_num_seqs,
        "threads": threads,
    }
    (folder / "workload.json").write_text(json.dumps(workload), encoding="utf-8")
    print(f"{WORKLOAD}\n{totals()}, {weights} weights, {threads} threads, {machine()['cpu']}\n", flush=True)


def start(names: Iterable[str], folder: Path) -> dict[str, Worker]:
    """One after the other, so that their warm-ups do not meet."""
    workers = {}
    for name in names:
        if not CONTESTANTS[name].installed:
            print(f"{name}: not installed, left out (--setup makes its environment)", flush=True)
            continue
        try:
            workers[name] = Worker(CONTESTANTS[name], folder)
            print(f"{name}: {workers[name].name}", flush=True)
        except RuntimeError as error:
            print(f"{name}: left out, it did not start: {error}", flush=True)
    return workers


def take_rounds(
    workers: dict[str, Worker], rounds: int
) -> tuple[dict[str, list[dict[str, Any]]], list[Peak]]:
    """Every engine once a round; what the machine could do at best is measured before each round."""
    peaks: list[Peak] = []
    best: dict[str, float] = {}
    taken: dict[str, list[dict[str, Any]]] = {name: [] for name in workers}
    output_tokens = totals()["output_tokens"]
    for turn in range(rounds):
        peaks.append(measure_peak())
        for name, worker in workers.items():
            for redone in range(MOST_REDONE + 1):
                outcome = worker.run() | {"redone": redone}
                rate, share = output_tokens / outcome["seconds"], outcome["cpu_share"]
                print(f"round {turn + 1}  {name:20} {rate:6.1f} tokens/s  CPU share {share:.2f}", flush=True)
                best[name] = max(share, best.get(name, 0.0))
                if share >= DISTURBED * best[name]:
                    break
            taken[name].append(outcome)
    return taken, peaks


def summary(
    engine: str, name: str, runs: list[dict[str, Any]], rounds: dict[str, list[dict[str, Any]]]
) -> dict[str, Any]:
    """One engine's rounds, and how far its tokens agree with those of the first contestant."""
    last, shares = runs[-1], [run["cpu_share"] for run in runs]
    lengths = [len(tokens) for tokens in last["token_ids"]]
    if lengths != WORKLOAD.output_lengths():
        raise RuntimeError(f"{name} did not give every request its number of tokens")
    reference = next(iter(rounds.values()))[-1]["token_ids"]
    pairs = list(zip(last["token_ids"], reference, strict=True))
    return {
        "name": name,
        "engine": engine,
        "tokens_per_second": [sum(lengths) / run["seconds"] for run in runs],
        "cpu_share": shares,
        "disturbed": [share < DISTURBED * max(shares) for share in shares],
        "redone": sum(run["redone"] for run in runs),
        "steps": last["steps"],
        "most_at_once": last["most_at_once"],
        "same_requests": sum(mine == theirs for mine, theirs in pairs),
        "resident_bytes": max(run["resident_bytes"] for run in runs),
        "notes": last["notes"],
    }


def report(record: dict[str, Any]) -> None:
    ours = median(record["engines"][0]["tokens_per_second"])
    print(
        f"\n{'engine':34}{'tokens/s, median and range':>28}{'first is':>10}{'at once':>9}"
        f"{'steps':>7}{'same':>7}{'GB':>6}{'CPU':>6}"
    )
    for one in record["engines"]:
        rates = one["tokens_per_second"]
        spread = f"{median(rates):.0f} [{min(rates):.0f}, {max(rates):.0f}]"
        mark = " disturbed" * any(one["disturbed"])
        print(
            f"{one['engine']:34}{spread:>28}{ours / median(rates):>8.2f} x{one['most_at_once'] or '?':>9}"
            f"{one['steps'] or '?':>7}{one['same_requests']:>4}/{WORKLOAD.num_requests}"
            f"{one['resident_bytes'] / 1e9:>6.2f}{median(one['cpu_share']):>6.2f}{mark}"
        )


if __name__ == "__main__":
    main()
