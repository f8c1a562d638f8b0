"""Sends Redfish requests with DMTF's client library: the tests' second opinion.

Reads one JSON object from stdin: url, username, password, authority (a file, or null) and requests,
a list of {method, path, body}. Writes a JSON list of {status, body} to stdout.
"""

import json
import sys

import redfish

job = json.load(sys.stdin)
client = redfish.redfish_client(
    base_url=job["url"],
    username=job["username"],
    password=job["password"],
    cafile=job["authority"],
    timeout=20,
    max_retry=3,
)
client.login(auth="basic")

answers = []
for request in job["requests"]:
    method, path, body = request["method"], request["path"], request.get("body")
    if method == "GET":
        answer = client.get(path)
    elif method == "POST":
        answer = client.post(path, body=body)
    elif method == "PATCH":
        answer = client.patch(path, body=body)
    else:
        raise SystemExit(f"no such method: {method}")
    try:
        content = answer.dict if answer.text else None
    except ValueError:
        content = answer.text
    answers.append({"status": answer.status, "body": content})
json.dump(answers, sys.stdout)
