"""CPU stand-ins for Prime-RL's programs, for rehearsals.

They take the real command lines, speak the real protocols and write the real layout, so that what starts them runs
unchanged; what they train is a table of at most eight candidate replies a prompt.  This is not training.
"""
