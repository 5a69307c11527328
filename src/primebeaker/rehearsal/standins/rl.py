"""Stand-in for the program ``rl``."""

from primebeaker.rehearsal.standins.program import run
from primebeaker.rehearsal.standins.single_node import rl

if __name__ == "__main__":
    run("rl", rl)
