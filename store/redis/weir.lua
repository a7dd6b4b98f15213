-- The algorithms of package algo, inside Redis: they decide, and write what was charged. What a caller is told besides
-- (remaining, retry_after, reset_after, delay) is worked out by algo itself, in the node that asked, from the state
-- that the reply brings along. So each function here is only the part of its Go twin that counts; a differential test
-- holds the two together, and each reply carries a number by which the node notices if they ever part.
--
-- All numbers are integers below 2^53, times µs since the Unix epoch. Where Go divides, floor(x / d) is exact here: for
-- such x and d the quotient is never rounded up to the next integer.
--
-- A state that is odd is left to the node: one further ahead of the clock than it could ever be, one whose form is not
-- known, or whose change is rare and long to tell. Nothing is written then; the node settles it with algo's own code
-- and the function swap. So is what a soft margin that closes would have to admit (L.tight: Lua grants up to the limit
-- without it), and a call at an instant at which a schedule has other limits in force than the node thought.

local floor, ceil, min, max, byte, char, sub, rep, format, concat
local encode, decode, spread, call, try
local MAXINT, COUNT, INTERVAL = 9007199254740991, 4294967295, 4294967295
local FOREVER = 31622400000000 -- 366 days, the longest a state is kept that would otherwise never be forgotten

-- A library is loaded where none of this is defined yet.
local function init()
  floor, ceil, min, max = math.floor, math.ceil, math.min, math.max
  byte, char, sub, rep, format, concat = string.byte, string.char, string.sub, string.rep, string.format, table.concat
  encode, decode, spread, call, try = struct.pack, struct.unpack, unpack, redis.call, redis.pcall
end

local now        -- instant of the call
local virtual    -- a test gave it
local lastMs, lastText

-- expiry returns the first millisecond at which a state that is fresh at an instant may be forgotten, as text.
local function expiry(instant)
  if virtual then return '32503680000000' end
  local ms = ceil(min(instant, MAXINT) / 1000)
  if ms ~= lastMs then
    lastMs, lastText = ms, format('%d', ms)
  end
  return lastText
end

-- dropped are keys to be forgotten when the call has been made, and not before: while a slot moves, a key that is not there
-- (any more) is another server's, and a function that asks for it fails.
local dropped

local function drop(key)
  call('SET', key, '', 'PX', '1000')
  dropped = dropped or {}
  dropped[key] = true
end

local function forgetDropped()
  for key in pairs(dropped) do
    if call('STRLEN', key) == 0 then call('DEL', key) end
  end
  dropped = nil
end

-- muldiv returns floor(x × y / d) where x × y may need more than 53 bits; MAXINT if the result does.
local function muldiv(x, y, d, up)
  if x * y <= MAXINT then
    return up and ceil(x * y / d) or floor(x * y / d)
  end
  local q, r, xq, xr = 0, 0, floor(x / d), x % d
  for bit = 52, 0, -1 do
    local p = 2 ^ bit
    q = 2 * q
    if r >= d - r then q, r = q + 1, r - (d - r) else r = 2 * r end
    if y >= p then
      y = y - p
      q = q + xq
      if r >= d - xr then q, r = q + 1, r - (d - xr) else r = r + xr end
    end
    if q > MAXINT then return MAXINT end
  end
  if up and r > 0 then q = q + 1 end
  return min(q, MAXINT)
end

-- counted returns how many of m asks one after the other a limit admits that has counted used.
local function counted(L, used, m)
  local c = L.c
  if c > 0 then
    return max(0, min(m, floor((L.most - used) / c)))
  elseif c < 0 or used <= L.most or L.n == 0 and not L.cd then
    return m
  end
  return 0
end

-- outlasts returns the instant at which a bucket is fresh for certain under each of the limits of its schedule, if it is so at stop
-- under the one in force.
local function outlasts(L, stop)
  if L.slow then return now + max(0, stop - now) * L.slow + L.extra end
  return stop
end

-- Each algorithm is two functions. admit(L, raw, m, key) returns how many of m asks it admits, and up to four values
-- for the other one; nil if the state is odd. Those that keep their state in a few bytes (compact) are given it as raw,
-- false if there is none; apply(L, n, …) returns the state after n of them were charged (false: fresh), the instant at
-- which that is fresh, and whether it was so before, too. The others read what they need of their state themselves, and
-- have a third function: tell(L, key, g, n, context, m) charges n of g that were admitted (n may be 0), and returns what
-- the node needs to know.

-- fixed_window: when the window began, what it has counted.

local function fixedIn(L, raw, m, start, stop, after)
  local used, keep = 0, false
  if raw then
    if #raw ~= 14 then return nil end
    local a, b = decode('<I7I7', raw)
    if a >= start then
      used, keep = b, a == start
      if a >= stop then
        if a >= after then return nil end
        start, stop, keep = stop, after, a == stop
      end
    end
  end
  return counted(L, used, m), start, used, stop, keep
end

local function fixedAdmit(L, raw, m)
  local start = now - now % L.w
  return fixedIn(L, raw, m, start, start + L.w, start + 2 * L.w)
end

local function calendarAdmit(L, raw, m)
  if now < L.p1 or now >= L.p2 then return nil end
  return fixedIn(L, raw, m, L.p1, L.p2, L.p3)
end

local function firstAdmit(L, raw, m)
  local start, used, keep = now, 0, false
  if raw then
    if #raw ~= 14 then return nil end
    local a, b = decode('<I7I7', raw)
    if now < a + L.w then
      if a > now + L.w then return nil end
      start, used, keep = a, b, true
    end
  end
  return counted(L, used, m), start, used, start + L.w, keep
end

