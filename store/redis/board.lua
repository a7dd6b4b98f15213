-- Facts that all nodes see for a time, see board.go. A kind has three keys in one slot: a hash from
-- id to value, and two sorted sets of ids, by expiry and by their last change. The field '' of the
-- hash holds the name of the board: if that has changed, the board has lost its facts.
--
-- A value is a version, 1 if the fact was removed, the number of its last change (7 bytes), and the
-- data. The number of a change is at least the instant in µs, so that the numbers go on rising if a
-- failover loses the last changes.

local VERSION = 1
local call, pack, unpack, format, max, ceil
local virtual -- whether a test gave the instant

-- begin binds the functions of Redis, which do not exist yet when a library is loaded, and returns
-- the instant of the call.
local function begin(text)
  call, pack, unpack = redis.call, struct.pack, struct.unpack
  format, max, ceil = string.format, math.max, math.ceil
  virtual = text ~= ''
  if virtual then return tonumber(text) end
  local t = call('TIME')
  return t[1] * 1000000 + t[2]
end

local function drop(keys, id)
  call('HDEL', keys[1], id)
  call('ZREM', keys[2], id)
  call('ZREM', keys[3], id)
end

-- sweep deletes facts that have expired, at most a thousand.
local function sweep(keys, now)
  local over = call('ZRANGEBYSCORE', keys[2], '-inf', format('%d', now), 'LIMIT', 0, 1000)
  for i = 1, #over do drop(keys, over[i]) end
end

local function lastChange(keys)
  local last = call('ZREVRANGE', keys[3], 0, 0, 'WITHSCORES')
  return last[2] and tonumber(last[2]) or 0
end

local function put(keys, id, removed, change, stop, data)
  call('HSET', keys[1], id, pack('<BBI7', VERSION, removed, change) .. data)
  call('ZADD', keys[2], format('%d', stop), id)
  call('ZADD', keys[3], format('%d', change), id)
end

-- keep makes the keys live as long as their facts.
local function keep(keys)
  local last = call('ZREVRANGE', keys[2], 0, 0, 'WITHSCORES')
  if not last[2] then
    call('DEL', keys[1], keys[2], keys[3])
    return
  end
  if virtual then return end
  for i = 1, 3 do call('PEXPIREAT', keys[i], format('%d', ceil(last[2] / 1000) + 60000)) end
end

-- post stores facts, and returns how many others had to go. ARGV: the instant, or '' for the
-- server's clock; how many facts there may be; a name for the board if it has none; then for each
-- fact its id, its time to live in µs, and its data.
local function post(keys, args)
  local now, limit = begin(args[1]), tonumber(args[2])
  sweep(keys, now)
  call('HSETNX', keys[1], '', args[3])
  local change = lastChange(keys)
  for i = 4, #args, 3 do
    change = max(change + 1, now)
    put(keys, args[i], 0, change, now + tonumber(args[i + 1]), args[i + 2])
  end
  local gone = 0
  while call('ZCARD', keys[2]) > limit do
    drop(keys, call('ZRANGE', keys[2], 0, 0)[1])
    gone = gone + 1
  end
  keep(keys)
  return gone
end

-- remove marks facts as removed, for the rest of their time to live, and returns how many there
-- were. ARGV: the instant or '', then ids.
local function remove(keys, args)
  local now, n = begin(args[1]), 0
  sweep(keys, now)
  local change = lastChange(keys)
  for i = 2, #args do
    local value, stop = call('HGET', keys[1], args[i]), call('ZSCORE', keys[2], args[i])
    if value and stop and #value >= 9 and unpack('<B', value, 2) == 0 then
      change = max(change + 1, now)
      put(keys, args[i], 1, change, tonumber(stop), '')
      n = n + 1
    end
  end
  return n
end

-- read returns the name of the board, the number of the last change that the reply covers, how many
-- facts it has looked at, and for each that has not expired: id, time to live in µs, age in µs, 1
-- if it was removed, data. ARGV: the instant or '', the number of the change after which to begin,
-- how many facts at most.
local function read(keys, args)
  local now = begin(args[1])
  local from, limit = '(' .. args[2], tonumber(args[3])
  local ids = call('ZRANGEBYSCORE', keys[3], from, '+inf', 'LIMIT', 0, limit)
  local out = {call('HGET', keys[1], '') or '', args[2], #ids}
  for i = 1, #ids do
    local value, stop = call('HGET', keys[1], ids[i]), call('ZSCORE', keys[2], ids[i])
    if value and stop and #value >= 9 then
      local version, removed, change = unpack('<BBI7', value)
      out[2] = format('%d', change)
      if version == VERSION and tonumber(stop) > now then
        out[#out + 1] = ids[i]
        out[#out + 1] = format('%d', stop - now)
        out[#out + 1] = format('%d', max(now - change, 0))
        out[#out + 1] = removed
        out[#out + 1] = value:sub(10)
      end
    end
  end
  return out
end

redis.register_function('NAME_post', post)
redis.register_function('NAME_remove', remove)
redis.register_function('NAME_facts', read)
