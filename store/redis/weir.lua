-- The algorithms of package algo, inside Redis. A call decides a batch of requests and writes what
-- they charge. The other fields of a result (remaining, retry_after, reset_after, delay) are worked
-- out by algo itself, in the node that asked, from the states that the reply brings along. So a
-- function here is only the part of its Go counterpart that counts. A differential test compares
-- the two, and each reply carries the number of admissions, by which a node notices a difference.
--
-- All numbers are integers below 2^53, times are µs since the Unix epoch. Where Go divides, floor(x
-- / d) is exact here: for such x and d the quotient is never rounded up to the next integer.
--
-- Rare cases that take long to say are left to the node: it makes the decision with algo's own code
-- and writes it with the function swap. The reply marks such a decision as undecided, and nothing
-- is written for it. These are
--   * a state further ahead of the clock than it could ever be, or of an unknown form;
--   * a change that is rare and complicated (a refund to a window of several buckets, …);
--   * what a soft margin that closes would have to admit (L.marginCloses): Lua grants up to the
--     limit without the margin;
--   * a record of what is lent that was kept for generations of another length;
--   * a call at an instant at which a schedule has another limit in force than the node thought.
--
-- Calls with limits that lend units ahead are decided by lease.lua, which follows this text.
--
-- go is no table: a name with it is a constant of this package in Go, and library.go puts the value
-- in its place. Formats are those of struct.pack, little-endian.

local floor, ceil, min, max, byte, char, find, sub, rep, format, concat
local encode, decode, spread, call, try
local MAXINT, MAXCOUNT = 9007199254740991, 4294967295 -- 2^53 - 1, and what four bytes hold

-- init binds the functions of Redis at the first call: a library is loaded before they exist.
local function init()
  floor, ceil, min, max = math.floor, math.ceil, math.min, math.max
  byte, char, find = string.byte, string.char, string.find
  sub, rep = string.sub, string.rep
  format, concat = string.format, table.concat
  encode, decode, spread, call, try = struct.pack, struct.unpack, unpack, redis.call, redis.pcall
end

local now        -- instant of the call
local virtual    -- whether a test gave it
local lastMs, lastText

-- expiry returns, as text, the first millisecond at which a state may be forgotten that is fresh at
-- an instant.
local function expiry(instant)
  if virtual then return '32503680000000' end
  if instant > MAXINT then instant = MAXINT end
  local rest = instant % 1000
  local ms = (instant - rest) / 1000
  if rest > 0 then ms = ms + 1 end
  if ms ~= lastMs then
    lastMs, lastText = ms, format('%d', ms)
  end
  return lastText
end

-- dropped holds the keys to delete at the end of the call. They cannot be deleted before: while a
-- slot is migrating, a missing key belongs to the other server, and a function that reads it fails.
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

-- muldiv returns floor(x × y / d), or ceil if up is set. x × y may need more than 53 bits; if the
-- quotient does, it is MAXINT.
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

-- counted returns how many of m equal requests, one after the other, a limit admits that has
-- counted used so far.
local function counted(L, used, m)
  local c = L.cost
  if c > 0 then
    local left = L.limit - used
    if m * c <= left then return m end
    return left < c and 0 or floor(left / c)
  elseif c < 0 or used <= L.limit or L.n == 0 and not L.countDenied then
    return m
  end
  return 0
end

-- keepUntil returns the instant at which a bucket is fresh under every limit of its schedule, if it
-- is fresh at stop under the one in force.
local function keepUntil(L, stop)
  if L.slower then return now + max(0, stop - now) * L.slower + L.slack end
  return stop
end

-- Each algorithm is two functions.
--   admit(L, state, m, key) returns how many of m equal requests the limit admits, and up to four
--   values for the second function; nil if the decision is left to the node.
--   * A compact state has a fixed size of a few bytes. It is given to admit (false: there is none).
--     The second function is apply(L, n, pass1 … pass4): it returns the state after n requests
--     were charged (false: fresh), the instant at which that is fresh, and whether it was fresh at
--     the same instant before, and began with the same number. Both are made of two others, which
--     know a state by its two or three numbers: weigh(L, m, a, b, c) is admit (a is nil if there is
--     no state), and charge(L, n, pass1 … pass4) returns the second and third value of apply, and
--     the numbers (false: fresh).
--   * Other states are read from key by the functions themselves. The second function is
--     finish(L, key, g, n, context, m, id): it charges n requests, of which g were admitted (n may
--     be 0), and returns what the node needs to know.

-- fixed_window: the state is the start of the window and its count.

local function fixedIn(L, m, a, b, start, stop, after)
  local used, keep = 0, false
  if a and a >= start then
    used, keep = b, a == start
    if a >= stop then
      if a >= after then return nil end
      start, stop, keep = stop, after, a == stop
    end
  end
  return counted(L, used, m), start, used, stop, keep
end

local function fixedWeigh(L, m, a, b)
  local window = L.window
  local start = now - now % window
  if a == start then return counted(L, b, m), start, b, start + window, true end
  return fixedIn(L, m, a, b, start, start + window, start + 2 * window)
end

local function calendarWeigh(L, m, a, b)
  if now < L.start or now >= L.stop then return nil end
  return fixedIn(L, m, a, b, L.start, L.stop, L.nextStop)
end

local function firstWeigh(L, m, a, b)
  local start, used, keep = now, 0, false
  if a and now < a + L.window then
    if a > now + L.window then return nil end
    start, used, keep = a, b, true
  end
  return counted(L, used, m), start, used, start + L.window, keep
end

local function fixedCharge(L, n, start, used, stop, keep)
  used = used + n * L.cost
  if used <= 0 then return nil, nil, false end
  if used > MAXINT then used = MAXINT end
  return stop, keep, start, used
end

-- sliding_window of one bucket: the state is the start of the current sub-window, its count, and
-- the count of the sub-window before it.

-- previousShare returns the part of a count that the window still covers.
local function previousShare(L, count, rest)
  if count == 0 then return 0 end
  return muldiv(count, rest, L.subUnits)
end

local function windowWeigh(L, m, a, c, p)
  local elapsed = now % L.sub
  local start, cur, prev, keep = now - elapsed, 0, 0, false
  if a then
    local d = start - a
    if d == 0 then
      cur, prev, keep = c, p, c > 0
    elseif d > L.sub then
      -- all of it is over
    elseif d > 0 then
      prev = c
    else
      if a > start + L.sub then return nil end
      start, elapsed, cur, prev, keep = a, 0, c, p, c > 0
    end
  end
  local used = cur
  if prev > 0 then used = cur + previousShare(L, prev, L.subUnits - floor(elapsed / L.unit)) end
  return counted(L, used, m), start, cur, prev, keep
