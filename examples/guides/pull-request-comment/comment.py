"""Makes the text of a pull request's comment from `tofu show -json PLAN` (on standard input)."""

import json
import sys

# Characters that Markdown and forges interpret, as entities: no markup, link, mention, reference or table cell.
ACTS = {ord(c): f"&#{ord(c)};" for c in "\\`*_[]<>&|@#!~"}


def previews(module):
    """The previews that a plan read, in all of its modules."""
    for resource in module.get("resources", []):
        if resource["type"] == "metal_maintenance_preview":
            yield from resource["values"]["previews"]
    for child in module.get("child_modules", []):
        yield from previews(child)


def plain(text):
    """The text of others as what it is, in one line."""
    shown = "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text)
    return shown.translate(ACTS)


def line(preview):
    ahead = preview["ahead"]
    queue = "free" if not ahead else "behind " + ", ".join(f"{plain(entry['id'])} ({plain(entry['by'])})" for entry in ahead)
    owner = plain(preview["owner"] or "-")
    if preview["approval_missing"]:
        owner += f", approval missing ({plain(preview['contact'] or 'no contact')})"
    start = preview["earliest_start"] or "not known"
    problems = "; ".join(plain(problem) for problem in preview["problems"]) or "-"
    return f"| {plain(preview['server'])} | {plain(preview['effect'])} | {queue} | {owner} | {start} | {problems} |"


def main():
    plan = json.load(sys.stdin)
    # Data sources that were read during the plan are in the prior state.
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