local function fixedApply(L, n, start, used, stop, keep)
  used = used + n * L.c
  if used <= 0 then return false end
  return encode('<I7I7', start, min(used, MAXINT)), stop, keep
end

-- sliding_window of one bucket: when the current sub-window began, its count, and the one before's.

local function part(L, count, rest)
  if count == 0 then return 0 end
  return muldiv(count, rest, L.p2)
end

local function windowAdmit(L, raw, m)
  local elapsed = now % L.p1
  local start, cur, prev, keep = now - elapsed, 0, 0, false
  if raw then
    if #raw ~= 15 then return nil end
    local a, c, p = decode('<I7I4I4', raw)
    local d = start - a
    if d == 0 then
      cur, prev, keep = c, p, c > 0
    elseif d > L.p1 then
      -- all of it is over
    elseif d > 0 then
      prev = c
    else
      if a > start + L.p1 then return nil end
      start, elapsed, cur, prev, keep = a, 0, c, p, c > 0
    end
  end
  local used = cur + part(L, prev, L.p2 - floor(elapsed / L.unit))
  return counted(L, used, m), start, cur, prev, keep
end

local function windowApply(L, n, start, cur, prev, keep)
  local by = n * L.c
  if by >= 0 then
    cur = min(cur + by, COUNT)
  else
    local back = min(-by, cur)
    cur, prev, keep = cur - back, max(0, prev + by + back), false
    if cur + prev == 0 then return false end
  end
  return encode('<I7I4I4', start, cur, prev), start + (cur > 0 and 2 or 1) * L.p1, keep
end

-- token_bucket and leaky_bucket: a level at a unit of time, and the scale of both (see algo/bucket.go).

local units = {[0] = 1, 1000, 1000000, 60000000}

local function rescale(L, a, b, tag)
  local unit = units[tag % 4]
  local w, n = max(1, floor(L.w / unit)), floor(tag / 4)
  local x, y = w, n
  while y ~= 0 do x, y = y, x % y end
  a = ceil(min(a, floor(MAXINT / unit)) * unit / L.unit)
  return a, min(muldiv(b, L.p2, w / x, true), L.p3)
end

local function drained(L, t, level)
  if L.p1 == 0 then return now + FOREVER end
  return outlasts(L, (t + ceil(level / L.p1)) * L.unit)
end

local function bucketAdmit(L, raw, m)
  local t, level, c, other = floor(now / L.unit), 0, L.c, nil
  if raw then
    if #raw ~= 18 then return nil end
    local a, b, tag = decode('<I7I7I4', raw)
    if tag ~= L.p6 then
      if tag == INTERVAL then return nil end
      a, b = rescale(L, a, b, tag)
      -- Where nothing drains it goes when it would have gone: a limit may stand still for a time, and nobody come again.
      other = L.p1 > 0 and raw or nil
    end
    b = min(b, L.p3)
    if a > t then
      if a > t + L.p5 then return nil end
      t, level = a, b
    elseif t - a < L.p4 then
      level = max(0, b - (t - a) * L.p1)
    end
  end
  local g = m
  if c > 0 then
    if c > L.most or L.n == 0 then
      g = 0
    elseif L.maxDelay >= 0 then
      local rest, each = level, c * L.p2
      g = 0
      while g < m and rest + each <= L.mostLevel
        and (rest == 0 or min((t + ceil(rest / L.p1)) * L.unit - now, MAXINT) <= L.maxDelay) do
        g, rest = g + 1, rest + each
      end
    else
      g = max(0, min(m, floor((L.mostLevel - level) / (c * L.p2))))
    end
  elseif c == 0 then
    if level > L.mostLevel then g = 0 end
  elseif L.lastEnds ~= 0 and not (level > 0 and L.p1 > 0 and (t + ceil(level / L.p1)) * L.unit == L.lastEnds) then
    g = 0
  end
  return g, t, level, other
end

local function bucketApply(L, n, t, level, other)
  if n == 0 then
    -- It is not changed, but the limit that kept it expects it to be fresh, and to be forgotten, at another time.
    return other, drained(L, t, level)
  end
  level = level + n * L.c * L.p2
  if level <= 0 then return false end
  return encode('<I7I7I4', t, level, L.p6), drained(L, t, level)
end

-- token_bucket refilled at intervals: the last boundary, and the tokens that are missing.

local function intervalAdmit(L, raw, m)
  local anchor, missing, c = now, 0, L.c
  if raw then
    if #raw ~= 18 then return nil end
    local a, b, tag = decode('<I7I7I4', raw)
    if tag ~= INTERVAL or a > now + L.p5 then return nil end
    anchor, missing = a, min(b, L.cap)
    if a <= now then
      anchor = now - (now - a) % L.w
      missing = max(0, missing - (anchor - a) / L.w * L.n)
    end
    if missing == 0 then anchor = now end
  end
  local g = m
  if c > 0 then
    g = (c > L.most or L.n == 0) and 0 or max(0, min(m, floor((L.most - missing) / c)))
  elseif c == 0 and missing > L.most then
    g = 0
  end
  return g, anchor, missing
end

local function intervalApply(L, n, anchor, missing)
  missing = missing + n * L.c
  if missing <= 0 then return false end
  local full = L.n == 0 and now + FOREVER or outlasts(L, anchor + ceil(missing / L.n) * L.w)
  return encode('<I7I7I4', anchor, missing, INTERVAL), full
end

-- sliding_window of more buckets: a head of when the current sub-window began, the sum of all counters, the current
-- one, the oldest one, and K; then the K older counters, newest first. A decision within a sub-window that has been
-- charged reads and writes the head alone.

local HEAD = '<I7I7I4I4B'
local HEAD_SIZE = 23

