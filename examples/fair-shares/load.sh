#!/bin/sh
# Sends requests of four clients to the gateway, spread evenly over cycles of 4 s, and prints what each asked for and got.
# Usage: load.sh [address of the gateway]
set -eu
gateway=${1:-http://localhost:10000}
cycle=4
clients="cards loans savings trading"
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT

# send CLIENT REQUESTS: sends them evenly in the first nine tenths of a cycle (curl 7.84 or later)
send() {
    curl -s -o /dev/null -w '%{http_code}\n' -H "x-client: $1" --rate "$(($2 * 600 / 9 / cycle))/m" "$gateway/[1-$2]" |
        grep -c '^200$' > "$results/$1" || true
}

printf '%-8s' cycle
for client in $clients; do printf '%18s' "$client"; done
echo
number=0
# what each client asks for in a cycle: at first nobody exceeds a quarter; then savings asks for four times as much, and trading for little
for demands in "10 10 10 10" "10 10 40 2" "10 10 40 2" "10 10 40 2"; do
    # cycles begin at multiples of their length
    sleep "$(awk "BEGIN { print $cycle - $(date +%s.%N) % $cycle + 0.02 }")"
    number=$((number + 1))
    # shellcheck disable=SC2086 # these are words
    set -- $demands
    waiting=
    for client in $clients; do
        send "$client" "$1" &
        waiting="$waiting $!"
        shift
    done
    for process in $waiting; do wait "$process"; done
    printf '%-8s' "$number"
    # shellcheck disable=SC2086
    set -- $demands
    for client in $clients; do
        printf '%18s' "$(cat "$results/$client") of $1"
        shift
    done
    echo
done
