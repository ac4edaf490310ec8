-- Takes tokens from a bucket that is refilled in steps, or deletes all buckets of a name.
--
-- KEYS  a hash of the buckets of a name ARGV  the field of the bucket, empty to delete all; max, refill, period and
-- tokens to take, whole numbers below 2^52; the caller's
--       time in milliseconds, empty for the server's; 1 for a strict bucket; 1 for one with a session; the time in milliseconds,
--       empty in production, where the server's clock is used
-- Returns the tokens before any were taken, and the start of the session; or whether there was a bucket to delete.
--
-- The value is `taken stepped_at by_caller`, and the start of the session if there is one:
-- src/limit/request_bucket/step.rs computes the same.

local key, field = KEYS[1], ARGV[1]
if field == '' then
  return redis.call('DEL', key)
end

-- Returns a double, as Lua 5.1 does: products of Lua 5.4's integers wrap.
local function number(text)
  local n = tonumber(text)
  return n and n + 0.0
end

local max, refill, period, take = number(ARGV[2]), number(ARGV[3]), number(ARGV[4]), number(ARGV[5])
local now = number(ARGV[9])
if not now then
  local time = redis.call('TIME')
  now = number(time[1]) * 1000 + math.floor(number(time[2]) / 1000)
end
local at = number(ARGV[6]) or now
-- how long the buckets of a name with callers' times are kept after their last use, at least
local KEPT = 7 * 86400000
local MOST = 4503599627370496

local function whole(number)
  return string.format('%.0f', number)
end

local taken, stepped_at, by_caller, start = 0, at, ARGV[6] ~= '', nil
local text = redis.call('HGET', key, field)
if text then
  local a, b, c, d = string.match(text, '^(%d+) (%d+) ([01]) ?(%d*)$')
  if not a then return redis.error_reply('ERR the value of a bucket is malformed') end
  taken, stepped_at, by_caller, start = number(a), number(b), by_caller or c == '1', number(d)
end
local steps = math.floor(math.max(0, at - stepped_at) / period)
taken = math.max(0, math.min(taken, max) - steps * refill)
stepped_at = stepped_at + steps * period
local tokens = max - taken
local begins = take > 0 and tokens >= take
local begun = begins and at or start or at
if take > 0 then
  taken = math.min(max, taken + take)
  if ARGV[7] == '1' and taken == max then stepped_at = at end
  local value = whole(taken) .. ' ' .. whole(stepped_at) .. ' ' .. (by_caller and '1' or '0')
  if ARGV[8] == '1' or start then value = value .. ' ' .. whole(ARGV[8] == '1' and begun or start) end
  redis.call('HSET', key, field, value)
  local refill_time = math.min(MOST, math.ceil(taken / refill) * period)
  local keep = by_caller and math.max(KEPT, refill_time) or math.max(1, stepped_at + refill_time - now)
  if keep > redis.call('PTTL', key) then redis.call('PEXPIRE', key, whole(math.min(MOST, keep))) end
end
return { whole(tokens), whole(begun) }
