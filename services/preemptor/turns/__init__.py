"""Plans turns: which waiting jobs take the turn of which running ones (`shared.turns.rules`). Pure."""
