"""Packages a release as registries want it: archives, manifest, checksums, bills of materials and the provenance.

    package.py archive VERSION FOLDER OS_ARCH PROGRAM   one archive
    package.py sbom VERSION FOLDER OS_ARCH TRIPLE       what the program of a platform is built from (CycloneDX)
    package.py sums VERSION FOLDER                      manifest and checksums of all archives in FOLDER
    package.py provenance VERSION FOLDER COMMAND        how all of them were made (in-toto, SLSA)

The same input gives the same bytes: no time, no host and no path is in any of the files.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import materials

ROOT = Path(__file__).resolve().parents[2]
NAME = "terraform-provider-metal"


def digest(file):
    """SHA-256 of a file, hexadecimal."""
    with open(file, "rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def write_json(file, value):
    """Writes readable JSON with a stable order."""
    file.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def archive(version, folder, os_arch, program):
    """Writes the archive of one platform: the program under the name that hosts look for, and its licence."""
    ending = ".exe" if os_arch.startswith("windows_") else ""
    content = {
        "LICENSE": (ROOT / "LICENSE", 0o644),
        f"{NAME}_v{version}{ending}": (Path(program), 0o755),
    }
    target = folder / f"{NAME}_{version}_{os_arch}.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as file:
        for name, (source, mode) in sorted(content.items()):
            # Without the time, the owner and the system of the build.
            entry = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            entry.create_system = 3
            entry.external_attr = (0o100000 | mode) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            file.writestr(entry, source.read_bytes())
    print(target.name)


def sums(version, folder):
    """Writes the manifest, and the checksums of exactly the archives and the manifest: registries refuse other names."""
    manifest = folder / f"{NAME}_{version}_manifest.json"
    shutil.copyfile(ROOT / "terraform-registry-manifest.json", manifest)
    files = sorted([*folder.glob(f"{NAME}_{version}_*.zip"), manifest])
    if len(files) == 1:
        sys.exit(f"no archive of version {version} in {folder}")
    lines = [f"{digest(file)}  {file.name}\n" for file in files]
    (folder / f"{NAME}_{version}_SHA256SUMS").write_text("".join(lines), encoding="utf-8")
    sys.stdout.writelines(lines)


def sbom(version, folder, os_arch, triple):
    """Writes the bill of materials of one platform."""
    write_json(folder / f"{NAME}_{version}_{os_arch}.cdx.json", materials.bill(ROOT, NAME, version, triple))


def tool_version(*command):
    """First line that a tool says of its version; `absent` without the tool."""
    try:
        said = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    except (OSError, subprocess.CalledProcessError):
        return "absent"
    return said.strip().splitlines()[0]


def provenance(version, folder, command):
    """Writes the statement: which commit, with which tools and by which command each file was made."""
    made = sorted([*folder.glob(f"{NAME}_{version}_*.zip"), *folder.glob(f"{NAME}_{version}_*.cdx.json")])
    made += [folder / f"{NAME}_{version}_manifest.json", folder / f"{NAME}_{version}_SHA256SUMS"]
    git = ["git", "-C", str(ROOT)]
    commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    tools = {
        "rustc": tool_version("rustc", "--version"),
        "cargo": tool_version("cargo", "--version"),
        "cargo-zigbuild": tool_version("cargo-zigbuild", "--version"),
        "zig": tool_version("python-zig", "version"),
        "python": sys.version.split()[0],
    }
    source = os.environ.get("RELEASE_SOURCE")
    statement = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": file.name, "digest": {"sha256": digest(file)}} for file in made],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "urn:terraform-provider-metal:tools/release:v1",
                "externalParameters": {"command": command, "version": version},
                "internalParameters": {"tools": tools},
                "resolvedDependencies": [
                    {"name": "source", "digest": {"gitCommit": commit}, **({"uri": source} if source else {})},
                    {"name": "Cargo.lock", "digest": {"sha256": digest(ROOT / "Cargo.lock")}},
                    {"name": "rust-toolchain.toml", "digest": {"sha256": digest(ROOT / "rust-toolchain.toml")}},
                ],
            },
            # Without the times of the build, which would differ between two builds of one commit.
            "runDetails": {"builder": {"id": os.environ.get("RELEASE_BUILDER", "urn:terraform-provider-metal:by-hand")}},
        },
    }
    write_json(folder / f"{NAME}_{version}_provenance.intoto.json", statement)


COMMANDS = {"archive": (archive, 2), "sbom": (sbom, 2), "sums": (sums, 0), "provenance": (provenance, 1)}


def main(arguments):
    """Runs one command."""
    if len(arguments) < 3 or arguments[0] not in COMMANDS or len(arguments) != 3 + COMMANDS[arguments[0]][1]:
        sys.exit(__doc__)
    command, version, folder, *more = arguments
    COMMANDS[command][0](version, Path(folder), *more)


if __name__ == "__main__":
    main(sys.argv[1:])
