"""Calls a partner's API within its limit: waits for weir before each call. See README.md."""
import sys
import time

import grpc
from weir.v1 import limiter_pb2, limiter_pb2_grpc


def acquire(limiter, api, max_wait):
    """Returns whether a hit was taken within max_wait seconds, and otherwise the seconds after which to retry, if ever."""
    request = limiter_pb2.AcquireRequest(domain="partners", returnable=True)
    request.entries.add(key="api", value=api)
    request.max_wait.FromMilliseconds(int(max_wait * 1000))
    response = limiter.Acquire(request, timeout=max_wait + 1)
    if response.outcome == limiter_pb2.AcquireResponse.ADMITTED:
        return response.token, None
    return None, response.retry_after.ToTimedelta().total_seconds() if response.HasField("retry_after") else None


def main(address, calls):
    limiter = limiter_pb2_grpc.LimiterStub(grpc.insecure_channel(address))
    started = time.monotonic()
    for number in range(1, calls + 1):
        token, retry_after = acquire(limiter, "stickers", max_wait=10)
        outcome = "calls the partner" if token else f"gives up: retry after {retry_after} s"
        print(f"{time.monotonic() - started:5.2f} s: request {number} {outcome}")
    # a hit that is not used
    token, _ = acquire(limiter, "stickers", max_wait=10)
    print("released:", limiter.Release(limiter_pb2.ReleaseRequest(token=token)).known)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "localhost:8081", int(sys.argv[2]) if len(sys.argv) > 2 else 8)