end

local function windowCharge(L, n, start, cur, prev, keep)
  local by = n * L.cost
  if by >= 0 then
    cur = cur + by
    if cur > MAXCOUNT then cur = MAXCOUNT end
  else
    local back = min(-by, cur)
    cur, prev, keep = cur - back, max(0, prev + by + back), false
    if cur + prev == 0 then return nil, nil, false end
  end
  return start + (cur > 0 and 2 or 1) * L.sub, keep, start, cur, prev
end

-- token_bucket and leaky_bucket: the state is a unit of time, the level at it, and the scale of
-- both (algo/bucket.go).

local units = {[0] = 1, 1000, 1000000, 60000000}

-- rescale converts a state that was kept under another scale.
local function rescale(L, a, b, tag)
  local unit = units[tag % 4]
  local w, n = max(1, floor(L.window / unit)), floor(tag / 4)
  local x, y = w, n
  while y ~= 0 do x, y = y, x % y end
  a = ceil(min(a, floor(MAXINT / unit)) * unit / L.unit)
  return a, min(muldiv(b, L.token, w / x, true), L.capLevel)
end

-- bucketFreshAt returns the instant at which the bucket is empty.
local function bucketFreshAt(L, t, level)
  local rate = L.rate
  if rate == 0 then return now + go.maxWindow end
  local rest = level % rate
  t = t + (level - rest) / rate
  if rest > 0 then t = t + 1 end
  if L.slower then return keepUntil(L, t * L.unit) end
  return t * L.unit
end

local function bucketWeigh(L, m, a, b, tag)
  local t, level, c, other = (now - now % L.unit) / L.unit, 0, L.cost, nil
  if a then
    if tag ~= L.scale then
      if tag == go.intervalScale then return nil end
      -- A limit that drains nothing keeps the old expiry: it may stand still for a time, and the
      -- key may never be asked for again.
      if L.rate > 0 then other = encode(go.bucketFormat, a, b, tag) end
      a, b = rescale(L, a, b, tag)
    end
    if b > L.capLevel then b = L.capLevel end
    if a > t then
      if a > t + L.aheadUnits then return nil end
      t, level = a, b
    elseif t - a < L.fullUnits then
      level = b - (t - a) * L.rate
      if level < 0 then level = 0 end
    end
  end
  local g = m
  if c > 0 then
    if c > L.limit or L.n == 0 then
      g = 0
    elseif L.maxDelay >= 0 then
      local rest, each = level, c * L.token
      g = 0
      while g < m and rest + each <= L.limitLevel
        and (rest == 0 or min((t + ceil(rest / L.rate)) * L.unit - now, MAXINT) <= L.maxDelay) do
        g, rest = g + 1, rest + each
      end
    else
      local left, each = L.limitLevel - level, c * L.token
      if m * each > left then g = left < each and 0 or floor(left / each) end
    end
  elseif c == 0 then
    if level > L.limitLevel then g = 0 end
  elseif L.lastEnds ~= 0
    and not (level > 0 and L.rate > 0 and (t + ceil(level / L.rate)) * L.unit == L.lastEnds) then
    g = 0
  end
  return g, t, level, other
end

local function bucketCharge(L, n, t, level)
  level = level + n * L.cost * L.token
  if level <= 0 then return nil, nil, false end
  return bucketFreshAt(L, t, level), false, t, level, L.scale
end

-- token_bucket refilled at intervals: the state is the last boundary, the tokens that are missing,
-- and go.intervalScale.

local function intervalWeigh(L, m, a, b, tag)
  local anchor, missing, c = now, 0, L.cost
  if a then
    if tag ~= go.intervalScale or a > now + L.aheadUnits then return nil end
    anchor, missing = a, min(b, L.cap)
    if a <= now then
      anchor = now - (now - a) % L.window
      missing = max(0, missing - (anchor - a) / L.window * L.n)
    end
    if missing == 0 then anchor = now end
  end
  local g = m
  if c > 0 then
    g = (c > L.limit or L.n == 0) and 0 or max(0, min(m, floor((L.limit - missing) / c)))
  elseif c == 0 and missing > L.limit then
    g = 0
  end
  return g, anchor, missing
end

local function intervalCharge(L, n, anchor, missing)
  missing = missing + n * L.cost
  if missing <= 0 then return nil, nil, false end
  local full = now + go.maxWindow
  if L.n > 0 then full = keepUntil(L, anchor + ceil(missing / L.n) * L.window) end
  return full, false, anchor, missing, go.intervalScale
end

-- admit and apply of all compact states.

local function compactAdmit(L, raw, m)
  if not raw then return L.weigh(L, m) end
  if #raw ~= L.size then return nil end
  return L.weigh(L, m, decode(L.format, raw))
end

local function compactApply(L, n, x, y, z, u)
  local stop, keep, a, b, c = L.charge(L, n, x, y, z, u)
  return a and encode(L.format, a, b, c), stop, keep
end

-- z is the state of a bucket if that was kept under another scale: it does not change without a
-- charge, but under this limit it is fresh, and expires, at another time.
local function bucketApply(L, n, x, y, z)
  if n == 0 then return z, bucketFreshAt(L, x, y) end
  return compactApply(L, n, x, y)
end

-- sliding_window of several buckets: a head (the start of the current sub-window, the sum of all
-- counters, the current counter, the oldest one, and the number of buckets K), then the K older
-- counters, newest first. A decision in a sub-window that has been charged reads and writes the
-- head alone.

-- older returns the j-th older counter of a state.
local function older(v, j) return (decode('<I4', v, go.windowsHead + 4 * j - 3)) end

local function windowsAdmit(L, raw, m, key)
  local k, elapsed = L.buckets, now % L.sub
  local s = {start = now - elapsed, whole = 0, cut = 0, cur = 0, d = k + 1}
  local head = try('GETRANGE', key, '0', '22')
  if type(head) ~= 'string' then return nil end
  if #head > 0 then
    if #head ~= go.windowsHead or L.cost < 0 then return nil end
    local a, sum, cur, cut, buckets = decode(go.windowsHeadFormat, head)
    if buckets ~= k or a > s.start + L.window then return nil end
    if a >= s.start then
      if a > s.start then s.start, elapsed = a, 0 end
      s.d, s.cur, s.cut, s.whole, s.head = 0, cur, cut, sum - cut, head
    else
      local v = call('GET', key)
      if #v ~= go.windowsHead + 4 * k then return nil end
      local d = min((s.start - a) / L.sub, k + 1)
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
  return counted(L, s.whole + previousShare(L, s.cut, L.subUnits - floor(elapsed / L.unit)), m), s
