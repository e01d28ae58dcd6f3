#!/bin/sh
# A batch with only curl. Set OPENAI_BASE_URL (http://127.0.0.1:8080/v1) and OPENAI_API_KEY.
set -eu

call() { curl --silent --show-error --fail-with-body -H "Authorization: Bearer $OPENAI_API_KEY" "$@"; }
field() { sed -n "s/.*\"$1\": *\"\([^\"]*\)\".*/\1/p"; }

folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
for n in 1 2 3; do
    printf '{"custom_id": "q-%s", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "sim-small", "messages": [{"role": "user", "content": "Count to %s."}]}}\n' "$n" "$n"
done > "$folder/questions.jsonl"

file=$(call "$OPENAI_BASE_URL/files" -F purpose=batch -F file=@"$folder/questions.jsonl" | field id)
# The same key and body return the same batch, so this can be repeated if the answer was lost.
batch=$(call "$OPENAI_BASE_URL/batches" -H "Content-Type: application/json" -H "Idempotency-Key: $file" \
    -d "{\"input_file_id\": \"$file\", \"endpoint\": \"/v1/chat/completions\", \"completion_window\": \"24h\"}" |
    tr ',' '\n' | field id | head -n 1)

status=
until [ "$status" = completed ]; do
    sleep 0.5
    call "$OPENAI_BASE_URL/batches/$batch" | tr ',' '\n' > "$folder/batch"
    status=$(field status < "$folder/batch")
    case $status in failed | expired | cancelled) cat "$folder/batch"; exit 1 ;; esac
done
call "$OPENAI_BASE_URL/files/$(field output_file_id < "$folder/batch")/content"
