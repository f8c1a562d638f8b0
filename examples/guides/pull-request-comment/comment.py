"""Makes the text of a pull request's comment from `tofu show -json PLAN` (on standard input)."""

import json
import sys


def previews(module):
    """The previews that a plan read, in all of its modules."""
    for resource in module.get("resources", []):
        if resource["type"] == "metal_maintenance_preview":
            yield from resource["values"]["previews"]
    for child in module.get("child_modules", []):
        yield from previews(child)


def line(preview):
    ahead = preview["ahead"]
    queue = "free" if not ahead else "behind " + ", ".join(f"{entry['id']} ({entry['by']})" for entry in ahead)
    owner = preview["owner"] or "-"
    if preview["approval_missing"]:
        owner += f", approval missing ({preview['contact'] or 'no contact'})"
    start = preview["earliest_start"] or "not known"
    problems = "; ".join(preview["problems"]) or "-"
    return f"| {preview['server']} | {preview['effect']} | {queue} | {owner} | {start} | {problems} |"


def main():
    plan = json.load(sys.stdin)
    # What is read while planning is in the prior state.
    root = plan.get("prior_state", {}).get("values", {}).get("root_module", {})
    found = sorted(previews(root), key=lambda preview: preview["server"])
    if not found:
        print("No server is affected.")
        return
    print(f"### Maintenance of {len(found)} server{'s' if len(found) > 1 else ''}\n")
    print("| server | what happens | queue | owner | earliest start | in the way |")
    print("|---|---|---|---|---|---|")
    for preview in found:
        print(line(preview))


if __name__ == "__main__":
    main()
