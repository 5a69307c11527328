"""Stand-ins for tool services that need an index, a key, a GPU or a judge of their own.

They speak the protocols of the real ones, through LiteRegistry's own servers where those can run, register in the
registry of the rehearsal, and note every request they answer.
"""
