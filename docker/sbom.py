"""What is in an image, as a CycloneDX 1.6 JSON file. It runs inside the image, which needs nothing installed for it:

    docker run --rm -i --network none --entrypoint python3 IMAGE - < docker/sbom.py > sbom.json

Python distributions by their own metadata, Debian packages by dpkg's list. (The usual tools see one of the two.)
"""

import importlib.metadata
import json
import re
import sys
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

DPKG_STATUS = Path("/var/lib/dpkg/status")


def python_components() -> Iterator[dict[str, Any]]:
    """Every installed distribution once, under its normalised name."""
    for distribution in importlib.metadata.distributions():
        metadata = distribution.metadata
        name = re.sub(r"[-_.]+", "-", metadata["Name"] or "").lower()
        if not name:
            continue
        component = {
            "type": "library",
            "name": name,
            "version": distribution.version,
            "purl": f"pkg:pypi/{name}@{distribution.version.replace('+', '%2B')}",
        }
        license_name = metadata.get("License-Expression") or metadata.get("License")
        if license_name and "\n" not in license_name:
            component["licenses"] = [{"license": {"name": license_name}}]
        yield component


def debian_components(status: Path = DPKG_STATUS) -> Iterator[dict[str, Any]]:
    """Every package that dpkg calls installed."""
    if not status.is_file():
        return
    for block in status.read_text(encoding="utf-8", errors="replace").split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if re.match(r"[A-Za-z-]+: ", line))
        if fields.get("Status", "").endswith(" installed"):
            name, version = fields["Package"], fields["Version"]
            yield {
                "type": "library",
                "name": name,
                "version": version,
                "purl": f"pkg:deb/debian/{name}@{version.replace('+', '%2B').replace(':', '%3A')}"
                f"?arch={fields.get('Architecture', 'all')}",
            }


def bill_of_materials() -> dict[str, Any]:
    """The whole document; components sorted, so that two images can be compared line by line."""
    components = {component["purl"]: component for component in (*python_components(), *debian_components())}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid4()}",
        "version": 1,
        "metadata": {"timestamp": datetime.now(UTC).isoformat(timespec="seconds")},
        "components": [{**components[purl], "bom-ref": purl} for purl in sorted(components)],
    }


if __name__ == "__main__":
    json.dump(bill_of_materials(), sys.stdout, indent=1)
    print()
