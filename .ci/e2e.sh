#!/usr/bin/env bash
# Run end-to-end tests in three processes: e2e.sh PYTHON [long]. With `long`, run those with the
# marker `long`, which `make test-long` adds; without it, all others. Tests of the page without Ray,
# and then tests that train on clusters of their own, run beside those of the whole application. Each
# is in a session with the priority of a training, whose workers are in sessions of their own
# (system/priority.py). Tests that only compute run in the time that the others leave: their session
# has the lowest priority, and the scheduling policy `idle` is below every niceness.
set -uo pipefail
export TEST_PATIENCE="${TEST_PATIENCE:-4}" # see tests/waiting.py: three processes share the processors
python=$1
case ${2:-} in
"") length="not long" ;;
long) length=long ;;
*) echo "e2e.sh: unknown argument '$2'; expected 'long' or none" >&2 && exit 2 ;;
esac
# Run a command in a new session with a niceness, where sessions have one. Without privileges, one
# session of the machine may change its niceness in 0.1 s.
run_in_session() {
    # shellcheck disable=SC2016 # the inner shell expands it
    setsid bash -c '
        for _ in {1..50}; do
            [ -e /proc/self/autogroup ] && ! echo "$1" >/proc/self/autogroup || break
            sleep 0.15
        done 2>/dev/null
        exec "${@:2}"' session "$@"
}
# Run the tests that a marker expression selects. The other arguments are the beginning of a command
# that runs Python.
run_tests() {
    "${@:2}" "$python" -m pytest --durations=25 -m "e2e and $length and $1" tests/e2e tests/faults
}
# The same, but without failing if there are none.
run_any_tests() {
    run_tests "$@"
    local status=$?
    [ "$status" -eq 5 ] || return "$status"
}
log=$(mktemp)
besides=$(mktemp)
run_besides() {
    local status=0
    run_any_tests browser run_in_session 15 || status=1
    run_tests "trains and not alone" run_in_session 15 || status=1
    return "$status"
}
(
    chrt --idle --pid 0 "$BASHPID" >/dev/null
    run_tests computes run_in_session 19
) >"$log" 2>&1 &
computing=$!
run_besides >"$besides" 2>&1 &
beside=$!
stop() {
    kill -STOP "$beside" "$computing" 2>/dev/null # so that neither starts other tests
    pkill -P "$beside"
    pkill -P "$computing"
    kill -KILL "$beside" "$computing" 2>/dev/null
    rm -f "$log" "$besides"
}
trap stop EXIT
status=0
run_tests "not computes and not browser and not trains and not alone" || status=1
wait "$beside" || status=1
wait "$computing" || status=1
cat "$log" "$besides"
trap 'rm -f "$log" "$besides"' EXIT # both have ended; their numbers may be those of others
run_any_tests alone || status=1
exit "$status"
