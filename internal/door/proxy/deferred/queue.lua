-- The queue of deferred requests. KEYS[1] is the beginning of all keys; they share a hash tag.
-- Times are Redis' own, in µs.
--   due    sorted set: lines by when their head may be asked for
--   line:L stream: the IDs of the jobs of a line, in order
--   out    sorted set: jobs that were taken out of their lines, by when they go back
--   busy   hash: of each line the job that is being sent, if it is out
--   job:ID hash: state, line, job (the request), size, queued, queue, attempts, status, error, ended
--   all    sorted set: jobs that are queued or active, by when they came
--   dead, done  sorted sets: jobs that have ended, by when
--   sum    hash: bytes of the jobs that are queued or active, and of the dead letters
--   held, heldBytes  hashes: of each line the number of those jobs, and their bytes
local base, op = KEYS[1], ARGV[1]
local call = redis.call
local t = call('TIME')
local now = t[1] * 1000000 + t[2]
local function us(n) return string.format('%.0f', n) end
local due, out, all, dead, done, sum = base .. 'due', base .. 'out', base .. 'all', base .. 'dead', base .. 'done', base .. 'sum'
local busy, held, heldBytes = base .. 'busy', base .. 'held', base .. 'heldBytes'
local function job(id) return base .. 'job:' .. id end
local function line(l) return base .. 'line:' .. l end

-- free is from when on the head of a line may be asked for: at once, unless a job of the line is
-- being sent.
local function free(l)
  local id = call('HGET', busy, l)
  local lease = id and call('ZSCORE', out, id)
  return lease and math.max(now, tonumber(lease)) or now
end

-- release lets the next job of a line go, if this one is being sent.
local function release(id, l)
  if call('HGET', busy, l) ~= id then return end
  call('HDEL', busy, l)
  call('ZADD', due, 'XX', us(now), l)
end

local function append(id, l)
  call('XADD', line(l), '*', 'id', id)
  call('ZADD', due, 'NX', us(free(l)), l)
end

-- unline takes a job out of its line; false if it is not there. The heads are the usual case.
local function unline(id, l)
  local key = line(l)
  local from = '-'
  for _ = 1, 1000 do
    local some = call('XRANGE', key, from, '+', 'COUNT', 100)
    if #some == 0 then return false end
    for _, e in ipairs(some) do
      if e[2][2] == id then
        call('XDEL', key, e[1])
        if call('XLEN', key) == 0 then
          call('DEL', key)
          call('ZREM', due, l)
        end
        return true
      end
      from = '(' .. e[1]
    end
  end
  return false
end

local function live(id, l, size, sign)
  if sign > 0 then call('ZADD', all, us(now), id) else call('ZREM', all, id) end
  call('HINCRBY', sum, 'bytes', us(sign * size))
  call('HINCRBY', heldBytes, l, us(sign * size))
  if call('HINCRBY', held, l, sign) <= 0 then
    call('HDEL', held, l)
    call('HDEL', heldBytes, l)
  end
end

-- buried adds the bytes of a dead letter to their sum, or takes them off.
local function buried(size, sign) call('HINCRBY', sum, 'dead', us(sign * size)) end

local function away(set, id)
  call('ZREM', set, id)
  if set == dead then buried(tonumber(call('HGET', job(id), 'size') or '0'), -1) end
  call('DEL', job(id))
end

local function forget(set, before, most, bytes)
  for _, id in ipairs(call('ZRANGEBYSCORE', set, '-inf', us(before), 'LIMIT', 0, 16)) do away(set, id) end
  local over = call('ZCARD', set) - most
  if over > 0 then
    for _, id in ipairs(call('ZRANGE', set, 0, math.min(over, 16) - 1)) do away(set, id) end
  end
  for _ = 1, 16 do
    if set ~= dead or tonumber(call('HGET', sum, 'dead') or '0') <= bytes then return end
    local oldest = call('ZRANGE', set, 0, 0)[1]
    if not oldest then return end
    away(set, oldest)
  end
end

-- room returns how many jobs and bytes would be left beside another job; nil if it does not fit.
local function room(size, jobs, bytes)
  jobs = jobs - call('ZCARD', all) - 1
  bytes = bytes - tonumber(call('HGET', sum, 'bytes') or '0') - size
  if jobs >= 0 and bytes >= 0 then return jobs, bytes end
end

