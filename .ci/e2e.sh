#!/usr/bin/env bash
# Run the end-to-end tests with the Python that is given. Those that only compute run beside the
# others in the time that these leave: the scheduling policy `idle` is below every niceness, also
# below that of training.
set -uo pipefail
pytest=("$1" -m pytest)
log=$(mktemp)
chrt --idle 0 "${pytest[@]}" -m computes --durations=15 >"$log" 2>&1 &
computing=$!
trap 'kill "$computing" 2>/dev/null; rm -f "$log"' EXIT
status=0
"${pytest[@]}" -m "e2e and not computes and not alone" --durations=15 || status=1
wait "$computing" || status=1
cat "$log"
"${pytest[@]}" -m alone || status=1
exit "$status"
