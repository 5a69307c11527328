"""LiteRegistry service stacks on Beaker: adapters over the installed native launchers, which render every spec."""
