"""How a pod gets its GPU exactly once: holds, Bindings, releases, node sync, recovery (docs/protocol.md)."""
