"""Deliberate bugs, one for each rule that must not be broken. docs/mutants.md says what and why.

mutant.py                  what one is
protocol.py guards.py      all of them: those for the simulation, and those for the tests
hunt.py __main__.py        looks for what catches one; for all of them, and the table
"""
