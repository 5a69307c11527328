"""Stand-in for the program ``sft``."""

from primebeaker.rehearsal.standins.program import run
from primebeaker.rehearsal.standins.single_node import sft

if __name__ == "__main__":
    run("sft", sft)
