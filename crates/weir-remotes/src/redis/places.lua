-- Keeps the places of one counter: the names of its requests in flight.
--
-- KEYS  the places: a sorted set by the millisecond of their start; the marks: a sorted set of names that have ended, by
--       the millisecond of their end
-- ARGV  the operation; the time in microseconds, empty in production, where the server's clock is used; the age in
--       milliseconds at which a place is given up; the milliseconds for which the places, and the marks, stay; for how
--       many of them a mark counts, and the most marks; what the operation needs; and the names, without flags
--       take: the most places, and the microsecond beyond which nothing is taken
--       end: how many of the names are marked, the first ones
-- Returns the time in microseconds; how many of the names were taken, had a place, or were added; the places; and the
-- places that were given up. weir-coordinate/simulated/places.rs does the same.

-- what Lua 5.1 has under the other name, for Lua 5.4: a global variable that does not exist is an error
local redis_call, unpack = redis.call, table.unpack or unpack

local places, marks = KEYS[1], KEYS[2]
local op, micros = ARGV[1], tonumber(ARGV[2])
if not micros then
  local time = redis_call('TIME')
  micros = tonumber(time[1]) * 1000000 + tonumber(time[2])
end
local now, age, marked_for = math.floor(micros / 1000), tonumber(ARGV[3]), tonumber(ARGV[6])

local function whole(n)
  return string.format('%.0f', n)
end

local given_up = redis_call('ZREMRANGEBYSCORE', places, '-inf', whole(now - age))
local done, inserted = 0, 0

local function insert(start, name)
  local added = redis_call('ZADD', places, 'NX', whole(start), name)
  inserted = inserted + added
  return added
end

if op == 'take' then
  if micros <= tonumber(ARGV[9]) then
    local most, count = tonumber(ARGV[8]), redis_call('ZCARD', places)
    for i = 10, #ARGV do
      if count < most then
        count = count + insert(now, ARGV[i])
      elseif not redis_call('ZSCORE', places, ARGV[i]) then
        break
      end
      done = done + 1
    end
  end
elseif op == 'end' then
  done = redis_call('ZREM', places, unpack(ARGV, 9))
  local scored = {}
  for i = 9, 8 + tonumber(ARGV[8]) do
    scored[#scored + 1] = whole(now)
    scored[#scored + 1] = ARGV[i]
  end
  if #scored > 0 then
    redis_call('ZREMRANGEBYSCORE', marks, '-inf', whole(now - marked_for))
    redis_call('ZADD', marks, unpack(scored))
    redis_call('ZREMRANGEBYRANK', marks, 0, -1 - tonumber(ARGV[7]))
    redis_call('PEXPIRE', marks, ARGV[5])
  end
else
  for i = 8, #ARGV do
    local name, start = ARGV[i], 0
    for at = 1, 6 do start = start * 256 + string.byte(name, at) end
    if start > now then start = now end
    local marked = redis_call('ZSCORE', marks, name)
    if start + age > now and not (marked and tonumber(marked) + marked_for > now) then
      done = done + insert(start, name)
    end
  end
end
if inserted > 0 then redis_call('PEXPIRE', places, ARGV[4]) end
-- in Lua 5.4 a reply must not have doubles; these are none
return { micros, done, redis_call('ZCARD', places), given_up }
