"""All mutants, in the order of the protocol's rules."""

from __future__ import annotations

import importlib
import pkgutil

from tests.mutants import groups
from tests.mutants.mutant import Mutant


def every() -> tuple[Mutant, ...]:
    """Those of each module of `groups`, by its list MUTANTS. Raises ValueError for a name that two have."""
    found: dict[str, Mutant] = {}
    for module in sorted(pkgutil.iter_modules(groups.__path__), key=lambda m: m.name):
        for mutant in importlib.import_module(f"{groups.__name__}.{module.name}").MUTANTS:
            if mutant.name in found:
                raise ValueError(f"two mutants are called {mutant.name}")
            found[mutant.name] = mutant
    return tuple(found.values())
