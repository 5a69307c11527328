"""Wall seconds of ``primebeaker --help``."""

import sys

from measure import command, python_pass, report

if __name__ == "__main__":
    base = python_pass()
    run = command([sys.executable, "-m", "primebeaker", "--help"])
    report("primebeaker --help", run.seconds, "s", 0.25, ratio_to_python_pass=round(run.seconds / base, 1))
