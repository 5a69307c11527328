"""Seconds of ``services preview``, ``services fields`` and ``run preview``; most of it imports LiteRegistry's Redis."""

import sys
import tempfile
from pathlib import Path

from measure import command, python_pass, report

ROOT = Path(__file__).resolve().parents[1]
RUN = f"""\
schema: primebeaker.run/v1
service: {{registry: "redis://127.0.0.1:6379"}}
rl: {{toml: {ROOT}/examples/rl/multinode.toml, image: "beaker://01ABC", mount_path: {ROOT}}}
"""

if __name__ == "__main__":
    base = python_pass()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "run.yaml")
        config.write_text(RUN)
        for bound, *words in (
            (1.0, "services", "preview"),
            (1.0, "services", "fields"),
            (1.5, "run", "preview", f"--config={config}"),
        ):
            run = command([sys.executable, "-m", "primebeaker", *words], repeats=5, cwd=str(ROOT))
            name = " ".join(words[:2])
            ratio = round(run.seconds / base, 1)
            report(name, run.seconds, "s", bound, cpu_seconds=round(run.cpu, 2), ratio_to_python_pass=ratio)