local function older(v, j) return (decode('<I4', v, HEAD_SIZE + 4 * j - 3)) end

local function windowsAdmit(L, raw, m, key)
  local k, elapsed = L.p3, now % L.p1
  local s = {start = now - elapsed, whole = 0, cut = 0, cur = 0, d = k + 1}
  local head = try('GETRANGE', key, '0', '22')
  if type(head) ~= 'string' then return nil end
  if #head > 0 then
    if #head ~= HEAD_SIZE or L.c < 0 then return nil end
    local a, sum, cur, cut, buckets = decode(HEAD, head)
    if buckets ~= k or a > s.start + L.w then return nil end
    if a >= s.start then
      if a > s.start then s.start, elapsed = a, 0 end
      s.d, s.cur, s.cut, s.whole, s.head = 0, cur, cut, sum - cut, head
    else
      local v = call('GET', key)
      if #v ~= HEAD_SIZE + 4 * k then return nil end
      local d = min((s.start - a) / L.p1, k + 1)
      s.d, s.all = d, v
      if d <= k then
        local whole = sum
        for j = k - d, k do
          whole = whole - (j == 0 and cur or older(v, j))
        end
        s.whole, s.cut, s.last = whole, d == k and cur or older(v, k - d), cur
      end
    end
  end
  return counted(L, s.whole + part(L, s.cut, L.p2 - floor(elapsed / L.unit)), m), s
end

local function windowsTell(L, key, g, n, s, m)
  local k = L.p3
  local before = s.all
  if s.head then
    before = s.head
    if n < m or g < m or L.c <= 0 then before = call('GET', key) end
  end
  if n > 0 and L.c > 0 then
    local add = min(n * L.c, COUNT - s.cur)
    local head = encode(HEAD, s.start, s.whole + s.cut + add, s.cur + add, s.cut, k)
    local stop = expiry(s.start + (k + 1) * L.p1)
    if s.head then
      call('SETRANGE', key, '0', head)
      if s.cur == 0 then call('PEXPIREAT', key, stop) end
    else
      local rest
      if s.d > k then
        rest = rep('\0', 4 * k)
      else
        rest = rep('\0', 4 * (s.d - 1)) .. encode('<I4', s.last) .. sub(s.all, HEAD_SIZE + 1, HEAD_SIZE + 4 * (k - s.d))
      end
      call('SET', key, head .. rest, 'PXAT', stop)
    end
  end
  return before or ''
end

-- What the node is told of a log and of slots: how much was used before and after, the newest time, and the time of the
-- entry whose end would let the first ask pass that was denied (0 if none was). Where that is not all that a denial depends on
-- (the margin may be open, or other limits be in force by then) it is told the whole state before, of up to WHOLE entries.
local WHOLE = 2000

local function tally(before, after, newest, pivot)
  return encode('<I7I7I7I7', before, after, newest, pivot)
end

-- sliding_log: a head of the newest time, the place of the oldest unit in the ring, the number of units, and the size
-- of the ring; then the ring of times, each of p1 bytes, modulo 2^40 or 2^48.

local LOG = '<I7I4I4I4'
local LOG_SIZE = 19

local function entries(L, key, s, i, j) -- bytes of the units i to j, which must not run over the ring's end
  local p = (s.tail + i) % s.size
  return call('GETRANGE', key, LOG_SIZE + p * L.p1, LOG_SIZE + (p + j - i + 1) * L.p1 - 1)
end

local function whole(L, s, v, at)
  local t = decode(L.p1 == 6 and '<I6' or '<I5', v, at)
  return s.ref - (s.ref - t) % (L.p1 == 6 and 281474976710656 or 1099511627776)
end

local function unitAt(L, key, s, i) return whole(L, s, entries(L, key, s, i, i), 1) end

-- dead returns how many units are not later than t.
local function dead(L, key, s, t)
  if s.n == 0 then return 0 end
  if s.ref <= t then return s.n end
  local some = min(8, s.n, s.size - s.tail)
  local v = entries(L, key, s, 0, some - 1)
  for i = 0, some - 1 do
    if whole(L, s, v, 1 + i * L.p1) > t then return i end
  end
  local lo, hi = some - 1, 2 * some -- lo is dead
  while hi < s.n and unitAt(L, key, s, hi) <= t do lo, hi = hi, 2 * hi end
  hi = min(hi, s.n - 1) -- the newest is not dead
  while hi - lo > 1 do
    local mid = floor((lo + hi) / 2)
    if unitAt(L, key, s, mid) <= t then lo = mid else hi = mid end
  end
  return hi
end

-- logPivot returns the time of the entry whose end lets an ask pass that is denied after some units were added.
local function logPivot(L, key, s, added)
  local i = s.live + added + L.c - L.cap - 1
  return i < s.live and unitAt(L, key, s, s.dead + i) or s.eff
end

local function logAdmit(L, raw, m, key)
  local s = {n = 0, size = 0, tail = 0, ref = 0, dead = 0, eff = now}
  local head = try('GETRANGE', key, '0', '18')
  if type(head) ~= 'string' then return nil end
  if #head > 0 then
    if #head ~= LOG_SIZE then return nil end
    s.ref, s.tail, s.n, s.size = decode(LOG, head)
    if s.ref > now + L.w or s.n == 0 or s.n > s.size or s.tail >= s.size
      or call('STRLEN', key) ~= LOG_SIZE + s.size * L.p1 then
      return nil
    end
    s.eff = max(now, s.ref)
    s.dead = dead(L, key, s, s.eff - L.w)
  end
  s.live = s.n - s.dead
  local g = counted(L, s.live, m)
  if g < m and (L.tight or L.till and L.c > 0
    and (L.c > L.cap or logPivot(L, key, s, L.cd and min(L.c, max(L.cap + 1, s.live)) or g * L.c) + L.w >= L.till)) then
    if s.n > WHOLE then return nil end
    s.whole = call('GET', key) or ''
  end
  return g, s
