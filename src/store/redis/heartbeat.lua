-- Says that an instance lives, and counts those that do: a sorted set of instances by the millisecond that they live to.
--
-- KEYS  the set
-- ARGV  the time in microseconds, empty in production, where it is this server's own; the instance; for how many
--       milliseconds it lives, 0 if it leaves
-- Returns how many live.

local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000000 + tonumber(time[2])
end
now = math.floor(now / 1000)
local instance, lives = ARGV[2], tonumber(ARGV[3])

redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now))
if lives > 0 then
  redis.call('ZADD', KEYS[1], string.format('%.0f', now + lives), instance)
else
  redis.call('ZREM', KEYS[1], instance)
end
-- so that nothing is left of a service that is gone
local last = redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')[2]
if last then
  redis.call('PEXPIRE', KEYS[1], string.format('%.0f', math.max(1, tonumber(last) - now)))
end
return redis.call('ZCARD', KEYS[1])
