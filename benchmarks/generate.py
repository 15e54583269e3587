"""Tokens per second of examples/generate.py, eager, on tpu and on torch CPU."""

from __future__ import annotations

import sys
from typing import Any

from benchmarks import _measure

PEERS = ("tpu", "cpu")
RUNS = 3  # the first one may compile


def measure(peer: str, tokens: int, loaded: tuple[Any, Any]) -> dict[str, Any]:
    """Prefill seconds of the first and the later runs, and the later runs' tokens per second."""
    from examples.generate import PROMPT, encode, generate

    model, tokenizer = loaded
    prompt = encode(tokenizer, PROMPT)
    model.to(peer)
    first, *later = (generate(model, prompt, tokens) for _ in range(RUNS))
    return {
        "first_prefill_s": first.prefill,
        "prefill_s": _measure.median([run.prefill for run in later]),
        "tokens_per_second": _measure.median([run.tokens_per_second for run in later]),
        "ids": later[-1].ids,
    }


def main() -> int:
    """Measure both devices with one model, print the table."""
    parser = _measure.parser(__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=64)
    args = parser.parse_args()
    if args.tokens < 3:
        parser.error("--tokens must be at least 3: the speed is taken from the third token on")
    peers = _measure.present(PEERS)

    from examples.generate import load

    loaded = load()
    figures = {}
    for peer in peers:
        print(f"measuring {peer} ...", file=sys.stderr, flush=True)
        figures[peer] = measure(peer, args.tokens, loaded)

    keys = ("first_prefill_s", "prefill_s", "tokens_per_second")
    rows = [
        [peer, *(f"{figures[peer][key]:.2f}" for key in keys[:2]), f"{figures[peer][keys[2]]:.1f}"]
        for peer in peers
    ]
    note = f"{args.tokens} tokens, float32, medians of {RUNS - 1} runs after a first one."
    if len(peers) == 2:
        tpu, cpu = (figures[peer] for peer in peers)
        rows.append(["tpu/cpu", *(_measure.ratio(tpu[key], cpu[key]) for key in keys)])
        note += f" Token ids {'equal' if tpu['ids'] == cpu['ids'] else 'DIFFER'}."
    columns = ["SmolLM2-135M", "first prefill s", "prefill s", "tokens/s"]
    _measure.table("Generation", columns, rows, note)
    _measure.save(args.json, "generate", figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
