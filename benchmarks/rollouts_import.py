"""What importing all environment modules, and what building one needs, costs over `import verifiers`."""

import sys

from measure import command, python_pass, report

IMPORTS = (
    "from primebeaker.environments.registry import bundled_specs; list(bundled_specs());"
    "import primebeaker.environments._shared.verifiers_adapter, primebeaker.environments._shared.tool_setup"
)


def main() -> None:
    base = "import verifiers; verifiers.MultiTurnEnv; import verifiers.clients"
    alone = command([sys.executable, "-c", base], repeats=3).seconds
    ours = command([sys.executable, "-c", f"{base}; {IMPORTS}"], repeats=3).seconds
    listing = command([sys.executable, "-m", "primebeaker.environments", "tool-label", "--json"], repeats=5).seconds
    report(
        "importing the environments over import verifiers",
        round(ours - alone, 3),
        "s",
        bound=0.4,
        import_verifiers=round(alone, 3),
        listing_seconds=round(listing, 3),
        python_pass=round(python_pass(3), 3),
    )


main()
