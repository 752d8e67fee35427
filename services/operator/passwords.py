"""The contents of Secret kerf-nats: a password for each NATS user, and the key that signs the agents' tokens."""

from __future__ import annotations

from services.operator.messages import Entropy
from services.operator.objects import Secret
from services.operator.tokens import AccountKey, new_seed
from shared.contracts.permissions import OPERATOR_SERVICE, SYSTEM_USER, USERS

ISSUER, SEED = "callout_issuer", "callout_seed"
ROUTES = "routes"
"""With this one NATS servers join each other. What comes by a route passes no user's permissions, so a certificate of
the CA alone, which others than NATS servers have too, must not be enough."""
PASSWORDS = (*(user.name for user in USERS), OPERATOR_SERVICE, SYSTEM_USER, ROUTES)


def missing(have: Secret, entropy: Entropy) -> dict[str, str]:
    """What to add, by key. What is there is never changed: servers and clients hold it in their environment."""
    made = {name: _password(entropy) for name in PASSWORDS if not have.text(name)}
    seed = have.text(SEED)
    try:
        key = AccountKey(seed)
    except ValueError:
        made[SEED] = new_seed(entropy(32))
        key = AccountKey(made[SEED])
    if have.text(ISSUER) != key.public:
        made[ISSUER] = key.public
    return made


def _password(entropy: Entropy) -> str:
    """It begins with a letter: NATS reads an environment variable as a value of its configuration, and would take
    digits for a number."""
    return f"k{entropy(24).hex()}"