end

-- logAppend adds units at s.eff. What is counted though it was denied pushes the oldest out, see algo/log.go.
local function logAppend(L, key, s, units)
  local keep = max(L.cap + (L.cd and 1 or 0), s.live)
  local add = min(units, keep)
  local gone = s.dead + max(0, s.live + add - keep)
  local kept, size = s.n - gone, s.size
  local tail, value = size > 0 and (s.tail + gone) % size or 0, nil
  local entry = encode(L.p1 == 6 and '<I6' or '<I5', s.eff % (L.p1 == 6 and 281474976710656 or 1099511627776))
  local need = kept + add
  local stop = expiry(s.eff + L.w)
  if need > size then
    size = min(max(need, 2 * size, 4), keep)
  elseif size > 2 * keep and size > 8 then
    size = max(need, keep)
  end
  if size ~= s.size then
    local ring = ''
    if kept > 0 then
      local all = call('GET', key)
      local from = LOG_SIZE + 1 + tail * L.p1
      local first = min(kept, s.size - tail)
      ring = sub(all, from, from + first * L.p1 - 1) .. sub(all, LOG_SIZE + 1, LOG_SIZE + (kept - first) * L.p1)
    end
    value = encode(LOG, s.eff, 0, need, size) .. ring .. rep(entry, add) .. rep('\0', (size - need) * L.p1)
    call('SET', key, value, 'PXAT', stop)
    return gone - s.dead, need
  end
  local p = (tail + kept) % size
  local first = min(add, size - p)
  call('SETRANGE', key, LOG_SIZE + p * L.p1, rep(entry, first))
  if add > first then call('SETRANGE', key, LOG_SIZE, rep(entry, add - first)) end
  call('SETRANGE', key, '0', encode(LOG, s.eff, tail, need, size))
  call('PEXPIREAT', key, stop)
  return gone - s.dead, need
end

local function logTell(L, key, g, n, s, m)
  local c, after, newest, pivot = L.c, s.live, s.ref, 0
  local denied = c > 0 and g < m and n >= g and c <= L.cap and not s.whole -- by this limit
  if n > 0 and c > 0 then
    local keep = max(L.cap + (L.cd and 1 or 0), s.live)
    if denied then pivot = logPivot(L, key, s, min(n * c, keep)) end
    local _, used = logAppend(L, key, s, n * c)
    after, newest = used, s.eff
  else
    if denied then pivot = logPivot(L, key, s, 0) end
    if n > 0 and c < 0 and s.n > 0 then
      after = max(0, s.live + c)
      if after == 0 then
        drop(key)
      else
        newest = unitAt(L, key, s, s.dead + after - 1)
        call('SETRANGE', key, '0', encode(LOG, newest, (s.tail + s.dead) % s.size, after, s.size))
        call('PEXPIREAT', key, expiry(newest + L.w))
      end
    end
  end
  return s.whole or tally(s.live, after, newest, pivot)
end

-- concurrency: a head of the newest time, the slots held, how many holders at the front are over, and how many there
-- are in all; then the holders in order of admission: time, id, slots.

local HOLD = '<I7I5I4I4'
local HOLD_SIZE, HOLDER = 20, 19

local function holder(v, i) -- i counts from 0 in v, which has no head
  local since, units = decode('<I7', v, 1 + i * HOLDER), decode('<I4', v, 16 + i * HOLDER)
  return since, units
end

-- eachHolder calls f(since, units) for each holder from s.first on, until f returns true.
local function eachHolder(key, s, f)
  local i = s.first
  while i < s.n do
    local some = min(16, s.n - i)
    local v = call('GETRANGE', key, HOLD_SIZE + i * HOLDER, HOLD_SIZE + (i + some) * HOLDER - 1)
    for j = 0, some - 1 do
      if f(holder(v, j)) then return end
    end
    i = i + some
  end
end

local function slotsAdmit(L, raw, m, key)
  local s = {newest = 0, used = 0, first = 0, n = 0, eff = now}
  local head = try('GETRANGE', key, '0', '19')
  if type(head) ~= 'string' then return nil end
  if #head > 0 then
    if #head ~= HOLD_SIZE then return nil end
    s.newest, s.used, s.first, s.n = decode(HOLD, head)
    if s.newest > now + L.w or s.first >= s.n or call('STRLEN', key) ~= HOLD_SIZE + s.n * HOLDER then return nil end
    s.eff = max(now, s.newest)
    eachHolder(key, s, function(since, units)
      if since + L.w > s.eff then return true end
      s.used, s.first = s.used - units, s.first + 1
    end)
  end
  local g, c = counted(L, s.used, m), L.c
  s.pivot = 0
  if c > 0 and g < m then
    local over = s.used + c - L.cap
    if c <= L.cap then
      eachHolder(key, s, function(since, units)
        over = over - units
        s.pivot = since
        return over <= 0
      end)
    end
    if L.till and (c > L.cap or s.pivot + L.w >= L.till) then
      if s.n > WHOLE then return nil end
      s.whole = call('GET', key) or ''
    end
  end
  return g, s
end

