"""Makes a provider's calls for the jobs of a queue, within the limit that weir beside it knows. See README.md.

The queue is a file, or standard input, with a job a line. Standard library only.
"""
import http.client
import json
import queue
import sys
import threading
import time

CALLERS = 60
MAX_WAIT = 30  # seconds


class Weir:
    """A connection to weir."""

    def __init__(self, address):
        self.connection = http.client.HTTPConnection(address, timeout=MAX_WAIT + 30)

    def acquire(self, api):
        """Waits until a call may be made."""
        body = json.dumps({
            "domain": "partners",
            "descriptors": [{"entries": [{"key": "api", "value": api}]}],
            "maxWait": f"{MAX_WAIT}s",
        })
        while True:
            self.connection.request("POST", "/v1/acquire", body, {"Content-Type": "application/json"})
            response = self.connection.getresponse()
            answer = response.read()
            if response.status == 200:
                return
            if response.status != 429:
                raise RuntimeError(f"weir answers {response.status}: {answer.decode()}")
            retry_after = json.loads(answer).get("retryAfter")
            if retry_after is None:
                raise RuntimeError("the limit admits no such call, ever")
            time.sleep(float(retry_after.rstrip("s")))


def work(jobs, weir, provider, errors):
    """Makes the calls of jobs until there are none."""
    try:
        weir, connection = Weir(weir), http.client.HTTPConnection(provider, timeout=60)
        while (job := jobs.get()) is not None:
            weir.acquire("stickers")
            connection.request("POST", "/send", job, {"X-Made-At": str(time.time_ns())})
            connection.getresponse().read()
    except Exception as error:  # pylint: disable=broad-except
        errors.append(error)


def main(weir, provider, lines):
    # bounded: what is not taken yet stays in the queue outside
    jobs, errors = queue.Queue(maxsize=CALLERS), []
    callers = [threading.Thread(target=work, args=(jobs, weir, provider, errors), daemon=True) for _ in range(CALLERS)]
    for caller in callers:
        caller.start()
    done = 0
    for line in lines:
        while not errors:
            try:
                jobs.put(line.rstrip("\n").encode(), timeout=1)
                done += 1
                break
            except queue.Full:
                pass
    for _ in callers:
        if not errors:
            jobs.put(None)
    for caller in callers:
        if not errors:
            caller.join()
    if errors:
        sys.exit(f"a caller has failed: {errors[0]}")
    print(f"{done} calls were made")


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit("usage: worker.py WEIR PROVIDER [FILE], such as localhost:8080 localhost:9090 jobs.txt")
    with open(sys.argv[3], encoding="utf-8") if len(sys.argv) == 4 else sys.stdin as jobs_file:
        main(sys.argv[1], sys.argv[2], jobs_file)