if op == 'put' then
  local id, l, text, jobs, bytes = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])
  if call('EXISTS', job(id)) == 1 then return 1 end -- put before, by a call whose answer was lost
  jobs, bytes = room(#text, jobs, bytes)
  if not jobs then return 0 end
  if tonumber(call('HGET', held, l) or '0') > jobs
    or tonumber(call('HGET', heldBytes, l) or '0') > bytes then
    return 2
  end
  call('HSET', job(id), 'state', 'queued', 'line', l, 'job', text, 'size', #text, 'queued', ARGV[7], 'queue', ARGV[8], 'attempts', 0)
  live(id, l, #text, 1)
  append(id, l)
  return 1
end

if op == 'next' then
  for _, id in ipairs(call('ZRANGEBYSCORE', out, '-inf', us(now), 'LIMIT', 0, 64)) do
    call('ZREM', out, id)
    local l = call('HGET', job(id), 'line')
    if l then
      call('HSET', job(id), 'state', 'queued')
      release(id, l)
      append(id, l)
    end
  end
  local wait = 1000000
  local back = call('ZRANGE', out, 0, 0, 'WITHSCORES')
  if back[2] then wait = math.min(wait, tonumber(back[2]) - now) end
  for _ = 1, 64 do
    local first = call('ZRANGE', due, 0, 0, 'WITHSCORES')
    if not first[1] then return {0, us(math.max(0, wait))} end
    local l, at = first[1], tonumber(first[2])
    if at > now then return {0, us(math.max(0, math.min(wait, at - now)))} end
    local head = call('XRANGE', line(l), '-', '+', 'COUNT', 1)[1]
    if not head then
      call('DEL', line(l))
      call('ZREM', due, l)
    else
      local id = head[2][2]
      local j = call('HMGET', job(id), 'job', 'attempts')
      if j[1] then
        call('ZADD', due, us(now + ARGV[2]), l)
        return {1, j[1], j[2]}
      end
      call('XDEL', line(l), head[1]) -- dropped
    end
  end
  return {0, '0'}
end

if op == 'postpone' then
  return call('ZADD', due, 'XX', us(math.max(free(ARGV[2]), now + ARGV[3])), ARGV[2])
end

local id = ARGV[2]
local state, l, size = unpack(call('HMGET', job(id), 'state', 'line', 'size'))
if not state then return -1 end
size = tonumber(size or '0')

if op == 'take' then
  if call('ZSCORE', out, id) or not unline(id, l) then return 0 end
  call('ZADD', out, us(now + ARGV[3]), id)
  call('HSET', busy, l, id)
  call('ZADD', due, 'XX', us(now + ARGV[3]), l)
  call('HSET', job(id), 'state', 'active')
  call('HINCRBY', job(id), 'attempts', 1)
  return 1
end

if op == 'sent' then
  if call('ZSCORE', out, id) then release(id, l) end
  return 1
end

if op == 'keep' then
  local kept = call('ZADD', out, 'XX', 'CH', us(now + ARGV[3]), id)
  if kept == 1 and call('HGET', busy, l) == id then call('ZADD', due, 'XX', us(now + ARGV[3]), l) end
  return kept
end

if op == 'done' or op == 'fail' then
  if state == 'done' or state == 'failed' then return -1 end
  if call('ZREM', out, id) == 1 then release(id, l)
  elseif unline(id, l) then call('ZADD', due, 'XX', us(free(l)), l) end
  live(id, l, size, -1)
  call('HSET', job(id), 'state', op == 'done' and 'done' or 'failed', 'status', ARGV[3], 'error', ARGV[4], 'ended', us(now))
  local set, keep, most = done, tonumber(ARGV[5]), tonumber(ARGV[7])
  if op == 'done' then
    call('HDEL', job(id), 'job')
  else
    set, most = dead, tonumber(ARGV[6])
    buried(size, 1)
  end
  call('ZADD', set, us(now), id)
  forget(set, now - keep, most, tonumber(ARGV[8]))
  return 1
end

if op == 'again' then
  if call('ZADD', out, 'XX', 'CH', us(now + ARGV[3]), id) == 0 then return -1 end
  release(id, l)
  call('HSET', job(id), 'state', 'queued', 'status', ARGV[4], 'error', ARGV[5])
  return 1
end

if op == 'retry' then
  if state ~= 'failed' then return -1 end
  if not room(size, tonumber(ARGV[3]), tonumber(ARGV[4])) then return 0 end
  call('ZREM', dead, id)
  buried(size, -1)
  call('HSET', job(id), 'state', 'queued', 'attempts', 0)
  call('HDEL', job(id), 'status', 'error', 'ended')
  live(id, l, size, 1)
  append(id, l)
  return 1
end

if op == 'drop' then
  if state == 'active' then return 0 end
  if state == 'done' then return -1 end
  if state == 'queued' then
    if call('ZREM', out, id) == 0 then unline(id, l) end
    live(id, l, size, -1)
  end
  if call('ZREM', dead, id) == 1 then buried(size, -1) end
  call('DEL', job(id))
  return 1
end

return redis.error_reply('ERR no operation ' .. op)
