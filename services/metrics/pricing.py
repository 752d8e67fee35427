"""What a GPU costs: a file with a price per GPU-hour by model. Pure but for reading the file."""

from __future__ import annotations

from pathlib import Path

import msgspec

from shared.formats import UNREADABLE, decode_yaml
from shared.service.settings import ConfigError

MAX_PRICE = 1_000_000.0


class PriceError(ConfigError):
    """A price file that cannot be used; the text names the file, the field and what was expected."""


class Prices(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Prices of a whole GPU for an hour. A slice costs its share: the larger of its memory part and compute part."""

    currency: str = ""
    """As it is shown, such as EUR. Empty: nothing is priced."""
    default: float | None = None
    """Of models that are not listed. None: they have no price, and what they cost is not known."""
    models: dict[str, float] = {}
    """By the model's name as `kerf inspect` shows it, such as NVIDIA-H200."""

    def of(self, model: str) -> float | None:
        return self.models.get(model, self.default)


def read_prices(path: str) -> Prices:
    """Prices from a YAML or JSON file; none where no file is named. Raises PriceError."""
    if not path:
        return Prices()
    file = Path(path)
    try:
        data = file.read_bytes()
        prices = msgspec.json.decode(data, type=Prices) if file.suffix == ".json" else decode_yaml(data, Prices)
    except OSError as error:
        raise PriceError(f"price file {path}: {error.strerror}") from error
    except UNREADABLE as error:
        raise PriceError(
            f"price file {path}: {error}. It has the fields currency (such as EUR), models (a price per GPU-hour by "
            "model) and default"
        ) from error
    for field, price in (("default", prices.default), *((f"models.{m}", p) for m, p in prices.models.items())):
        if price is not None and not 0 <= price <= MAX_PRICE:
            raise PriceError(f"price file {path}: {field} is {price:g}; a price per GPU-hour is 0 to {MAX_PRICE:g}")
    if not prices.currency and (prices.models or prices.default is not None):
        raise PriceError(f"price file {path}: it has prices and no currency; add one, such as currency: EUR")
    return prices
