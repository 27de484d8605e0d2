"""Where weights come from: the local Hugging Face cache, or GPT-2 small's shapes with seeded random ones."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    from .gpt2 import GPT2, Config

REPO = "openai-community/gpt2"
FILES = ("config.json", "model.safetensors")
SEED = 2019  # of the random weights


def local_folder() -> Path | None:
    """The folder of pretrained GPT-2 in the local Hugging Face cache, or None."""
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError:
        return None
    for repo in (REPO, "gpt2"):
        found = [try_to_load_from_cache(repo, name) for name in FILES]
        if all(isinstance(path, str) for path in found):
            return Path(found[0]).parent
    return None


def resolve_weights(choice: str = "auto") -> str:
    """ "pretrained" or "random"; "auto" takes pretrained weights if they are already local."""
    if choice == "auto":
        return "pretrained" if local_folder() else "random"
    if choice == "pretrained" and not local_folder():
        raise ValueError(
            "LLMSERVE_WEIGHTS=pretrained, but GPT-2 is not in the local Hugging Face cache: "
            "run `python -m llmserve download` once, or use LLMSERVE_WEIGHTS=random"
        )
    return choice


def load_gpt2(
    weights: str = "auto",
    dtype: str | torch.dtype = "float32",
    device: str = "cpu",
    linear: str = "auto",
) -> GPT2:
    """GPT-2 small. Random weights have the same shapes and timings; only the text is gibberish."""
    source = source_model(weights)
    state, config = dict(source.state_dict()), source.config
    del source  # the tensors now live in `state` only, which gpt2_of empties
    return gpt2_of(config, state, dtype, device, linear)


def gpt2_of(
    config: GPT2Config,
    state: dict[str, torch.Tensor],
    dtype: str | torch.dtype = "float32",
    device: str = "cpu",
    linear: str = "auto",
) -> GPT2:
    """Our GPT-2 from transformers' names. Takes the tensors out of `state`, so that none is held twice."""
    import torch

    from ..memory import give_back
    from .gpt2 import GPT2

    dtype = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    model = GPT2(config_of(config), state, dtype=dtype, device=device, linear=linear)
    state.clear()
    give_back()
    return model


def source_model(weights: str = "auto") -> GPT2LMHeadModel:
    """The weights as transformers hold them."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    if resolve_weights(weights) == "pretrained":
        return GPT2LMHeadModel.from_pretrained(local_folder(), local_files_only=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        return GPT2LMHeadModel(GPT2Config())


def config_of(config: GPT2Config) -> Config:
    """Our Config from a transformers GPT2Config."""
    from .gpt2 import Config

    return Config(
        num_layers=config.n_layer,
        num_heads=config.n_head,
        hidden=config.n_embd,
        vocab_size=config.vocab_size,
        max_positions=config.n_positions,
        eos_token_id=config.eos_token_id,
        norm_eps=config.layer_norm_epsilon,
    )


def download() -> Path:
    """Fetch GPT-2 into the local cache (about 550 MB); RuntimeError, in seconds, without a connection."""
    found = local_folder()
    if found:
        return found
    from huggingface_hub import hf_hub_download

    _require_hub()
    try:
        paths = [hf_hub_download(REPO, name) for name in FILES]
        return Path(paths[0]).parent
    except Exception as error:  # whatever went wrong on the way, the reader needs one sentence
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise RuntimeError(
            f"GPT-2 could not be fetched ({reason}); the book runs with random weights"
        ) from error


def _require_hub(timeout: float = 5.0) -> None:
    """One quick request, since the hub's own client retries for minutes."""
    import httpx
    from huggingface_hub import constants

    try:
        httpx.head(constants.ENDPOINT, timeout=timeout, follow_redirects=True)
    except httpx.HTTPError as error:
        raise RuntimeError(
            f"no connection to {constants.ENDPOINT} ({type(error).__name__}); "
            "the book runs without: it then uses random weights of the same shapes"
        ) from error
