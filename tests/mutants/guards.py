"""Guards, bounds and orders, each broken on purpose: the tests that a row names have to catch it."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

GUARDS: tuple[Mutant, ...] = ()
