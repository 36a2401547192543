"""The JSON Schemas of the files in a profile, for editors that check and complete what a person writes.

Rule: generated from the models and from nothing else; `scripts/generate_schemas.py --check` tells when they
differ.
"""

import json
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from enginehouse_core.profile.document import Document
from enginehouse_core.profile.provider import ProviderFile
from enginehouse_core.profile.rules_file import PermissionsFile
from enginehouse_core.profile.settings import Settings

FILES: dict[str, type[Document]] = {
    "settings": Settings,
    "provider": ProviderFile,
    "permissions": PermissionsFile,
}
"""What the file is called in `profile-schema/` → its model."""


def schema_of(name: str) -> dict[str, Any]:
    model = FILES[name]
    version = model.model_fields["version"].default
    schema = model.model_json_schema(mode="validation")
    return {
        "$schema": GenerateJsonSchema.schema_dialect,
        "$id": f"urn:enginehouse:profile:{name}:v{version}",
        **schema,
    }


def schema_files() -> dict[str, str]:
    """File name → content of everything generated in `profile-schema/`."""
    return {
        f"{name}.v{model.model_fields['version'].default}.schema.json": json.dumps(schema_of(name), indent=2) + "\n"
        for name, model in FILES.items()
    }
