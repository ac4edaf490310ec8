-- Writes and reads what instances tell each other.
--
-- KEYS  the notes, a sorted set by the microsecond of their writing; the summaries, a hash by the name of the instance
-- ARGV  the time in microseconds, empty in production, where the server's clock is used; the name of the instance; its
--       summary, empty to keep the last one; a note, empty for none; the microsecond of the last note that the instance
--       has read; 1 to return the summaries; the lives of notes and of summaries in microseconds; the most
--       notes, and the most that are read at a time
-- Returns the time in microseconds, 1 if there was room for the note, the notes after the last one with their
-- microseconds, and the summaries with their names.

local micros = tonumber(ARGV[1])
if not micros then
  local time = redis.call('TIME')
  micros = tonumber(time[1]) * 1000000 + tonumber(time[2])
end
local function text(number)
  return string.format('%.0f', number)
end
local notes, summaries = KEYS[1], KEYS[2]
local instance, summary, note, read_until = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local note_life, summary_life, most = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])

redis.call('ZREMRANGEBYSCORE', notes, '-inf', text(micros - note_life))
local written = 1
if note ~= '' then
  -- later than the last one, which has been read by then
  local last = redis.call('ZRANGE', notes, -1, -1, 'WITHSCORES')
  local at = math.max(micros, last[2] and tonumber(last[2]) + 1 or 0)
  if redis.call('ZCARD', notes) >= most and not redis.call('ZSCORE', notes, note) then
    written = 0
  else
    redis.call('ZADD', notes, text(at), note)
    redis.call('PEXPIRE', notes, text(math.ceil(note_life / 1000)))
  end
end
if summary ~= '' then
  redis.call('HSET', summaries, instance, text(micros) .. ' ' .. summary)
  redis.call('PEXPIRE', summaries, text(math.ceil(summary_life / 1000)))
end
local found = {}
if ARGV[6] == '1' then
  local all = redis.call('HGETALL', summaries)
  for i = 1, #all, 2 do
    local space = string.find(all[i + 1], ' ', 1, true)
    local at = space and tonumber(string.sub(all[i + 1], 1, space - 1))
    if at and at > micros - summary_life then
      found[#found + 1] = all[i]
      found[#found + 1] = string.sub(all[i + 1], space + 1)
    else
      redis.call('HDEL', summaries, all[i])
    end
  end
end
local read = redis.call('ZRANGEBYSCORE', notes, '(' .. text(read_until), '+inf', 'WITHSCORES', 'LIMIT', 0, ARGV[10])
return {text(micros), written, read, found}
