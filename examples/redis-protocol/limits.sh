#!/bin/sh
# Rate limits with redis-cli. WEIR_PORT is the port of weir, 9049 if it is not set.
set -eu

ask() {
    redis-cli -p "${WEIR_PORT:-9049}" "$@"
}

ask DEL sh:login sh:api > /dev/null

# two in each minute, counted from the first: the reply is what was left before
echo RL.REDUCE
ask RL.REDUCE sh:login 2 60
ask RL.REDUCE sh:login 2 60
ask RL.REDUCE sh:login 2 60

# a burst of 16, then 30 a minute: limited, limit, remaining, seconds to retry after, seconds until it is full
echo CL.THROTTLE
ask CL.THROTTLE sh:api 15 30 60

# the third one of a day is over the limit of the rule
echo WEIR.TAKE
for _ in 1 2 3; do
    ask WEIR.TAKE shop tenant sh
done
