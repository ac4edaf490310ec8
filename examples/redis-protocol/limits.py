"""Rate limits with redis-py. WEIR_PORT is the port of weir, 9049 if it is not set; WEIR_PROTOCOL is 2 or 3."""

import os

import redis

weir = redis.Redis(
    port=int(os.environ.get("WEIR_PORT", "9049")),
    protocol=int(os.environ.get("WEIR_PROTOCOL", "2")),
    decode_responses=True,
)
weir.delete("py:login", "py:api")

# two in each minute, counted from the first: the reply is what was left before
before = [weir.execute_command("RL.REDUCE", "py:login", 2, 60) for _ in range(3)]
print("RL.REDUCE:", ", ".join(map(str, before)))


def throttle(client, key):
    """A burst of 16, then 30 a minute."""
    return client.execute_command("CL.THROTTLE", key, 15, 30, 60)


limited, limit, remaining, retry_after, reset_after = throttle(weir, "py:api")
print(f"CL.THROTTLE: {'limited' if limited else 'allowed'}, {remaining} left")

# by default redis-py sends a pipeline as a transaction
for transaction in (True, False):
    weir.delete("py:api")
    pipeline = weir.pipeline(transaction=transaction)
    for _ in range(3):
        throttle(pipeline, "py:api")
    replies = pipeline.execute()
    print("pipeline:", ", ".join(str(reply[1] - reply[2]) for reply in replies), "tokens taken")

print("reset:", weir.delete("py:api"))

# what a rule answers: pairs in the second version of the protocol, a map in the third
for _ in range(3):
    answer = weir.execute_command("WEIR.TAKE", "shop", "tenant", "py")
    if isinstance(answer, list):
        answer = dict(zip(answer[::2], answer[1::2]))
    print("WEIR.TAKE:", answer["code"], answer["limit_remaining"])
