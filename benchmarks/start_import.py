"""Wall seconds of ``import primebeaker``."""

import sys

from measure import command, python_pass, report

if __name__ == "__main__":
    base = python_pass()
    run = command([sys.executable, "-c", "import primebeaker"])
    report("import primebeaker", run.seconds, "s", 0.06, ratio_to_python_pass=round(run.seconds / base, 1))
