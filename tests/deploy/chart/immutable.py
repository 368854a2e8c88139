"""What Kubernetes does not let an upgrade change, of every object of the chart.

    python -m tests.deploy.chart.immutable > tests/deploy/chart/released.yaml

`released.yaml` is this of the last release; it is renewed when a release is made, and only then.
"""

import sys

import yaml

from .rendering import Object, objects_of

CASES = ("small", "engine-over-nodes", "everything")


def fixed_parts(item: Object) -> Object:
    """The immutable fields of one object."""
    spec = item.get("spec", {})
    match item["kind"]:
        case "Deployment":
            return {"selector": spec["selector"]}
        case "StatefulSet":
            keys = ("selector", "serviceName", "podManagementPolicy", "volumeClaimTemplates")
            return {key: spec[key] for key in keys if key in spec}
        case "Service":
            return {"clusterIP": spec.get("clusterIP"), "selector": spec["selector"]}
        case "PersistentVolumeClaim":
            return {key: spec[key] for key in ("accessModes", "storageClassName") if key in spec}
        case "PodDisruptionBudget":
            return {"selector": spec["selector"]}
    return {}


def fixed_parts_of(case: str) -> dict[str, Object]:
    parts = {f"{item['kind']}/{item['metadata']['name']}": fixed_parts(item) for item in objects_of(case)}
    return {name: part for name, part in parts.items() if part}


if __name__ == "__main__":
    yaml.safe_dump({case: fixed_parts_of(case) for case in CASES}, sys.stdout)
