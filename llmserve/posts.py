"""The figures of the post that the book starts from, for the columns that stand beside ours.

"Batching LLM Requests: Static, Dynamic and Continuous" (github.com/sanjay23singh/llm-inference-from-scratch),
GPT-2 small in fp32 on an Apple M1's CPU. Facts and figures are its author's; the words around them are ours.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from importlib import resources

import pandas as pd

COLUMN = "the post (Apple M1)"


def table(name: str) -> pd.DataFrame:
    """A table of the post by its name: the files of data/post."""
    folder = resources.files("llmserve").joinpath("data", "post")
    known = sorted(path.name.removesuffix(".csv") for path in folder.iterdir())
    if name not in known:
        raise ValueError(f"no table {name!r} of the post; there are: {', '.join(known)}")
    with folder.joinpath(f"{name}.csv").open(encoding="utf-8") as file:
        return pd.read_csv(file)


def published() -> dict[str, float]:
    """Figures of other systems, from papers, by name: data/published.csv says whose they are."""
    text = resources.files("llmserve").joinpath("data", "published.csv").read_text(encoding="utf-8")
    return {row["what"]: float(row["value"]) for row in csv.DictReader(text.splitlines())}


@dataclass(frozen=True)
class PostClaim:
    """One row of the register: a claim of a post, its figures, how it came by them, what kind it is."""

    id: str
    claim: str
    post: str
    label: str
    kind: str
    chapter: str


def register() -> dict[str, PostClaim]:
    """Every claim of the two posts, by id."""
    text = resources.files("llmserve").joinpath("data", "claims.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(text.splitlines())
    return {row["id"]: PostClaim(**row) for row in rows}
