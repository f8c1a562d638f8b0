"""Prints how the simulated server is, asked through its BMC and not through the provider."""

import base64
import json
import ssl
import sys
import urllib.request

start = json.load(open(sys.argv[1]))
name, system = next(iter(start["systems"].items()))
context = ssl.create_default_context(cafile=start["ca_file"])
account = base64.b64encode(f"{start['username']}:{start['password']}".encode()).decode()


def get(path):
    request = urllib.request.Request(system["endpoint"] + path, headers={"Authorization": "Basic " + account})
    return json.load(urllib.request.urlopen(request, context=context, timeout=5))


machine = get(f"/redfish/v1/Systems/{system['system_id']}")
boot = machine["Boot"]
drives = []
collection = machine.get("VirtualMedia", {}).get("@odata.id")
for member in get(collection)["Members"] if collection else []:
    drive = get(member["@odata.id"])
    drives.append(f"{drive['Id']}: {drive.get('Image') or 'empty'}")
override = boot["BootSourceOverrideEnabled"]
if override != "Disabled":
    override = f"{boot['BootSourceOverrideTarget']} {override}"
inside = json.load(urllib.request.urlopen(f"{start['control_url']}/systems/{name}", timeout=5))
booted = inside["last_boot"]["booted_from"]
running = booted.get("image") or booted.get("uri") or booted["source"] if inside["power"] == "On" else "nothing"
print(f"  power {machine['PowerState']} | boot override {override} | virtual drives {', '.join(drives) or 'none'}")
print(f"  runs what it booted from: {running}")
