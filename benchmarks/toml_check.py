"""``primebeaker toml check`` of a large RL TOML, the whole process. Seconds, median."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from measure import command, python_pass, report

SOURCE = """
[[orchestrator.train.source]]
name = "source-{number}"
group_size = 16
ratio = 0.5
[orchestrator.train.source.sampling]
temperature = 1.0
max_completion_tokens = 16384
[orchestrator.train.source.legacy]
id = "primebeaker.environments.jtc_tool_label_env"
args = {{ dataset = "/weka/team/{number}.jsonl", max_turns = 64, tool_timeout = 120 }}
"""
TOML = """\
output_dir = "/weka/team/out"
max_steps = 1000
seq_len = 65536

[wandb]
project = "p"
name = "large"
tags = ["a", "b"]

[deployment]
type = "multi_node"
num_train_nodes = 1
num_infer_nodes = 2

[trainer.model]
name = "/weka/team/model"
cp = 8

[trainer.optim]
type = "adamw"
lr = 1e-6

[inference.parallel]
tp = 2
dp = 1

[orchestrator]
batch_size = 512
"""


def main() -> None:
    # Prime-RL's largest shipped example has 214 lines.
    text = TOML + "".join(SOURCE.format(number=number) for number in range(19))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "rl.toml")
        file.write_text(text)
        run = command([str(Path(sys.executable).with_name("primebeaker")), "toml", "check", "--toml", str(file)])
    more = {"mebibytes": round(run.mebibytes, 1), "ratio_to_pass": round(run.seconds / python_pass(), 1)}
    report("toml_check", run.seconds, "s", 0.3, lines=text.count("\n"), **more)


if __name__ == "__main__":
    main()
