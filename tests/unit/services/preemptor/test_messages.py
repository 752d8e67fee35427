"""What placement's events are to the preemptor."""

from __future__ import annotations

import msgspec

from services.preemptor.messages import Ended, to_input
from shared.contracts.events import PreemptionAbandoned
from shared.contracts.examples import EXAMPLES


def test_an_abandoned_plan_names_the_victims_that_could_not_be_suspended() -> None:
    event: PreemptionAbandoned = EXAMPLES[PreemptionAbandoned.__name__]
    said = to_input(msgspec.structs.replace(event, failed=("uid-b",)))
    assert said == Ended(event.plan.plan_id, executed=False, failed=("uid-b",))
