"""The bill of materials of a program: every crate that is linked into it, as CycloneDX 1.5 JSON.

Own code: cargo-cyclonedx writes a serial number and a time into each file, so that no two builds of one commit have the
same bytes, and writes them into the source tree. All that it asks is in `cargo metadata` and in Cargo.lock.
"""

import hashlib
import json
import subprocess
import tomllib
import uuid


def bill(root, name, version, triple):
    """Builds the bill for one platform. Crates that only run while building (macros too) have the scope `excluded`."""
    metadata = read(root, triple)
    packages = {package["id"]: package for package in metadata["packages"]}
    graph = {node["id"]: node["deps"] for node in metadata["resolve"]["nodes"]}
    [program] = [id for id, package in packages.items() if package["name"] == name]
    linked = reach(graph, packages, program, with_build=False)
    used = reach(graph, packages, program, with_build=True)
    with open(root / "Cargo.lock", "rb") as file:
        lock = tomllib.load(file)["package"]
    checksums = {(one["name"], one["version"]): one.get("checksum") for one in lock}

    components = []
    for id in used - {program}:
        package = packages[id]
        purl = address(package)
        checksum = checksums[package["name"], package["version"]]
        component = {
            "type": "library",
            "bom-ref": purl,
            "name": package["name"],
            "version": package["version"],
            "purl": purl,
            "scope": "required" if id in linked else "excluded",
            # `MIT/Apache-2.0` is how old crates say OR.
            "licenses": [{"expression": (package["license"] or "NOASSERTION").replace("/", " OR ")}],
        }
        if checksum:
            component["hashes"] = [{"alg": "SHA-256", "content": checksum}]
        components.append(component)

    subject = packages[program]
    reference = f"pkg:generic/{name}@{version}?target={triple}"
    refs = {id: reference if id == program else address(packages[id]) for id in used}
    dependencies = [
        {"ref": refs[id], "dependsOn": sorted({refs[edge["pkg"]] for edge in graph[id] if edge["pkg"] in used})}
        for id in used
    ]
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": reference,
                "name": name,
                "version": version,
                "description": subject["description"],
                "licenses": [{"expression": subject["license"]}],
            },
        },
        "components": sorted(components, key=lambda one: one["bom-ref"]),
        "dependencies": sorted(dependencies, key=lambda one: one["ref"]),
    }
    # Unique as the format wants it, and the same for the same content.
    content = hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
    document["serialNumber"] = f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, content)}"
    return document


def read(root, triple):
    """Asks cargo what is built for a platform, without features that only tests turn on."""
    command = ["cargo", "metadata", "--format-version=1", "--locked", f"--filter-platform={triple}"]
    return json.loads(subprocess.run(command, cwd=root, stdout=subprocess.PIPE, check=True).stdout)


def address(package):
    """The package URL of a crate. No registry has those of this repository."""
    kind = "cargo" if package["source"] else "generic"
    return f"pkg:{kind}/{package['name']}@{package['version']}"


def reach(graph, packages, start, with_build):
    """Crates that the program needs: to link, or to build as well. Crates of its tests are neither."""
    kinds = (None, "build") if with_build else (None,)
    found, open_ids = set(), [start]
    while open_ids:
        id = open_ids.pop()
        if id in found or (not with_build and is_macro(packages[id])):
            continue
        found.add(id)
        for edge in graph[id]:
            if any(kind["kind"] in kinds for kind in edge["dep_kinds"]):
                open_ids.append(edge["pkg"])
    return found


def is_macro(package):
    """Whether a crate runs inside of the compiler."""
    return any("proc-macro" in target["kind"] for target in package["targets"])
