#!/usr/bin/env bash
# Run the end-to-end tests with the Python that is given. Those that only compute run beside the
# others in the time that these leave: the scheduling policy `idle` is below every niceness, also
# below that of training. Those of the page without Ray run beside the others too.
set -uo pipefail
pytest=("$1" -m pytest)
log=$(mktemp)
pages=$(mktemp)
chrt --idle 0 "${pytest[@]}" -m computes --durations=15 >"$log" 2>&1 &
computing=$!
"${pytest[@]}" -m browser --durations=15 >"$pages" 2>&1 &
browsing=$!
trap 'kill "$computing" "$browsing" 2>/dev/null; rm -f "$log" "$pages"' EXIT
status=0
"${pytest[@]}" -m "e2e and not computes and not browser and not alone" --durations=15 || status=1
wait "$browsing" || status=1
wait "$computing" || status=1
cat "$log" "$pages"
"${pytest[@]}" -m alone || status=1
exit "$status"
