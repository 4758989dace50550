#!/usr/bin/env bash
# Run the end-to-end tests with the Python that is given, in three processes. Tests that only compute
# run in the time that the others leave: the scheduling policy `idle` is below every niceness, also
# below that of training. Tests of the page without Ray, and then tests that train on clusters of
# their own, run beside those of the whole application.
set -uo pipefail
export TEST_PATIENCE="${TEST_PATIENCE:-4}" # see tests/waiting.py: three processes share the processors
pytest=("$1" -m pytest --durations=25)
log=$(mktemp)
besides=$(mktemp)
run_besides() {
    local status=0
    "${pytest[@]}" -m browser || status=1
    "${pytest[@]}" -m "trains and not alone" || status=1
    return "$status"
}
chrt --idle 0 "${pytest[@]}" -m computes >"$log" 2>&1 &
computing=$!
run_besides >"$besides" 2>&1 &
beside=$!
trap 'pkill -P "$beside"; kill "$computing" "$beside" 2>/dev/null; rm -f "$log" "$besides"' EXIT
status=0
"${pytest[@]}" -m "e2e and not computes and not browser and not trains and not alone" || status=1
wait "$beside" || status=1
wait "$computing" || status=1
cat "$log" "$besides"
"${pytest[@]}" -m alone || status=1
exit "$status"
