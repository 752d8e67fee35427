"""No module imports itself through others, imports inside functions included. import-linter sees packages only."""

from __future__ import annotations

import grimp


def test_there_is_no_circular_import() -> None:
    graph = grimp.build_graph("services", "shared", "shadow", "cli")
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    left = {module: {one for one in found if one in imports} for module, found in imports.items()}
    while free := [module for module, found in left.items() if not found]:
        for module in free:
            del left[module]
        for found in left.values():
            found.difference_update(free)
    assert sorted(module for module in left if any(module in found for found in left.values())) == []
