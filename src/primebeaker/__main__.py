"""``python -m primebeaker``: the same as the ``primebeaker`` program."""

from primebeaker.cli import entry_point

if __name__ == "__main__":
    entry_point()
