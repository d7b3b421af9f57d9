"""Lists the crates that the program is built from, as a software bill of materials in CycloneDX's JSON.

    cargo tree -p kiln --locked -e normal,build --prefix none --target x86_64-unknown-linux-gnu -f '{p}|{l}' \\
      | python3 scripts/sbom.py Cargo.lock >kiln.cdx.json

Dependencies for tests are left out. Checksums are taken from Cargo.lock. Only the standard library is used.
"""

import json
import re
import sys


def checksums(lock: str) -> dict:
    """The SHA-256 of each crate from a registry, by (name, version)."""
    found = {}
    for package in lock.split("[[package]]")[1:]:
        field = dict(re.findall(r'^(name|version|checksum) = "([^"]+)"$', package, re.MULTILINE))
        if "checksum" in field:
            found[field["name"], field["version"]] = field["checksum"]
    return found


def component(name: str, version: str, license: str, known: dict) -> dict:
    entry = {"type": "library", "name": name, "version": version, "purl": f"pkg:cargo/{name}@{version}"}
    # `MIT/Apache-2.0` is how old crates write `MIT OR Apache-2.0`. Others bring a file instead of an expression.
    expression = {"expression": license.replace("/", " OR ")}
    entry["licenses"] = [expression if license else {"license": {"name": "a file in the crate"}}]
    if (name, version) in known:
        entry["hashes"] = [{"alg": "SHA-256", "content": known[name, version]}]
    return entry


def main() -> None:
    known = checksums(open(sys.argv[1], encoding="utf-8").read())
    lines = [line.removesuffix(" (*)\n").strip() for line in sys.stdin]
    # `name v1.2.3 (proc-macro)|MIT`
    listed = {tuple(re.fullmatch(r"(\S+) v(\S+)[^|]*\|(.*)", line).groups()) for line in lines if line}
    components = [component(*crate, known) for crate in sorted(listed)]
    programs = [entry for entry in components if entry["name"] == "kiln"]
    if len(programs) != 1:
        sys.exit(f"sbom: found {len(programs)} crates named kiln among {len(components)}, wanted one; see the usage above")
    listing = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {**programs[0], "type": "application"}},
        "components": [entry for entry in components if entry["name"] != "kiln"],
    }
    json.dump(listing, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