end

local function windowsFinish(L, key, g, n, s, m)
  local k = L.buckets
  local before = s.all
  if s.head then
    before = s.head
    if n < m or g < m or L.cost <= 0 then before = call('GET', key) end
  end
  if n > 0 and L.cost > 0 then
    local add = min(n * L.cost, MAXCOUNT - s.cur)
    local head = encode(go.windowsHeadFormat, s.start, s.whole + s.cut + add, s.cur + add, s.cut, k)
    local stop = expiry(s.start + (k + 1) * L.sub)
    if s.head then
      call('SETRANGE', key, '0', head)
      if s.cur == 0 then call('PEXPIREAT', key, stop) end
    else
      local rest
      if s.d > k then
        rest = rep('\0', 4 * k)
      else
        rest = rep('\0', 4 * (s.d - 1)) .. encode('<I4', s.last)
          .. sub(s.all, go.windowsHead + 1, go.windowsHead + 4 * (k - s.d))
      end
      call('SET', key, head .. rest, 'PXAT', stop)
    end
  end
  return before or ''
end

-- For a log and for slots the reply carries a tally in place of the state: the units used before
-- and after, the newest time, and the time of the entry whose end would let the first denied
-- request pass (0 if none was denied). Where a denial depends on more than that (the margin may be
-- open, or another limit may be in force by then), the reply carries the whole state, of up to
-- WHOLE entries.
local WHOLE = 2000

local function tally(before, after, newest, pivot)
  return encode(go.tallyFormat, before, after, newest, pivot)
end

-- sliding_log: a head (the newest time, the place of the oldest unit in the ring, the number of
-- units, and the size of the ring), then the ring of times, each of entrySize bytes, modulo 2^40 or
-- 2^48.

-- entries returns the bytes of the units i to j, which must not run over the ring's end.
local function entries(L, key, s, i, j)
  local from = go.logHead + (s.tail + i) % s.size * L.entrySize
  return call('GETRANGE', key, from, from + (j - i + 1) * L.entrySize - 1)
end

-- timeAt reads the time of a unit in v. It is at most the newest one, from which its upper bits
-- come.
local function timeAt(L, s, v, at)
  local t = decode(L.entryFormat, v, at)
  return s.ref - (s.ref - t) % L.entryModulus
end

local function unitAt(L, key, s, i) return timeAt(L, s, entries(L, key, s, i, i), 1) end

-- dead returns how many units are no later than t.
local function dead(L, key, s, t)
  if s.n == 0 then return 0 end
  if s.ref <= t then return s.n end
  local some = min(8, s.n, s.size - s.tail)
  local v = entries(L, key, s, 0, some - 1)
  for i = 0, some - 1 do
    if timeAt(L, s, v, 1 + i * L.entrySize) > t then return i end
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

-- logPivot returns the time of the entry whose end lets a request pass that is denied after some
-- units were added.
local function logPivot(L, key, s, added)
  local i = s.live + added + L.cost - L.cap - 1
  return i < s.live and unitAt(L, key, s, s.dead + i) or s.eff
end

local function logAdmit(L, raw, m, key)
  local s = {n = 0, size = 0, tail = 0, ref = 0, dead = 0, eff = now}
  local head = try('GETRANGE', key, '0', '18')
  if type(head) ~= 'string' then return nil end
  if #head > 0 then
    if #head ~= go.logHead then return nil end
    s.ref, s.tail, s.n, s.size = decode(go.logHeadFormat, head)
    if s.ref > now + L.window or s.n == 0 or s.n > s.size or s.tail >= s.size
      or call('STRLEN', key) ~= go.logHead + s.size * L.entrySize then
      return nil
    end
    s.eff = max(now, s.ref)
    s.dead = dead(L, key, s, s.eff - L.window)
  end
  s.live = s.n - s.dead
  local g = counted(L, s.live, m)
  local needed = g < m and L.marginCloses
  if g < m and not needed and L.till and L.cost > 0 then
    local added = L.countDenied and not L.room and min(L.cost, max(L.cap + 1, s.live)) or g * L.cost
    needed = L.cost > L.cap or logPivot(L, key, s, added) + L.window >= L.till
  end
  if needed then
    if s.n > WHOLE then return nil end
    s.whole = call('GET', key) or ''
  end
  return g, s
end

-- logAppend adds units at s.eff. Denied requests that are counted push the oldest units out, see
-- algo/log.go. It returns how many units were pushed out, and how many there are.
local function logAppend(L, key, s, units)
  local keep = max(L.cap + (L.countDenied and 1 or 0), s.live)
  local add = min(units, keep)
  local gone = s.dead + max(0, s.live + add - keep)
  local kept, size = s.n - gone, s.size
  local tail, value = size > 0 and (s.tail + gone) % size or 0, nil
  local entry = encode(L.entryFormat, s.eff % L.entryModulus)
  local need = kept + add
  local stop = expiry(s.eff + L.window)
  if need > size then
    size = min(max(need, 2 * size, 4), keep)
  elseif size > 2 * keep and size > 8 then
    size = max(need, keep)
  end
  if size ~= s.size then
    local ring = ''
    if kept > 0 then
      local all = call('GET', key)
      local from = go.logHead + 1 + tail * L.entrySize
      local first = min(kept, s.size - tail)
      ring = sub(all, from, from + first * L.entrySize - 1)
        .. sub(all, go.logHead + 1, go.logHead + (kept - first) * L.entrySize)
    end
    value = encode(go.logHeadFormat, s.eff, 0, need, size) .. ring .. rep(entry, add)
      .. rep('\0', (size - need) * L.entrySize)
    call('SET', key, value, 'PXAT', stop)
    return gone - s.dead, need
  end
  local p = (tail + kept) % size
  local first = min(add, size - p)
  call('SETRANGE', key, go.logHead + p * L.entrySize, rep(entry, first))
  if add > first then call('SETRANGE', key, go.logHead, rep(entry, add - first)) end
  call('SETRANGE', key, '0', encode(go.logHeadFormat, s.eff, tail, need, size))
  call('PEXPIREAT', key, stop)
  return gone - s.dead, need
end

local function logFinish(L, key, g, n, s, m)
  local c, after, newest, pivot = L.cost, s.live, s.ref, 0
  local denied = c > 0 and g < m and n >= g and c <= L.cap and not s.whole -- by this limit
  if n > 0 and c > 0 then
    local keep = max(L.cap + (L.countDenied and 1 or 0), s.live)
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
        local tail = (s.tail + s.dead) % s.size
        call('SETRANGE', key, '0', encode(go.logHeadFormat, newest, tail, after, s.size))
        call('PEXPIREAT', key, expiry(newest + L.window))
      end
    end
  end
  return s.whole or tally(s.live, after, newest, pivot)
