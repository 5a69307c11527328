"""Processor seconds that importing the environment modules costs over `import verifiers`; value: the dearest module."""

import subprocess
import sys

from measure import command, python_pass, report

from primebeaker.bundled import ENVIRONMENT_NAMESPACE, MODULES

PROGRAM = """
import time
import verifiers, verifiers.clients
verifiers.MultiTurnEnv
started = time.process_time()
{}
print(time.process_time() - started)
"""
#: What building an environment imports besides.
PARTS = "import primebeaker.environments._shared.verifiers_adapter, primebeaker.environments._shared.tool_setup"
DEAREST = ("jtc_tool_label_env", "jtc_search_agent_webterminal_judge_env", "podman_terminal_env")


def seconds(statement: str) -> float:
    """Processor seconds of a statement after `import verifiers`, the less of two runs."""
    program = [sys.executable, "-c", PROGRAM.format(statement)]
    runs = [subprocess.run(program, capture_output=True, text=True, check=True).stdout for _ in range(2)]
    return round(min(map(float, runs)), 3)


def main() -> None:
    names = [f"{ENVIRONMENT_NAMESPACE}.{module}" for module in sorted(MODULES)]
    modules = {module: seconds(f"import {ENVIRONMENT_NAMESPACE}.{module}") for module in DEAREST}
    listing = command([sys.executable, "-m", "primebeaker.environments", "tool-label", "--json"], repeats=5)
    report(
        "importing an environment module over import verifiers",
        max(modules.values()),
        "s of processor time",
        bound=0.4,
        modules=modules,
        all_modules=seconds(f"import {', '.join(names)}"),
        all_modules_and_what_building_needs=seconds(f"import {', '.join(names)}; {PARTS}"),
        listing_seconds=round(listing.seconds, 3),
        listing_cpu_seconds=round(listing.cpu, 3),
        python_pass=round(python_pass(3), 3),
    )


main()