local function slotsTell(L, key, g, n, s, m, id)
  if s.whole then return s.whole end
  local c, after, newest = L.c, s.used, s.newest
  if n > 0 and c > 0 then
    local entry = encode('<I7', s.eff) .. id .. encode('<I4', c)
    local stop = expiry(s.eff + L.w)
    after, newest = s.used + c, s.eff
    if s.used == 0 or 2 * s.first >= s.n then
      local kept = ''
      if s.used > 0 then kept = call('GETRANGE', key, HOLD_SIZE + s.first * HOLDER, '-1') end
      call('SET', key, encode(HOLD, newest, after, 0, #kept / HOLDER + 1) .. kept .. entry, 'PXAT', stop)
    else
      call('SETRANGE', key, HOLD_SIZE + s.n * HOLDER, entry)
      call('SETRANGE', key, '0', encode(HOLD, newest, after, s.first, s.n + 1))
      call('PEXPIREAT', key, stop)
    end
  end
  return tally(s.used, after, newest, s.pivot)
end

-- What takes part in a call without being decided: a limit whose schedule puts it out of force (it has no key), and the state of a
-- soft margin that closes, of which the node is told.

local function offAdmit(L, raw, m) return m end

local function offTell() return '' end

local function marginAdmit(L, raw, m)
  if raw then
    if #raw ~= 14 then return nil end
    local _, reopens = decode('<I7I7', raw)
    if L.owner.tight and reopens - now > L.owner.ahead then return nil end
  end
  return m
end

-- By the numbers that codec.go gives them. size: of a compact state.
local algorithms

local function initAlgorithms()
  algorithms = {
    {admit = fixedAdmit, apply = fixedApply, size = 14},
    {admit = firstAdmit, apply = fixedApply, size = 14},
    {admit = calendarAdmit, apply = fixedApply, size = 14},
    {admit = windowAdmit, apply = windowApply, size = 15},
    {admit = bucketAdmit, apply = bucketApply, size = 18, mends = true},
    {admit = intervalAdmit, apply = intervalApply, size = 18},
    {admit = windowsAdmit, tell = windowsTell},
    {admit = logAdmit, tell = logTell},
    {admit = slotsAdmit, tell = slotsTell, ids = true},
    {admit = offAdmit, tell = offTell, off = true},
    {admit = marginAdmit, size = 14, margin = true},
  }
  for _, a in ipairs(algorithms) do
    if a.size then a.none, a.odd = rep('\0', a.size), rep('\255', a.size) end
  end
end

-- A shape is what decisions of one kind ask for: its charges, each with its limit's numbers. Charges that are joined are
-- of one group: their states lie in one value, each as a record of a tag (4 bytes), its length (1 byte) and the state.
-- The value of a charge that is not compact is its state, without a tag.
local ENFORCE, SHADOW, QUOTA = 0, 1, 2
local CHARGE = '<BBBI2Bc4ddddddddddddd'
local COUNTS, TIMED, TIGHT = 1, 2, 4 -- flags of a charge: what follows it, or that denied asks are counted
local shapes, shapeCount = {}, 0

local function shape(text)
  local S = shapes[text]
  if S then return S end
  S = {}
  local at, stride, compact, charges, simple, counts = 1, 0, true, 0, true, false
  while at <= #text do
    local L = {}
    local a, flags, joined
    a, L.mode, flags, joined, L.older, L.tag, L.c, L.maxDelay, L.lastEnds, L.cap, L.n, L.w, L.unit,
      L.p1, L.p2, L.p3, L.p4, L.p5, L.p6, at = decode(CHARGE, text, at)
    for name, value in pairs(algorithms[a]) do L[name] = value end
    L.cd, L.most, L.mostLevel = flags % 2 == COUNTS, L.cap, L.p3
    if flags % 4 >= TIMED then
      -- The instants between which these are the numbers in force; and for buckets, see outlasts.
      L.from, L.till, L.slow, L.extra, at = decode('<dddd', text, at)
      S.from, S.till = max(S.from or 0, L.from), min(S.till or MAXINT, L.till)
      if L.slow == 0 then L.slow = nil end
    end
    if flags >= TIGHT then
      L.tight = true
      L.most, L.mostLevel, L.open, L.ahead, at = decode('<dddd', text, at) -- open: how long the margin is; ahead: see algo/margin.go
    end
    if L.size then L.head = L.tag .. char(L.size) end
    -- older: how many keys of older identities of the counter follow the charge's own; and 128 if a state of such may lie
    -- in the same value.
    L.kin = L.older >= 128
    L.older = L.older % 128
    S[#S + 1] = L
    if L.margin then L.owner, S[#S - 1].margined = S[#S - 1], true end
    if L.off then
      L.at, L.elders = 0, stride
    elseif joined > 0 then
      L.of, L.at, L.elders = joined, S[joined].at, stride
      local members = S[joined].members
      members[#members + 1] = #S
    else
      L.at, L.elders, L.members = stride, stride + 1, {#S} -- members: itself, and the charges that are joined to it
      stride = stride + 1
    end
    stride = stride + L.older
    compact = compact and (L.off or L.size ~= nil and L.older == 0)
    if not L.off and not L.margin then
      charges = charges + 1
      simple, counts = simple and L.mode == ENFORCE, counts or L.cd
    end
  end
  -- compact: one value of KEYS is all that each charge needs
  S.compact, S.stride = compact and stride > 0, max(1, stride)
  -- simple: nothing is charged by a decision that a tight charge does not admit
  S.simple = not counts and (simple or charges == 1)
  if #text < 2048 then
    if shapeCount >= 1024 then shapes, shapeCount = {}, 0 end
    shapes[text], shapeCount = S, shapeCount + 1
  end
  return S
end

-- record returns the state with a tag in a value, and where it begins; false if there is none.
local function record(L, v)
  if sub(v, 1, 5) == L.head then return sub(v, 6, 5 + L.size), 6 end
  local at = 1
  while at + 5 <= #v do
    local size = byte(v, at + 4)
    if sub(v, at, at + 3) == L.tag then return sub(v, at + 5, at + 4 + size), at + 5 end
    at = at + 5 + size
  end
  return false
end

-- MOST bounds the records of windows that a rule no longer has, or has not for this request, and of their margins.
local MOST = 128

-- rewrite writes a value with new states in it, and returns it. bodies holds those of the charges from i on (nil: as it
-- is), stops the instants at which they are fresh.
local function rewrite(S, i, key, v, bodies, stops)
  local own, others, stop, left = {}, {}, 0, {}
  local members = S[i].members
  for k = 1, #members do
    local j = members[k]
    if bodies[j] ~= nil then
      left[S[j].tag] = true
      if bodies[j] then
        own[#own + 1] = S[j].head .. bodies[j]
        stop = max(stop, stops[j])
      end
    end
  end
  local at = 1
  while v and at + 5 <= #v do
    local size = byte(v, at + 4)
    if not left[sub(v, at, at + 3)] and #others < MOST then others[#others + 1] = sub(v, at, at + 4 + size) end
    at = at + 5 + size
  end
  if #own + #others == 0 then
    if v then drop(key) end
    return false
  end
  if #others > 0 then stop = max(stop, 1000 * call('PEXPIRETIME', key)) end
  local value = concat(own) .. concat(others)
  call('SET', key, value, 'PXAT', expiry(stop))
  return value
end

-- begin readies a call, whose instant a test may give.
local function begin(text)
  if not call then
    init()
    initAlgorithms()
  end
  virtual = text ~= ''
  if virtual then
    now = tonumber(text)
  else
    local t = call('TIME')
    now = t[1] * 1000000 + t[2]
  end
end

local ODD = '\255\255\255\255'
local AT_ONCE = 500 -- values that one call hands over; Lua's stack bounds it

-- values reads up to AT_ONCE values from the key i on.
local function values(keys, i, last)
  return call('MGET', spread(keys, i, min(last, i + AT_ONCE - 1)))
end

-- Decisions of one charge on a compact state, by far the most: nothing but what they need.
local function decideOne(S, keys, from, count, list, merged, out)
  local L = S[1]
  local admit, apply, none, odd, cd, c, shadow = L.admit, L.apply, L.none, L.odd, L.cd, L.c, L.mode == SHADOW
  local head, size, granted, o, m, vals, base = L.head, L.size, 0, #out, 1, nil, 0
  for i = 1, count do
    if (i - 1) % AT_ONCE == 0 then
      vals, base = values(keys, from + i - 1, from + count - 1), i - 1
    end
    local v, raw, at = vals[i - base], false, nil
    if v then raw, at = record(L, v) end
    if merged then m = decode('<I4', list, 2 + 4 * i) end
    local g, x, y, z, u
    if raw or not (v and L.kin) then g, x, y, z, u = admit(L, raw, m) end
    if g then
      local n = cd and m or g
      if c == 0 or c < 0 and not raw then n = 0 end
      if n > 0 or L.mends and z then
        local key, body, stop, keep = keys[from + i - 1], apply(L, n, x, y, z, u)
        if keep and raw then
          call('SETRANGE', key, at - 1, body)
        elseif body and (not v or raw and #v == 5 + size) then
          call('SET', key, head .. body, 'PXAT', expiry(stop))
        else
          rewrite(S, 1, key, v, {body}, {stop})
        end
      end
      granted = granted + (shadow and m or g)
      out[o + i] = raw or none
    else
      out[o + i] = odd
    end
  end
  return granted
end

-- inherits reports whether a state that is not there yet is under an older identity of its counter, from which the node
-- must carry it over.
local function inherits(L, keys, k, v, raw)
  if L.kin and v and not raw then return true end
  if L.older == 0 or raw or not L.size and call('EXISTS', keys[k + L.at]) == 1 then return false end
  return call('EXISTS', spread(keys, k + L.elders, k + L.elders + L.older - 1)) > 0
end

-- shut reports whether a margin does not admit what a tight charge denies: it is closed, or used up. raw is its state, which follows
-- the charge's own, and g what the charge admits without it.
local function shut(L, raw, own, g, m, key)
  if L.cd then return false end
  if raw then
    local first, reopens = decode('<I7I7', raw)
    if reopens > now and reopens - now <= L.ahead and now >= first + L.open then return true end
  end
  local most, level = L.most, L.mostLevel
  L.most, L.mostLevel = L.cap, L.p3
  local all = L.admit(L, own, m, key)
  L.most, L.mostLevel = most, level
  return all == g
end

-- What a margin admits is decided a moment before it is written. Who is denied for good in between, since the margin closes in that
-- moment, or other numbers come into force, must not have missed it: such denials are numbered, and the last of a key is remembered;
-- read tells the number, and swap heeds it. denialsBefore is that of the last one that may be forgotten.
local denials, denialOf, keysDenied, denialsBefore = 0, {}, 0, 0

local function rememberDenial(key)
  if not denialOf[key] then
    if keysDenied >= 1000 then denialOf, keysDenied, denialsBefore = {}, 0, denials end
    keysDenied = keysDenied + 1
  end
  denials = denials + 1
  denialOf[key] = denials
end

-- What is known of each charge of a decision: how many asks are admitted, what apply needs, the value, the state, its
-- place, and how many asks are charged.
local G, X, Y, Z, U, V, R, A, N = {}, {}, {}, {}, {}, {}, {}, {}, {}

-- write charges what is to be charged on the charges that are joined to the one at i, and returns the new value.
local function write(S, i, key)
  local bodies, stops, v, whole, members = nil, {}, V[i], false, S[i].members
  for k = 1, #members do
    local j = members[k]
    local L, n = S[j], N[j]
    if L.c == 0 or L.c < 0 and not R[j] then n = 0 end
    if n > 0 or L.mends and Z[j] then
      local body, stop, keep = L.apply(L, n, X[j], Y[j], Z[j], U[j])
      bodies = bodies or {}
      bodies[j], stops[j] = body, stop
      whole = whole or not (keep and R[j])
    end
  end
  if not bodies then return v end
  if whole then return rewrite(S, i, key, v, bodies, stops) end
  for k = 1, #members do
    local j = members[k]
    if bodies[j] then
      call('SETRANGE', key, A[j] - 1, bodies[j])
      v = sub(v, 1, A[j] - 1) .. bodies[j] .. sub(v, A[j] + #bodies[j])
    end
  end
  return v
end

-- Decisions of any number of charges, all or nothing (see weir.Store).
local function decideAll(S, keys, from, count, list, merged, repeats, at, out)
  local nch, stride, granted, o, m = #S, S.stride, 0, #out, 1
  local vals, base, cur = nil, 0, repeats and {} or nil
  local k = from
  local each = max(1, floor(AT_ONCE / stride)) -- decisions whose values are read at once
  for i = 1, count do
    if merged then m = decode('<I4', list, 2 + 4 * i) end
    if S.compact and stride <= AT_ONCE and (i - 1) % each == 0 then
      vals, base = values(keys, k, min(from + stride * count, k + each * stride) - 1), k - 1
    end
    local total, quota, ok, short = m, nil, true, false
    for j = 1, nch do
      local L = S[j]
      local place, v = k + L.at, nil
      local key = keys[place]
      R[j] = false
      if L.size then
        if L.of then
          v = V[L.of]
        else
          if cur then v = cur[key] end
          if v == nil then
            if vals then
              v = vals[place - base]
            else
              v = call('MGET', key)[1]
            end
          end
        end
        if v then R[j], A[j] = record(L, v) end
      end
      V[j] = v
      G[j], X[j], Y[j], Z[j], U[j] = L.admit(L, R[j], m, key)
      if not G[j] or inherits(L, keys, k, v, R[j]) then
        ok = false
      elseif L.mode == ENFORCE then
        total = min(total, G[j])
      elseif L.mode == QUOTA then
        quota = max(quota or 0, G[j])
      end
      short = short or L.margined and G[j] and G[j] < m
    end
    if short and ok then
      for j = 1, nch do
        local L = S[j]
        if L.margined and G[j] < m then
          local key = keys[k + L.at]
          if not L.tight or shut(L, R[j + 1], R[j], G[j], m, key) then
            if L.c > 0 then rememberDenial(key) end
          elseif not S.simple then
            ok = false -- what the margin admits would have to be charged together with the rest
          end
        end
      end
    end
    if quota then total = min(total, quota) end
    if ok then granted = granted + total end
    for j = 1, nch do
      local L, id = S[j], nil
      if L.ids then
        id, at = sub(list, at, at + 7), at + 8
      end
      if not ok then
        o = o + 1
        out[o] = L.odd or ODD
      else
        if L.cd then
          N[j] = m
        elseif L.mode == SHADOW then
          N[j] = G[j]
        elseif L.mode == ENFORCE then
          N[j] = total
        else
          N[j] = min(total, G[j])
        end
        if L.size then
          o = o + 1
          out[o] = R[j] or L.none
        else
          local text = L.tell(L, keys[k + L.at], G[j], N[j], X[j], m, id)
          out[o + 1], out[o + 2] = encode('<I4', #text), text
          o = o + 2
        end
      end
    end
    if ok then
      for j = 1, nch do
        if S[j].size and S[j].members then
          local key = keys[k + S[j].at]
          local v = write(S, j, key)
          if cur then cur[key] = v end
        end
      end
    end
    k = k + stride
  end
  return granted, k
end

-- leave leaves decisions to the node. It returns the place of the next one's keys.
local function leave(S, from, count, out)
  for _ = 1, count do
    for j = 1, #S do out[#out + 1] = S[j].odd or ODD end
  end
  return from + count * S.stride
end

-- take decides. ARGV: the instant, or '' for the server's clock; then for each run of decisions of one shape the shape
-- and a list: how many decisions; flags; how many equal ones each stands for (flag 1); ids for slots. KEYS: those of
-- all charges in order. Flag 2: a key may come more than once in the run.
--
-- The reply is one string: the instant, how many decisions were admitted, and for each charge its state before the
-- call (or what tell says, after its length), all 255 where it is odd and the decision was not made.
local function take(keys, args)
  begin(args[1])
  local from, granted, out = 1, 0, {''}
  dropped = nil -- by a call that failed
  for r = 2, #args, 2 do
    local S, list = shape(args[r]), args[r + 1]
    local count, flags = decode('<I4B', list)
    local merged, repeats = flags % 2 == 1, flags >= 2
    local g = 0
    if S.till and (now < S.from or now >= S.till) then
      from = leave(S, from, count, out)
    elseif #S == 1 and S.compact and not repeats then
      g = decideOne(S, keys, from, count, list, merged, out)
      from = from + count
    else
      g, from = decideAll(S, keys, from, count, list, merged, repeats, 6 + (merged and 4 * count or 0), out)
    end
    granted = granted + g
  end
  if dropped then forgetDropped() end
  out[1] = encode('<I7I4', now, granted)
  return concat(out)
end

-- read returns the instant, the number of the last denial, and the values of KEYS.
local function read(keys, args)
  begin(args[1])
  local out = {now, denials}
  for i = 1, #keys, AT_ONCE do
    local vals = values(keys, i, #keys)
    for j = 1, #vals do out[#out + 1] = vals[j] end
  end
  return out
end

-- swap writes new values if the old ones are still there, all or none, and returns 1 if they were. ARGV: the instant or
-- ''; what read told as number; then for each key '0' or '1' and the value it must have ('0': none), the new value ('': none, '=': as it is), and
-- when that is fresh ('+': no sooner than the old one; '~': it is already). If it took so long that a new value is fresh
-- by now, others may have come and gone unseen: then nothing is written either.
local function swap(keys, args)
  begin(args[1])
  local read = tonumber(args[2])
  for i = 1, #keys, AT_ONCE do
    local vals = values(keys, i, #keys)
    for j = 1, #vals do
      local at, is = 4 * (i + j - 1) - 1, vals[j]
      if max(denialsBefore, denialOf[keys[i + j - 1]] or 0) > read then return 0 end
      if args[at] == '0' and is or args[at] == '1' and is ~= args[at + 1] then return 0 end
      local value, stop = args[at + 2], args[at + 3]
      if value ~= '' and value ~= '=' and sub(stop, 1, 1) ~= '+' and sub(stop, 1, 1) ~= '~' and tonumber(stop) <= now then return 0 end
    end
  end
  for i = 1, #keys do
    local value = args[4 * i + 1]
    if value == '' then
      call('DEL', keys[i])
    elseif value ~= '=' then
      local stop = args[4 * i + 2]
      if sub(stop, 1, 1) == '+' then
        stop = max(tonumber(stop), 1000 * call('PEXPIRETIME', keys[i]))
      elseif sub(stop, 1, 1) == '~' then
        stop = sub(stop, 2)
      end
      call('SET', keys[i], value, 'PXAT', expiry(tonumber(stop)))
    end
  end
  return 1
end

-- release gives slots back; 1 if they were still held. KEYS: one. ARGV: the instant or '', the time-out, the id.
local function release(keys, args)
  begin(args[1])
  local key, w, id = keys[1], tonumber(args[2]), args[3]
  local v = try('GET', key)
  if type(v) ~= 'string' or #v < HOLD_SIZE then return 0 end
  local newest, used, first, n = decode(HOLD, v)
  if #v ~= HOLD_SIZE + n * HOLDER then return 0 end
  local most = now + w
  local eff = max(now, min(newest, most))
  local kept, held, over = {}, false, true
  used, newest = 0, 0
  for i = first, n - 1 do
    local at = HOLD_SIZE + 1 + i * HOLDER
    local since, units = decode('<I7', v, at), decode('<I4', v, at + 15)
    over = over and min(since, most) + w <= eff
    if over then
      -- its time is up
    elseif sub(v, at + 7, at + 14) == id then
      held = true
    else
      kept[#kept + 1] = sub(v, at, at + HOLDER - 1)
      used, newest = used + units, since
    end
  end
  if not held then return 0 end
  if #kept == 0 then
    call('DEL', key)
  else
    call('SET', key, encode(HOLD, newest, used, 0, #kept) .. concat(kept), 'PXAT', expiry(min(newest, most) + w))
  end
  return 1
end

-- nodes notes that a node lives, or (time-out 0) that it goes, and returns how many do. KEYS: one. ARGV: the instant or
-- '', the time in µs after which a node that was not heard of is gone, the node's name.
local function nodes(keys, args)
  begin(args[1])
  local key, after = keys[1], tonumber(args[2])
  if after > 0 then
    call('ZADD', key, format('%d', now), args[3])
    call('ZREMRANGEBYSCORE', key, '-inf', format('(%d', now - after))
    call('PEXPIRE', key, format('%d', ceil(after / 1000)))
  else
    call('ZREM', key, args[3])
  end
  return call('ZCARD', key)
end

-- Reservations: KEYS are a sorted set of when each id is over, and a hash of its note. What nobody asks for any more goes with the
-- longest window.

-- hold keeps a note; 1 if it did, 0 if the id is taken, -1 if there is no room. ARGV: the instant or '', the id, the note, the time-out
-- in µs, how many may be held.
local function hold(keys, args)
  begin(args[1])
  if call('HEXISTS', keys[2], args[2]) == 1 then return 0 end
  if call('ZCARD', keys[1]) >= tonumber(args[5]) then return -1 end
  call('ZADD', keys[1], format('%d', min(MAXINT, now + tonumber(args[4]))), args[2])
  call('HSET', keys[2], args[2], args[3])
  for i = 1, 2 do call('PEXPIRE', keys[i], format('%d', FOREVER / 1000)) end
  return 1
end

-- handOut returns a note, which is then held no more; false if there is none.
local function handOut(keys, id)
  local note = call('HGET', keys[2], id)
  call('ZREM', keys[1], id)
  if note then call('HDEL', keys[2], id) end
  return note
end

-- claim hands out the note of an id. ARGV: the id.
local function claim(keys, args)
  begin('')
  return handOut(keys, args[1])
end

-- expired hands out notes whose time is over. ARGV: the instant or '', how many at most.
local function expired(keys, args)
  begin(args[1])
  local out = {}
  for _, id in ipairs(call('ZRANGEBYSCORE', keys[1], '-inf', format('%d', now), 'LIMIT', '0', args[2])) do
    local note = handOut(keys, id)
    if note then out[#out + 1] = note end
  end
  return out
end

redis.register_function('NAME_take', take)
redis.register_function('NAME_read', read)
redis.register_function('NAME_swap', swap)
redis.register_function('NAME_release', release)
redis.register_function('NAME_nodes', nodes)
redis.register_function('NAME_hold', hold)
redis.register_function('NAME_claim', claim)
redis.register_function('NAME_expired', expired)