end

-- concurrency: a head (the newest time, the slots held, the number of holders at the front that
-- have timed out, and the number of holders in all), then the holders in order of admission: time,
-- id, slots.

-- holder reads the i-th holder of v, from 0; v has no head.
local function holder(v, i)
  local at = i * go.holderSize
  local since, units = decode('<I7', v, 1 + at), decode('<I4', v, 16 + at)
  return since, units
end

-- eachHolder calls f(since, units) for each holder from s.first on, until f returns true.
local function eachHolder(key, s, f)
  local i = s.first
  while i < s.n do
    local some = min(16, s.n - i)
    local from = go.slotsHead + i * go.holderSize
    local v = call('GETRANGE', key, from, from + some * go.holderSize - 1)
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
    if #head ~= go.slotsHead then return nil end
    s.newest, s.used, s.first, s.n = decode(go.slotsHeadFormat, head)
    if s.newest > now + L.window or s.first >= s.n
      or call('STRLEN', key) ~= go.slotsHead + s.n * go.holderSize then
      return nil
    end
    s.eff = max(now, s.newest)
    eachHolder(key, s, function(since, units)
      if since + L.window > s.eff then return true end
      s.used, s.first = s.used - units, s.first + 1
    end)
  end
  local g, c = counted(L, s.used, m), L.cost
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
    if L.till and (c > L.cap or s.pivot + L.window >= L.till) then
      if s.n > WHOLE then return nil end
      s.whole = call('GET', key) or ''
    end
  end
  return g, s
end

