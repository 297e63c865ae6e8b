#!/opt/jetcluster/bin/python -IS
"""`probe.py [PATH]`: exit code 0 when the monitoring port (MONITOR_PORT, else 8222) answers 200; there is no curl."""

import http.client
import os
import sys

path = sys.argv[1] if len(sys.argv) > 1 else "/healthz"
connection = http.client.HTTPConnection("127.0.0.1", int(os.environ.get("MONITOR_PORT", "8222")), timeout=2)
try:
    connection.request("GET", path)
    answer = connection.getresponse()
    text = answer.read(2000).decode(errors="replace")
except OSError as error:
    sys.exit(f"{path}: {error}")
if answer.status != 200:
    sys.exit(f"{path}: {answer.status} {text}")
