"""The schema of the chart's values knows every setting of the services, and no other name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shared.service import Lifecycle, load

SCHEMA = json.loads((Path(__file__).parents[3] / "k8s" / "chart" / "values.schema.json").read_text())
SETTINGS: dict[str, Any] = SCHEMA["properties"]["settings"]["properties"]


@pytest.mark.parametrize("service", SETTINGS)
def test_settings_of_a_service_are_those_that_it_reads(service: str) -> None:
    config = load(service).config_type
    own = {field.encode_name for kind in (config, Lifecycle) for field in msgspec.structs.fields(kind)}
    former = set(getattr(config, "FORMER_NAMES", {}).values())
    assert SETTINGS[service]["additionalProperties"] is False
    assert set(SETTINGS[service]["properties"]) == own | former