local function slotsFinish(L, key, g, n, s, m, id)
  if s.whole then return s.whole end
  local c, after, newest = L.cost, s.used, s.newest
  if n > 0 and c > 0 then
    local entry = encode('<I7', s.eff) .. id .. encode('<I4', c)
    local stop = expiry(s.eff + L.window)
    after, newest = s.used + c, s.eff
    if s.used == 0 or 2 * s.first >= s.n then
      local kept = ''
      if s.used > 0 then
        kept = call('GETRANGE', key, go.slotsHead + s.first * go.holderSize, '-1')
      end
      local head = encode(go.slotsHeadFormat, newest, after, 0, #kept / go.holderSize + 1)
      call('SET', key, head .. kept .. entry, 'PXAT', stop)
    else
      call('SETRANGE', key, go.slotsHead + s.n * go.holderSize, entry)
      call('SETRANGE', key, '0', encode(go.slotsHeadFormat, newest, after, s.first, s.n + 1))
      call('PEXPIREAT', key, stop)
    end
  end
  return tally(s.used, after, newest, s.pivot)
end

-- Two kinds of operands take part in a call without a decision of their own: a limit that its
-- schedule puts out of force, which has no key, and the state of a soft margin that closes, which
-- the reply carries for the node.

local function offAdmit(L, raw, m) return m end

local function offFinish() return '' end

local function marginAdmit(L, raw, m)
  if raw then
    if #raw ~= go.countSize then return nil end
    local _, reopens = decode(go.countFormat, raw)
    if L.owner.marginCloses and reopens - now > L.owner.marginAhead then return nil end
  end
  return m
end

-- The record of what is lent has no decision of its own either: the operand after it reads it.
local function recordAdmit(L, raw, m) return m end

-- By the kinds that codec.go numbers.
--   size     bytes of a compact state, and format, of its numbers
--   numbers  names for the six numbers of the kind, see shape
--   mends    a decision that charges nothing may rewrite the state
--   ids      its requests have ids
--   first    a window begins with a request
local algorithms

local function initAlgorithms()
  local window = {'sub', 'subUnits', 'buckets'} -- the sub-window in µs and in units, K
  -- rate: levels drained in a unit; token: levels of a token; capLevel: levels of cap; fullUnits:
  -- units in which capLevel drains; aheadUnits: how far ahead of the clock a state may lie, in
  -- units (µs for refill at intervals); scale: of the states that it writes
  local bucket = {'rate', 'token', 'capLevel', 'fullUnits', 'aheadUnits', 'scale'}
  algorithms = {
    [go.kindFixed] = {weigh = fixedWeigh, charge = fixedCharge, format = go.countFormat,
      size = go.countSize},
    [go.kindFirst] = {weigh = firstWeigh, charge = fixedCharge, format = go.countFormat,
      size = go.countSize, first = true},
    -- the window that holds the instant of the call, in µs, and the end of the next one
    [go.kindCalendar] = {weigh = calendarWeigh, charge = fixedCharge, format = go.countFormat,
      size = go.countSize, numbers = {'start', 'stop', 'nextStop'}},
    [go.kindWindow] = {weigh = windowWeigh, charge = windowCharge, format = go.windowFormat,
      size = go.windowSize, numbers = window},
    [go.kindBucket] = {weigh = bucketWeigh, charge = bucketCharge, format = go.bucketFormat,
      size = go.bucketSize, numbers = bucket, apply = bucketApply, mends = true},
    [go.kindInterval] = {weigh = intervalWeigh, charge = intervalCharge, format = go.bucketFormat,
      size = go.bucketSize, numbers = bucket},
    [go.kindWindows] = {admit = windowsAdmit, finish = windowsFinish, numbers = window},
    -- bytes of a unit
    [go.kindLog] = {admit = logAdmit, finish = logFinish, numbers = {'entrySize'}},
    [go.kindSlots] = {admit = slotsAdmit, finish = slotsFinish, ids = true},
    [go.kindOff] = {admit = offAdmit, finish = offFinish, off = true},
    [go.kindMargin] = {admit = marginAdmit, size = go.countSize, margin = true},
    [go.kindRecord] = {admit = recordAdmit, size = go.recordSize, record = true},
  }
  for _, a in pairs(algorithms) do
    if a.weigh then a.admit, a.apply = compactAdmit, a.apply or compactApply end
    if a.size then a.fresh, a.undecided = rep('\0', a.size), rep('\255', a.size) end
  end
end

-- A shape is what all decisions of a run have in common: their operands, and for each the numbers
-- of its limit. An operand, L below, is one state: that of a charge, that of the charge's soft
-- margin, which follows it, or the record of what is lent, which comes before it. operand.go writes
-- it; these are its fields, in this order:
--   kind         of algorithm, by which it has admit, apply and so on
--   mode         enforce, shadow or quota
--   flags        go.flagCounts: denied requests are counted (countDenied). go.flagTimed: the
--                fields of a schedule follow. go.flagMarginCloses: those of a soft margin follow.
--                go.flagLends: those of a limit that lends follow. go.flagIdle: the limit is not in
--                force, but what ended of its record and what is told of it is charged.
--                go.flagRoom: the cost must find room, and is not charged (room)
--   joinedTo     the operand in whose value this one's state lies too; 0: it has a value of its own
--   older        number of keys of older identities of its counter that follow its own key; plus
--                go.olderInSameValue if such a state may lie in the same value (olderSame)
--   tag          of its record in a value
--   cost         of one request
--   maxDelay     leaky_bucket: the longest delay, below 0: any; else -1
--   lastEnds     leaky_bucket: the condition of a refund (algo.Ask); else 0
--   cap, n       the capacity with the soft margin, and N
--   window       in µs; concurrency: the time-out
--   unit         of a bucket's time, in µs
--   six numbers  named by the kind, see algorithms; 0 where it has fewer
-- Of a schedule:
--   from, till   instants between which these numbers are in force
--   slower, slack      see keepUntil; slower 0: nothing
-- Of a soft margin that closes:
--   limit, limitLevel  what may be used without the margin, and that as a level; in an operand
--                      without these fields cap and capLevel
--   marginOpen   for how long it stays open, in µs
--   marginAhead  how far ahead its state may lie, in µs (algo/margin.go)
-- Of a limit that lends:
--   hard         what may be used without a soft margin: what is lent stays within it
--   lendable     units that may be out at a time
--   leaseFor     length of a generation, in µs
--   leaseLife    for how long a charge can count, in µs
-- shape adds: head, what begins the state's record, whole, the format of both, and rest, that of
-- all numbers but the first; entryFormat and entryModulus, of a log's times; at and olderAt, the
-- places of its key and of the keys of older identities among those of a decision, from 0; members,
-- in an operand with a value of its own: itself and those joined to it; hasMargin, the operand
-- after it is its margin; owner, of a margin: its operand; S.leased, an operand lends; S.swapped,
-- an operand lends, or has a schedule or a margin, see noteChange.
--
-- The states of operands that are joined lie in one value, each as a record of a tag (4 bytes), its
-- length (1 byte) and the state. The value of an operand that is not compact is its state, without
-- a tag.
local shapes, shapeCount = {}, 0

local function has(flags, flag) return flags % (2 * flag) >= flag end

local function shape(text)
  local S = shapes[text]
  if S then return S end
  S = {}
  local at, stride, compact, charges, simple, counts = 1, 0, true, 0, true, false
  while at <= #text do
    local L, p = {}, {}
    local kind, flags, joinedTo
    kind, L.mode, flags, joinedTo, L.older, L.tag, L.cost, L.maxDelay, L.lastEnds, L.cap, L.n,
      L.window, L.unit, p[1], p[2], p[3], p[4], p[5], p[6], at = decode(go.operandFormat, text, at)
    for name, value in pairs(algorithms[kind]) do L[name] = value end
    for i, name in ipairs(L.numbers or {}) do L[name] = p[i] end
    L.countDenied, L.limit, L.limitLevel = has(flags, go.flagCounts), L.cap, L.capLevel
    L.room = has(flags, go.flagRoom)
    if has(flags, go.flagTimed) then
      L.from, L.till, L.slower, L.slack, at = decode(go.scheduleFormat, text, at)
      S.from, S.till = max(S.from or 0, L.from), min(S.till or MAXINT, L.till)
      S.swapped = true
      if L.slower == 0 then L.slower = nil end
    end
    if has(flags, go.flagMarginCloses) then
      L.marginCloses = true
      L.limit, L.limitLevel, L.marginOpen, L.marginAhead, at = decode(go.marginFormat, text, at)
    end
    if has(flags, go.flagLends) then
      L.lends, S.leased, S.swapped, L.idle = true, true, true, has(flags, go.flagIdle)
      L.hard, L.lendable, L.leaseFor, L.leaseLife, at = decode(go.lendFormat, text, at)
    end
    if L.size then L.head = L.tag .. char(L.size) end
    if L.format then L.whole, L.rest = '<c5' .. sub(L.format, 2), '<' .. sub(L.format, 4) end
    if L.entrySize == 6 then
      L.entryFormat, L.entryModulus = '<I6', 2 ^ 48
    elseif L.entrySize then
      L.entryFormat, L.entryModulus = '<I5', 2 ^ 40
    end
    L.olderSame = L.older >= go.olderInSameValue
    L.older = L.older % go.olderInSameValue
    S[#S + 1] = L
    if L.margin then L.owner, S[#S - 1].hasMargin, S.swapped = S[#S - 1], true, true end
    if L.off then
      L.at, L.olderAt = 0, stride
    elseif joinedTo > 0 then
      L.joinedTo, L.at, L.olderAt = joinedTo, S[joinedTo].at, stride
      local members = S[joinedTo].members
      members[#members + 1] = #S
    else
      L.at, L.olderAt, L.members = stride, stride + 1, {#S}
      stride = stride + 1
    end
    stride = stride + L.older
    compact = compact and (L.off or L.size ~= nil and L.older == 0)
    if not L.off and not L.margin and not L.record then
      charges = charges + 1
      simple, counts = simple and L.mode == go.modeEnforce, counts or L.countDenied
    end
  end
  -- compact: one value of KEYS is all that each operand needs. stride: keys of a decision
  S.compact, S.stride = compact and stride > 0, max(1, stride)
  -- simple: a decision charges nothing if an operand whose margin closes does not admit it
  S.simple = not counts and (simple or charges == 1)
  if #text < 2048 then
    if shapeCount >= 1024 then shapes, shapeCount = {}, 0 end
    shapes[text], shapeCount = S, shapeCount + 1
  end
  return S
end

-- record returns the state with the operand's tag in a value, and where it begins; false if there
-- is none.
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

-- The node makes some decisions itself, and writes them with swap. Comparing values is not enough
-- for that, because between read and swap
--   * take may refuse the same key for good, when the margin closes or another limit comes into
--     force in that moment: a later request would be admitted before an earlier one;
--   * a key that was missing may have been written, and have expired again: what it counted would
--     be lost.
-- Both are numbered, for the limits of which the node decides in the ordinary course of things
-- (S.swapped). read returns the current number, and swap fails if the key got a later one.
local noteChange, changedSince, lastChange -- in memory.lua or kept.lua

-- before returns, as text, how many bytes come before a place.
local texts = {}

local function before(at)
  local text = texts[at]
  if not text then
    text = format('%d', at - 1)
    texts[at] = text
  end
  return text
end

-- rewrite writes a value with new states in it, and returns it. bodies[j] is the state of the
-- operand j (nil: unchanged, false: fresh), stops[j] the instant at which it is fresh. Records of
-- other states stay, up to go.maxRecords of them: of windows that a rule no longer has, or has not
-- for this request.
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
    if not left[sub(v, at, at + 3)] and #others < go.maxRecords then
      others[#others + 1] = sub(v, at, at + 4 + size)
    end
    at = at + 5 + size
  end
  if #own + #others == 0 then
    if v then drop(key) end
    return false
  end
  if #others > 0 then stop = max(stop, 1000 * call('PEXPIRETIME', key)) end
  local value = concat(own) .. concat(others)
  call('SET', key, value, 'PXAT', expiry(stop))
  if S.swapped and not v then noteChange(key) end
  return value
end

-- memory names the memory in which replies are kept, see once; 0 before the first call.
local memory = 0

local function clock()
  local t = call('TIME')
  return t[1] * 1000000 + t[2]
end

-- Calls whose answer is lost. What must happen once is called through once: the node sends such a
-- call again, over another connection, and whichever of the two comes first is made. The other one
-- gets the reply of the first, or an error if its connection is gone anyway.
--
-- A node has lanes. In each it has one call under way at a time, so that the last number and the
-- last reply of a lane are all there is to keep. The memory in which they are kept has a name: it
-- is another one where what was done before is not known. So a call that may have been sent to
-- another memory is not made.
local NONE = {} -- in place of a reply: the call failed, or it was too long ago

-- laneOf returns the last number of a lane, and the reply to it. answer makes a call, and keeps its
-- number and its reply. nameMemory sets memory.
local laneOf, answer, nameMemory

MEMORY

-- begin prepares a call. text is its instant, or '' for the server's clock.
local function begin(text)
  if not call then
    init()
    initAlgorithms()
    nameMemory()
  end
  virtual = text ~= ''
  if virtual then
    now = tonumber(text)
  else
    now = clock()
  end
end

-- known returns true and the reply for a call that comes again, or too late; false if it is to be
-- made.
local function known(last, reply, number, of, again)
  if again == 1 and last == number then
    if reply ~= NONE then return true, reply end
  elseif again == 1 and last < number and of == memory then
    -- A lane that has made nothing here was forgotten, unless this is its first call: the node
    -- sends all calls of a lane to one memory, and each after the answer to the one before.
    if last ~= 0 or number == 1 then return false end
  end
  return true, redis.error_reply(go.lostReply)
end

-- once returns a function that makes calls of f. Its first argument is the call's identity
-- (go.identityFormat: the lane, the number, the name of the memory of which the node heard last,
-- and 1 if the call may have been sent before), followed by the instant or ''.
local function once(f)
  return function(keys, args)
    local text = args[1]
    begin(#text > go.identitySize and string.sub(text, go.identitySize + 1) or '')
    local lane, number, of, again = decode(go.identityFormat, text)
    local last, reply = laneOf(lane)
    if again == 1 or number <= last then
      local is, before = known(last, reply, number, of, again)
      if is then return before end
    end
    return answer(lane, number, f, keys, args)
  end
end

local UNDECIDED = '\255\255\255\255' -- in place of the length of a state
local BATCH = 500 -- values that one MGET reads; Lua's stack bounds it

-- readValues reads up to BATCH values from the key i on.
local function readValues(keys, i, last)
  return call('MGET', spread(keys, i, min(last, i + BATCH - 1)))
end

-- decideOne makes count decisions of one operand with a compact state, by far the most frequent
-- ones, with nothing but what these need. It returns how many requests were admitted.
local function decideOne(S, keys, from, count, list, merged, out)
  local L = S[1]
  local weigh, charge, fresh, undecided, head = L.weigh, L.charge, L.fresh, L.undecided, L.head
  local countDenied, c, shadow = L.countDenied, L.cost, L.mode == go.modeShadow
  local size, whole, rest, form = 5 + L.size, L.whole, L.rest, L.format
  local granted, o, m, vals, base = 0, #out, 1, nil, 0
  for i = 1, count do
    if (i - 1) % BATCH == 0 then
      vals, base = readValues(keys, from + i - 1, from + count - 1), i - 1
    end
    local v, raw, at = vals[i - base], false, '12' -- of the second number
    if merged then m = decode('<I4', list, 2 + 4 * i) end
    local g, x, y, z, u
    if not v then
      g, x, y, z, u = weigh(L, m)
    else
      local h, p, q, r
      if #v >= size then h, p, q, r = decode(whole, v) end
      if h == head then
        raw = sub(v, 6, size)
        g, x, y, z, u = weigh(L, m, p, q, r)
      else
        raw, at = record(L, v)
        if raw or not L.olderSame then g, x, y, z, u = L.admit(L, raw, m) end
        at = raw and before(at + 7)
      end
    end
    if g then
      local n, key = countDenied and m or g, keys[from + i - 1]
      if c == 0 or L.room or c < 0 and not raw then n = 0 end
      if n > 0 then
        local stop, keep, p, q, r = charge(L, n, x, y, z, u)
        if keep and raw then
          call('SETRANGE', key, at, encode(rest, q, r))
        elseif p and (not v or raw and #v == size) then
          call('SET', key, encode(whole, head, p, q, r), 'PXAT', expiry(stop))
        else
          rewrite(S, 1, key, v, {p and encode(form, p, q, r)}, {stop})
        end
      elseif z and L.mends then
        local body, stop = L.apply(L, 0, x, y, z)
        rewrite(S, 1, key, v, {body}, {stop})
      end
      granted = granted + (shadow and m or g)
      out[o + i] = raw or fresh
    else
      out[o + i] = undecided
    end
  end
  return granted
end

-- inherits reports whether a missing state is kept under an older identity of its counter, from
-- which the node must carry it over.
local function inherits(L, keys, k, v, raw)
  if L.olderSame and v and not raw then return true end
  if L.older == 0 or raw or not L.size and call('EXISTS', keys[k + L.at]) == 1 then return false end
  return call('EXISTS', spread(keys, k + L.olderAt, k + L.olderAt + L.older - 1)) > 0
end

-- marginSpent reports whether a soft margin admits nothing more, since it is closed or used up. raw
-- is the state of the margin, own that of its operand, and g what the operand admits without the
-- margin.
local function marginSpent(L, raw, own, g, m, key)
  if L.countDenied then return false end
  if raw then
    local first, reopens = decode(go.countFormat, raw)
    if reopens > now and reopens - now <= L.marginAhead and now >= first + L.marginOpen then
      return true
    end
  end
  local most, level = L.limit, L.limitLevel
  L.limit, L.limitLevel = L.cap, L.capLevel
  local all = L.admit(L, own, m, key)
  L.limit, L.limitLevel = most, level
  return all == g
end

-- What is known of each operand of the decision under way, by its number.
local admitted = {} -- how many requests it admits; nil: left to the node
local pass1, pass2, pass3, pass4 = {}, {}, {}, {} -- what admit hands to apply or finish
local values = {}   -- its value in Redis; false: none
local states = {}   -- its state in that; false: none
local offsets = {}  -- where the state begins in the value
local charged = {}  -- how many requests are charged to it

-- write charges the operand i and those joined to it, and returns their new value.
local function write(S, i, key)
  local bodies, stops, v, whole, members = nil, {}, values[i], false, S[i].members
  for k = 1, #members do
    local j = members[k]
    local L, n = S[j], charged[j]
    if L.cost == 0 or L.cost < 0 and not states[j] then n = 0 end
    if n > 0 or L.mends and pass3[j] then
      local body, stop, keep = L.apply(L, n, pass1[j], pass2[j], pass3[j], pass4[j])
      bodies = bodies or {}
      bodies[j], stops[j] = body, stop
      whole = whole or not (keep and states[j])
    end
  end
  if not bodies then return v end
  if whole then return rewrite(S, i, key, v, bodies, stops) end
  for k = 1, #members do
    local j = members[k]
    if bodies[j] then
      call('SETRANGE', key, before(offsets[j]), bodies[j])
      v = sub(v, 1, offsets[j] - 1) .. bodies[j] .. sub(v, offsets[j] + #bodies[j])
    end
  end
  return v
end

-- withinMargins reports whether a decision can be made here although an operand with a soft margin
-- that closes does not admit all of its m requests. k is the place of its keys.
local function withinMargins(S, keys, k, m)
  local ok = true
  for j = 1, #S do
    local L = S[j]
    if L.hasMargin and admitted[j] < m then
      local key = keys[k + L.at]
      if not L.marginCloses
        or marginSpent(L, states[j + 1], states[j], admitted[j], m, key) then
        if L.cost > 0 then noteChange(key) end
      elseif not S.simple then
        ok = false -- what the margin admits must be charged together with the rest
      end
    end
  end
  return ok
end

-- mayBeLent reports whether something may be lent of the operand L of a shape without records, or
-- what is lent may be kept under an older identity. v is its value, and raw its state.
local function mayBeLent(L, v, raw)
  return v and find(v, L.lent, 1, true) or L.carries and not raw
end

local decideLeased -- in lease.lua

-- decideAll makes count decisions of any number of operands, all or nothing: the rule of
-- store.Verdict. It returns how many requests were admitted, and the place of the next decision's
-- keys. S may be what bareOf returned; whole is then the shape with the records.
local function decideAll(S, keys, from, count, list, merged, repeats, at, out, whole)
  local nch, stride, granted, o, m = #S, S.stride, 0, #out, 1
  local vals, base, cur = nil, 0, repeats and {} or nil
  local k = from
  local each = max(1, floor(BATCH / stride)) -- decisions whose values one MGET reads
  for i = 1, count do
    if merged then m = decode('<I4', list, 2 + 4 * i) end
    if S.compact and stride <= BATCH and (i - 1) % each == 0 then
      vals, base = readValues(keys, k, min(from + stride * count, k + each * stride) - 1), k - 1
    end
    local total, quota, ok, beyond, lent = m, nil, true, false, false
    for j = 1, nch do
      local L = S[j]
      local place, v = k + L.at, nil
      local key = keys[place]
      states[j] = false
      if L.size then
        if L.joinedTo then
          v = values[L.joinedTo]
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
        if v then states[j], offsets[j] = record(L, v) end
      end
      values[j] = v
      if whole and L.lent and mayBeLent(L, v, states[j]) then
        lent = true
        break
      end
      admitted[j], pass1[j], pass2[j], pass3[j], pass4[j] = L.admit(L, states[j], m, key)
      if not admitted[j] or inherits(L, keys, k, v, states[j]) then
        ok = false
      elseif L.mode == go.modeEnforce then
        total = min(total, admitted[j])
      elseif L.mode == go.modeQuota then
        quota = max(quota or 0, admitted[j])
      end
      beyond = beyond or L.hasMargin and admitted[j] and admitted[j] < m
    end
    if lent then
      local g
      g, at = decideLeased(whole, keys, k, i, i, list, merged, cur, false, at, out, vals, base)
      granted, o = granted + g, #out
    else
      if beyond and ok then ok = withinMargins(S, keys, k, m) end
      if quota then total = min(total, quota) end
      if ok then granted = granted + total end
      if whole then
        o = o + 1
        out[o] = go.replyBare
      end
      for j = 1, nch do
        local L, id = S[j], nil
        if L.ids then
          id, at = sub(list, at, at + 7), at + 8
        end
        if not ok then
          o = o + 1
          out[o] = L.undecided or UNDECIDED
        else
          if L.room then
            charged[j] = 0
          elseif L.countDenied then
            charged[j] = m
          elseif L.mode == go.modeShadow then
            charged[j] = admitted[j]
          elseif L.mode == go.modeEnforce then
            charged[j] = total
          else
            charged[j] = min(total, admitted[j])
          end
          if L.size then
            o = o + 1
            out[o] = states[j] or L.fresh
          else
            local key = keys[k + L.at]
            local text = L.finish(L, key, admitted[j], charged[j], pass1[j], m, id)
            if S.swapped and L.members and charged[j] > 0 then noteChange(key) end
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
    end
    k = k + stride
  end
  return granted, k
end

local NOTHING = '\0\0\0\0' -- no units lent

-- leave leaves count decisions to the node. It returns the place of the next decision's keys.
local function leave(S, from, count, out, lending)
  for _ = 1, count do
    if S.leased and not lending then out[#out + 1] = go.replyWhole end
    for j = 1, #S do
      out[#out + 1] = S[j].undecided or UNDECIDED
      if lending and S[j].lends then out[#out + 1] = NOTHING end
    end
  end
  return from + count * S.stride
end

local decideBare -- in bare.lua

-- take decides. KEYS: those of all operands in order. ARGV: what once says; then for each run of
-- decisions of one shape the shape, and a list: how many decisions, flags (go.flagMerged,
-- go.flagRepeats, go.flagLending), with the first flag how many equal requests each stands for, and
-- in the order of the operands of the decisions the ids for slots, and with the third flag what is
-- told and wanted of limits that lend, see ahead in lease.lua. With the second flag a key may come
-- more than once in the run.
--
-- The reply is one string: the instant, how many requests were admitted, the name of the memory,
-- and for each operand its state before the call (one that is not compact: the length of what
-- finish returns, and that), and if it lends, with the third flag, how many units it has lent. All
-- bytes are 255 where a decision was left to the node. Where an operand lends, without that flag,
-- it begins as bare.lua says.
local function take(keys, args)
  local from, granted, out = 1, 0, {''}
  dropped = nil -- of a call that failed
  for r = 2, #args, 2 do
    local S, list = shape(args[r]), args[r + 1]
    local count, flags = decode(go.listFormat, list)
    local merged, repeats = has(flags, go.flagMerged), has(flags, go.flagRepeats)
    local g = 0
    if S.till and (now < S.from or now >= S.till) then
      from = leave(S, from, count, out, has(flags, go.flagLending))
    elseif #S == 1 and S.compact and not repeats then
      g = decideOne(S, keys, from, count, list, merged, out)
      from = from + count
    else
      local ids = 6 + (merged and 4 * count or 0)
      if not S.leased then
        g, from = decideAll(S, keys, from, count, list, merged, repeats, ids, out)
      elseif has(flags, go.flagLending) then
        local cur = repeats and {} or nil
        g = decideLeased(S, keys, from, 1, count, list, merged, cur, true, ids, out)
        from = from + count * S.stride
      else
        g = decideBare(S, keys, from, count, list, merged, repeats, ids, out)
        from = from + count * S.stride
      end
    end
    granted = granted + g
  end
  if dropped then forgetDropped() end
  out[1] = encode(go.replyFormat, now, granted, memory)
  return concat(out)
end

-- read returns the instant, the number of the last change (noteChange), the name of the memory, and
-- the values of KEYS.
local function read(keys, args)
  begin(args[1])
  local out = {now, lastChange(), memory}
  for i = 1, #keys, BATCH do
    local vals = readValues(keys, i, #keys)
    for j = 1, #vals do out[#out + 1] = vals[j] end
  end
  return out
end

-- swap writes new values if all of KEYS still have the old ones, and returns 1 if it did. ARGV:
-- what once says; the number that read returned; then four for each key:
--   '0' if there must be no value, else '1'
--   the value that it must have
--   the new value ('': none, '=': unchanged)
--   the instant at which that is fresh ('+' before it: no sooner than the old value; '~': it is
--   fresh)
-- If a new value is fresh by now, the call took so long that other requests may have come and gone
-- unseen. Then nothing is written either.
local function swap(keys, args)
  local read = tonumber(args[2])
  for i = 1, #keys, BATCH do
    local vals = readValues(keys, i, #keys)
    for j = 1, #vals do
      local at, is = 4 * (i + j - 1) - 1, vals[j]
      if changedSince(keys[i + j - 1], read) then return 0 end
      if args[at] == '0' and is or args[at] == '1' and is ~= args[at + 1] then return 0 end
      local value, stop = args[at + 2], args[at + 3]
      local sign = sub(stop, 1, 1)
      if value ~= '' and value ~= '=' and sign ~= '+' and sign ~= '~' and tonumber(stop) <= now then
        return 0
      end
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
      if args[4 * i - 1] == '0' then noteChange(keys[i]) end
    end
  end
  return 1
end

-- release gives slots back, and returns 1 if they were still held. KEYS: one. ARGV: what once says,
-- the time-out, the id.
local function release(keys, args)
  local key, w, id = keys[1], tonumber(args[2]), args[3]
  local v = try('GET', key)
  if type(v) ~= 'string' or #v < go.slotsHead then return 0 end
  local newest, used, first, n = decode(go.slotsHeadFormat, v)
  if #v ~= go.slotsHead + n * go.holderSize then return 0 end
  local latest = now + w
  local eff = max(now, min(newest, latest))
  local kept, held, over = {}, false, true
  used, newest = 0, 0
  for i = first, n - 1 do
    local at = go.slotsHead + 1 + i * go.holderSize
    local since, units = decode('<I7', v, at), decode('<I4', v, at + 15)
    over = over and min(since, latest) + w <= eff
    if over then
      -- it has timed out
    elseif sub(v, at + 7, at + 14) == id then
      held = true
    else
      kept[#kept + 1] = sub(v, at, at + go.holderSize - 1)
      used, newest = used + units, since
    end
  end
  if not held then return 0 end
  if #kept == 0 then
    call('DEL', key)
  else
    local head = encode(go.slotsHeadFormat, newest, used, 0, #kept)
    call('SET', key, head .. concat(kept), 'PXAT', expiry(min(newest, latest) + w))
  end
  return 1
end

-- nodes notes that a node is alive, or (time-out 0) that it leaves, and returns how many are alive.
-- KEYS: one. ARGV: the instant or '', the time in µs without a heartbeat after which a node counts
-- as gone, the node's name.
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

-- Reservations: KEYS are a sorted set of ids by the instant at which they time out, and a hash of
-- their notes. Where nobody asks for them any more, they expire after the longest window.

-- hold keeps a note, and returns 1; 0 if the id is taken, -1 if there is no room. ARGV: what once
-- says, the id, the note, the time-out in µs, how many may be held.
local function hold(keys, args)
  if call('HEXISTS', keys[2], args[2]) == 1 then return 0 end
  if call('ZCARD', keys[1]) >= tonumber(args[5]) then return -1 end
  call('ZADD', keys[1], format('%d', min(MAXINT, now + tonumber(args[4]))), args[2])
  call('HSET', keys[2], args[2], args[3])
  for i = 1, 2 do call('PEXPIRE', keys[i], format('%d', go.maxWindow / 1000)) end
  return 1
end

-- handOut removes a note and returns it; false if there is none.
local function handOut(keys, id)
  local note = call('HGET', keys[2], id)
  call('ZREM', keys[1], id)
  if note then call('HDEL', keys[2], id) end
  return note
end

-- claim hands out the note of an id. ARGV: what once says, the id.
local function claim(keys, args) return handOut(keys, args[2]) end

-- expired hands out notes that have timed out. ARGV: what once says, how many at most.
local function expired(keys, args)
  local out = {}
  local ids = call('ZRANGEBYSCORE', keys[1], '-inf', format('%d', now), 'LIMIT', '0', args[2])
  for _, id in ipairs(ids) do
    local note = handOut(keys, id)
    if note then out[#out + 1] = note end
  end
  return out
end

redis.register_function('NAME_take', once(take))
redis.register_function('NAME_read', read)
redis.register_function('NAME_swap', once(swap))
redis.register_function('NAME_release', once(release))
redis.register_function('NAME_nodes', nodes)
redis.register_function('NAME_hold', once(hold))
redis.register_function('NAME_claim', once(claim))
redis.register_function('NAME_expired', once(expired))
