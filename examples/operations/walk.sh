#!/bin/sh
# From submission to approval: create three machines, two of which need an approval, and read the audit log.
# Needs a server (BATCHLINE_URL) with examples/operations/batchline.toml, the key of a user (USER_KEY) and that of
# an approver (APPROVER_KEY).
set -eu
cd "$(dirname "$0")"
: "${BATCHLINE_URL:=http://127.0.0.1:8080}"

call() { # KEY METHOD PATH [BODY]
  curl --silent --show-error --fail-with-body -X "$2" "$BATCHLINE_URL/api/v1$3" \
    -H "Authorization: Bearer $1" -H "Content-Type: application/json" ${4:+--data "$4"}
}
field() { python3 -c 'import json, sys; print(json.load(sys.stdin)[sys.argv[1]])' "$1"; }

body="{\"reason\": \"the spring campaign\", \"items\": $(cat machines.json)}"
batch=$(call "$USER_KEY" POST /operations/vm_create/batches "$body" | field batch_id)
echo "submitted $batch: $(call "$USER_KEY" GET "/batches/$batch" | field status)"

# You cannot approve your own submission, so the approver's key is used.
if call "$USER_KEY" POST "/batches/$batch/approve" >/dev/null; then exit 1; fi

call "$APPROVER_KEY" POST "/batches/$batch/approve" '{"reason": "agreed on Monday"}' >/dev/null
while [ "$(call "$USER_KEY" GET "/batches/$batch" | field pending_count)" != 0 ]; do :; done
echo "ended: $(call "$USER_KEY" GET "/batches/$batch" | field status)"
