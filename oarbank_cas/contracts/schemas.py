"""The JSON Schemas of the envelopes: generated from the models, and shipped with the package for other languages."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any, Final

from pydantic import BaseModel

from oarbank_cas.contracts.envelopes import ResultEnvelope, SpecEnvelope
from oarbank_cas.contracts.places import quoted
from oarbank_cas.errors import InvalidInputError

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
BASE: Final = "https://codonic.dev/oarbank/schemas"

_MODELS: Final[dict[str, type[BaseModel]]] = {
    "result-envelope-1": ResultEnvelope,
    "spec-envelope-1": SpecEnvelope,
}
NAMES: Final = tuple(_MODELS)
"""The schemas there are."""


def generate(name: str) -> dict[str, Any]:
    """Generate a schema from its model.

    Args:
        name: one of `NAMES`.

    Returns:
        The schema, of the dialect `DIALECT`.

    Raises:
        InvalidInputError: there is no schema of that name.
    """
    body = _model(name).model_json_schema(by_alias=True, mode="validation")
    return {"$schema": DIALECT, "$id": f"{BASE}/{name}.schema.json", **body}


def render(name: str) -> str:
    """Write a schema as the text that is shipped: regenerate `oarbank_cas/schemas/<name>.schema.json` with it."""
    return json.dumps(generate(name), indent=2, ensure_ascii=False) + "\n"


def shipped(name: str) -> str:
    """Read the text of a schema that came with the package.

    Args:
        name: one of `NAMES`.

    Returns:
        The schema's text.

    Raises:
        InvalidInputError: there is no schema of that name.
    """
    _model(name)
    return resources.files("oarbank_cas").joinpath("schemas", f"{name}.schema.json").read_text(encoding="utf-8")


def _model(name: str) -> type[BaseModel]:
    if name not in _MODELS:
        raise InvalidInputError(f"is no schema; there are {', '.join(NAMES)}", quoted(name))
    return _MODELS[name]
