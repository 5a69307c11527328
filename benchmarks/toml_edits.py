"""1,000 chained edits of a 400-line TOML, each result read again with tomllib. Seconds, median of five."""

from __future__ import annotations

import statistics
import time

from measure import report

from primebeaker.config import TomlDocument


def training_toml(lines: int) -> str:
    """A TOML with the shapes of a real RL configuration, comments and all."""
    parts = ['output_dir = "/weka/team/out" # where everything goes\nmax_steps = 500\nseq_len = 16_384\n']
    number = 0
    while sum(part.count("\n") for part in parts) < lines:
        number += 1
        parts.append(
            f'\n# section {number}\n[trainer.part{number}]\nlr = 1e-06 # learning rate\nname = "model-{number}"\n'
            'tags = [\n  "a", # first\n  "b",\n]\noptions = { depth = 3, path = "/weka/x" }\nratio.low = 0.1\n'
            f'\n[[orchestrator.train.source]]\nname = "source-{number}"\n[orchestrator.train.source.legacy]\n'
            'id = "primebeaker.environments.jtc_label_env"\nargs = { dataset = "/weka/train.jsonl" }\n'
        )
    return "".join(parts)


def thousand_edits(document: TomlDocument) -> None:
    """Values, array elements, new keys, new tables and removals, chained."""
    for number in range(250):
        part = number % 20 + 1
        document = document.with_value(f"trainer.part{part}.lr", 1e-6 * (number + 1))
        document = document.with_value(
            f"orchestrator.train.source[{number % 20}].legacy.args.dataset", f"/weka/{number}"
        )
        document = document.with_value(f"trainer.part{part}.added", number)
        document = document.without_value(f"trainer.part{part}.added")


def main() -> None:
    text = training_toml(400)
    seconds: list[float] = []
    for _ in range(5):
        document = TomlDocument.from_text(text)
        start = time.perf_counter()
        thousand_edits(document)
        seconds.append(time.perf_counter() - start)
    report("toml_edits_1000", statistics.median(seconds), "s", 3.0, lines=text.count("\n"))


if __name__ == "__main__":
    main()
