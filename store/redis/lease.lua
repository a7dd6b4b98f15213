-- Limits that lend units ahead: algo/lease.go inside Redis. This text follows that of weir.lua, and
-- is of one piece with it. Calls without such a limit never come here.
--
-- What is lent of a key is a record: when the older generation ends, the units that are out in it
-- and in the newer one, what was wanted in this generation and in the one before, and the length of
-- a generation. It lies beside the state, as a record of its own in the same value, or in a key of
-- its own where the state has no tag or the counter no group. Its operand comes before that of its
-- state.

-- like returns a copy of an operand, the fields of which are to be set. It is made once.
local function like(L, name)
  local copy = L[name]
  if not copy then
    copy = {}
    for field, value in pairs(L) do copy[field] = value end
    L[name] = copy
  end
  return copy
end

-- readRecord reads a record for the operand L that it belongs to; nil if the node must see to it,
-- as when no such record was ever written. The stop of an empty record means nothing.
local function readRecord(L, raw)
  local r = {stop = 0, older = 0, newer = 0, this = 0, last = 0}
  if raw then
    if #raw ~= go.recordSize then return nil end
    local each
    r.stop, r.older, r.newer, r.this, r.last, each = decode(go.recordFormat, raw)
    if each ~= L.leaseFor or r.stop < 1 or r.stop - now > 2 * go.maxLeaseFor
      or r.older + r.newer > go.mostLent then
      return nil
    end
  end
  return r
end

local function emptyRecord(r) return r.older + r.newer + r.this + r.last == 0 end

-- writeRecord returns a record, false if it is empty, and the instant at which nothing of it can
-- count any more: what is out may be used, and charged, at the last moment.
local function writeRecord(L, r)
  if emptyRecord(r) then return false, 0 end
  local stop = r.stop + L.leaseFor
  if r.older + r.newer > 0 then stop = stop + L.leaseLife end
  return encode(go.recordFormat, r.stop, r.older, r.newer, r.this, r.last, L.leaseFor), stop
end

-- ahead reads what a holder tells of a decision's operand, and wants of it, from the place at of a
-- list: how often it tells (B), for each the end of the generation (I7), the units used and the
-- units returned (I4 each); then the units wanted (I4), plus 2^31 if it is the first time in this
-- generation. It changes the record by that, after it has ended the generations that are over. It
-- returns the charges that come of both, as instants and numbers in turn; how many are wanted;
-- whether for the first time; and the place after it.
local function ahead(L, r, list, at)
  local due, want, first, most = {}, 0, false, L.entrySize and go.maxLogN or MAXCOUNT
  while now >= r.stop and not emptyRecord(r) do -- twice at most: then it is empty
    if r.older > 0 then due[#due + 1], due[#due + 2] = r.stop - 1, min(r.older, most) end
    r.stop, r.older, r.newer = r.stop + L.leaseFor, r.newer, 0
    r.last, r.this = r.this, 0
  end
  if at then
    local n = byte(list, at)
    at = at + 1
    for _ = 1, n do
      local stop, used, back = decode('<I7I4I4', list, at)
      at = at + 15
      local of = stop == r.stop + L.leaseFor and 'newer' or stop == r.stop and 'older'
      if of then
        used = min(used, r[of])
        r[of] = r[of] - used
        r[of] = r[of] - min(back, r[of])
        if used > 0 then due[#due + 1], due[#due + 2] = now, min(used, most) end
      end
    end
    want = decode('<I4', list, at)
    at = at + 4
    if want >= 2147483648 then want, first = want - 2147483648, true end
  end
  return due, want, first, at
end

-- lend lends up to want units of what is left within the limit, and returns how many. bound is when
-- they must end at the latest.
local function lend(L, r, left, bound, want, first)
  local each, cap = L.leaseFor, L.lendable
  local stop = r.stop
  if emptyRecord(r) then stop = min(now + each, bound) end
  local newer = stop + each <= bound
  want = min(want, cap)
  if want <= 0 or cap < 2 or stop + each > MAXINT or not newer and stop > bound or stop <= now then
    return 0
  end
  r.stop = stop
  if first then r.this = min(r.this + floor((want * 1024 + floor(cap / 2)) / cap), 65535) end
  local out = r.older + r.newer
  local got = min(want, cap - out, left - out)
  if r.last * cap > want * 1024 then got = min(got, ceil(want * 1024 / r.last)) end
  if got < min(want, 2) then return 0 end
  if newer then r.newer = r.newer + got else r.older = r.older + got end
  return got
end

-- chargeAt charges units to a compact state at an instant, whether there is room or not, and
-- returns it (false: fresh); nil if the node must do it.
local function chargeAt(L, raw, instant, units)
  -- What counts in an earlier window of the calendar does not count any more.
  if L.start and instant < L.start and not (raw and decode('<I7', raw) >= L.start) then
    return raw
  end
  local F, at = like(L, 'charging'), now
  F.cost = L.capLevel and 0 or units
  now = instant
  local g, x, y, z, u = L.admit(F, raw, 1)
  local body
  if not g then
    body = nil
  elseif not L.capLevel then
    body = L.apply(F, 1, x, y, z, u)
  else
    local level = min(y + min(units, L.cap) * L.token, L.capLevel)
    body = level > 0 and encode(go.bucketFormat, x, level, L.scale)
  end
  now = at
  return body
end

-- asCharged returns a compact state that was charged what was due and nothing now (false: nothing
-- of it counts any more), and the instant at which it is fresh.
local function asCharged(L, raw, x, y, z)
  if L.capLevel then
    local a, b = decode(go.bucketFormat, raw)
    local last, stop = a * L.unit, now + go.maxWindow
    if L.rate > 0 then stop = (a + ceil(b / L.rate)) * L.unit end
    if L.slower then stop = last + (stop - last) * L.slower + L.slack end
    return raw, stop
  elseif L.sub then
    if y + z <= 0 then return false end
    local a, cur = decode(go.windowFormat, raw)
    return raw, a + (cur > 0 and 2 or 1) * L.sub
  end
  return y > 0 and raw, z
end

-- Windows of several buckets: the whole state is read, charged here, and written.

-- windowsAt returns a state as it counts at an instant: the start of its sub-window, the time since
-- then, the sum of what counts whole, the count that the window cuts, the count of the current
-- sub-window, and the older counters.
local function windowsAt(L, v, instant)
  local k, elapsed = L.buckets, instant % L.sub
  local start = instant - elapsed
  if v == '' then return start, elapsed, 0, 0, 0, rep('\0', 4 * k) end
  if #v ~= go.windowsHead + 4 * k then return nil end
  local a, sum, cur, cut, buckets = decode(go.windowsHeadFormat, v)
  if buckets ~= k or a > start + L.window then return nil end
  if a > start then elapsed = 0 end
  if a >= start then return a, elapsed, sum - cut, cut, cur, sub(v, go.windowsHead + 1) end
  local d = min((start - a) / L.sub, k + 1)
  if d > k then return start, elapsed, 0, 0, 0, rep('\0', 4 * k) end
  for j = k - d, k do sum = sum - (j == 0 and cur or older(v, j)) end
  local rest = rep('\0', 4 * (d - 1)) .. encode('<I4', cur)
    .. sub(v, go.windowsHead + 1, go.windowsHead + 4 * (k - d))
  return start, elapsed, sum, d == k and cur or older(v, k - d), 0, rest
end

local function windowsCharge(L, v, instant, units)
  local start, _, whole, cut, cur, rest = windowsAt(L, v, instant)
  if not start then return nil end
  local add = min(units, MAXCOUNT - cur)
  return encode(go.windowsHeadFormat, start, whole + cut + add, cur + add, cut, L.buckets) .. rest
end

-- windowsUsed returns how many units a state counts now.
local function windowsUsed(L, v)
  local start, elapsed, whole, cut = windowsAt(L, v, now)
  if not start then return nil end
  return whole + previousShare(L, cut, L.subUnits - floor(elapsed / L.unit))
end

-- windowsLent and windowsLentFinish are windowsAdmit and windowsFinish after charges that are due.
-- T is L with the room that is left beside what is out.
local function windowsLent(L, T, m, key, due)
  local before = try('GET', key) or ''
  if type(before) ~= 'string' then return nil end
  local v = before
  for i = 1, #due, 2 do v = v and windowsCharge(L, v, due[i], due[i + 1]) end
  if not v or v ~= '' and L.cost < 0 then return nil end
  local used = windowsUsed(L, v)
  if not used then return nil end
  return counted(T, used, m), {before = before, v = v}
end

local function windowsLentFinish(L, key, n, s)
  if n > 0 and L.cost > 0 then s.v = windowsCharge(L, s.v, now, n * L.cost) end
  if s.v ~= s.before then
    local start, _, whole, cut = windowsAt(L, s.v, now)
    if whole + cut > 0 then
      call('SET', key, s.v, 'PXAT', expiry(start + (L.buckets + 1) * L.sub))
      noteChange(key)
    end
  end
  return s.before, max(0, L.hard - windowsUsed(L, s.v))
end

-- Logs: charges that are due wait until the decision is certain. more is those that still
-- count, as times and numbers in turn.
local function logLent(L, T, m, key, due)
  local g, s = logAdmit(T, false, m, key)
  if not g then return nil end
  local newest = s.ref
  s.more = {}
  for i = 1, #due, 2 do
    if newest > due[i] + L.window then return nil end
    newest = max(newest, due[i])
    if newest > s.eff - L.window then
      s.more[#s.more + 1], s.more[#s.more + 2] = newest, due[i + 1]
      s.live = s.live + due[i + 1]
    end
  end
  g = counted(T, s.live, m)
  if g < m and L.till and L.cost > 0 then
    -- What is out ends with the phase, and the answer depends on what is in force then.
    if s.n > WHOLE then return nil end
    s.whole = call('GET', key) or ''
  end
  return g, s
end

-- logWrite appends the charges that were due.
local function logWrite(L, key, s)
  local more, entry, add, bytes = s.more, L.entrySize, 0, ''
  if #more == 0 then return end
  for i = 1, #more, 2 do
    add = add + more[i + 1]
    bytes = bytes .. rep(encode(L.entryFormat, more[i] % L.entryModulus), more[i + 1])
  end
  local newest, kept, size = more[#more - 1], s.n - s.dead, s.size
  local tail, need = size > 0 and (s.tail + s.dead) % size or 0, kept + add
  local stop = expiry(newest + L.window)
  if need > size then
    local ring = ''
    if kept > 0 then
      local all = call('GET', key)
      local from = go.logHead + 1 + tail * entry
      local first = min(kept, size - tail)
      ring = sub(all, from, from + first * entry - 1)
        .. sub(all, go.logHead + 1, go.logHead + (kept - first) * entry)
    end
    tail, size = 0, max(need, min(2 * size, L.cap), 4)
    local head = encode(go.logHeadFormat, newest, 0, need, size)
    call('SET', key, head .. ring .. bytes .. rep('\0', (size - need) * entry), 'PXAT', stop)
  else
    local p = (tail + kept) % size
    local first = min(add, size - p)
    call('SETRANGE', key, go.logHead + p * entry, sub(bytes, 1, first * entry))
    if add > first then call('SETRANGE', key, go.logHead, sub(bytes, first * entry + 1)) end
    call('SETRANGE', key, '0', encode(go.logHeadFormat, newest, tail, need, size))
    call('PEXPIREAT', key, stop)
  end
  noteChange(key)
  s.n, s.size, s.tail, s.dead, s.ref = need, size, tail, 0, newest
end

local function logLentFinish(L, T, key, g, n, s, m)
  logWrite(L, key, s)
  local used = s.live
  if n > 0 then used = max(0, used + n * L.cost) end
  return logFinish(T, key, g, n, s, m), max(0, L.hard - used)
end

-- What is known of the operands that lend of the decision under way, by their numbers.
local held = {}    -- the record, after what is due
local dues = {}    -- the charges that are due
local wanted = {}  -- how many units
local firsts = {}  -- whether for the first time
local charging = {} -- the state after what is due
local tight = {}   -- the operand with the room that is left beside what is out

-- admitLent is the first function of the algorithm of the operand j, which lends, at its place in a
-- list. It returns what that does, and the place after it.
local function admitLent(S, j, m, key, list, at)
  local L = S[j]
  local r = readRecord(L, states[j - 1])
  if not r then
    if at then at = at + 5 + 15 * byte(list, at) end
    return at, nil
  end
  held[j] = r
  dues[j], wanted[j], firsts[j], at = ahead(L, r, list, at)
  local due, out, T = dues[j], r.older + r.newer, L
  if out > 0 and L.n > 0 then
    T = like(L, 'tight')
    T.limit, T.cap = L.limit - out, L.cap - out
    if L.capLevel then T.limitLevel = L.limitLevel - out * L.token end
  end
  tight[j] = T
  if L.size then
    local raw = states[j]
    for i = 1, #due, 2 do
      raw = chargeAt(L, raw, due[i], due[i + 1])
      if raw == nil then return at, nil end
    end
    charging[j] = raw
    return at, T.admit(T, raw, m, key)
  elseif L.buckets then
    return at, windowsLent(L, T, m, key, due)
  end
  return at, logLent(L, T, m, key, due)
end

-- leftOf returns how many units a compact state leaves within the limit, and the instant at which
-- what is lent must end at the latest, which is no later than now if nothing can be lent.
local function leftOf(L, raw)
  local F, bound = like(L, 'hardly'), L.till or MAXINT
  F.cost, F.limit, F.limitLevel = 1, L.hard, L.capLevel and L.hard * L.token
  local left, _, used, stop = L.admit(F, raw, MAXCOUNT)
  if not left then return nil end
  if L.sub or L.capLevel then return left, bound end
  if L.first and used == 0 then return left, now end
  return left, min(bound, stop)
end

-- chargeLent charges n requests to the operand j, which lends and is compact, and returns the new
-- state (nil: unchanged, false: fresh) and the instant at which that is fresh.
local function chargeLent(S, j, n)
  local L, raw, body, stop = S[j], charging[j], nil, 0
  if L.cost == 0 or L.cost < 0 and not raw then n = 0 end
  if n > 0 or L.mends and pass3[j] then
    body, stop = L.apply(L, n, pass1[j], pass2[j], pass3[j], pass4[j])
    if L.first and body == false and raw and held[j].older + held[j].newer > 0 then
      -- All that is out is to be charged in this window.
      body, stop = encode(go.countFormat, pass1[j], 1), pass3[j]
    end
  elseif raw ~= states[j] then
    if raw then body, stop = asCharged(L, raw, pass1[j], pass2[j], pass3[j]) else body = false end
  end
  return body, stop or 0
end

-- finds reports whether the state of an operand is kept under the present identity of its counter.
local function finds(L, keys, k, raw)
  if L.size then return raw end
  return call('EXISTS', keys[k + L.at]) == 1
end

-- decideLeased is decideAll where an operand lends: for the decisions of a list from first to last,
-- the keys of which begin at k. cur holds values that were written, if keys repeat. vals are values
-- of keys from base + 1 on, if they have been read.
function decideLeased(S, keys, k, first, last, list, merged, cur, lending, at, out, vals, base)
  local nch, stride, granted, o, m = #S, S.stride, 0, #out, 1
  local ids, bodies, stops = {}, nil, nil
  local each, reads = max(1, floor(BATCH / stride)), S.compact and stride <= BATCH and not vals
  local past = k + stride * (last - first + 1)
  for i = first, last do
    if merged then m = decode('<I4', list, 2 + 4 * i) end
    if not lending then
      o = o + 1
      out[o] = go.replyWhole
    end
    if reads and (i - first) % each == 0 then
      vals, base = readValues(keys, k, min(past, k + each * stride) - 1), k - 1
    end
    local total, quota, ok, beyond = m, nil, true, false
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
          if v == nil then v = vals and vals[place - base] end
          if v == nil then v = call('MGET', key)[1] end
        end
        if v then states[j], offsets[j] = record(L, v) end
      end
      values[j] = v
      if L.ids then
        ids[j], at = sub(list, at, at + 7), at + 8
      end
      local missing = false
      if L.lends then
        local after
        after, admitted[j], pass1[j], pass2[j], pass3[j], pass4[j] =
          admitLent(S, j, m, key, list, lending and at)
        at = after or at
        if L.idle and admitted[j] then admitted[j] = m end
        -- The record is carried along with its state.
        missing = inherits(L, keys, k, v, states[j])
          or not finds(L, keys, k, states[j])
            and inherits(S[j - 1], keys, k, values[j - 1], states[j - 1])
      else
        admitted[j], pass1[j], pass2[j], pass3[j], pass4[j] = L.admit(L, states[j], m, key)
        missing = not L.record and inherits(L, keys, k, v, states[j])
      end
      if not admitted[j] or missing then
        ok = false
      elseif L.mode == go.modeEnforce then
        total = min(total, admitted[j])
      elseif L.mode == go.modeQuota then
        quota = max(quota or 0, admitted[j])
      end
      beyond = beyond or L.hasMargin and admitted[j] and admitted[j] < m
    end
    if beyond and ok then ok = withinMargins(S, keys, k, m) end
    if quota then total = min(total, quota) end
    if ok then granted = granted + total end
    bodies, stops = {}, {}
    local kept -- values that must live as long as a record in another one
    for j = 1, nch do
      local L = S[j]
      if not ok then
        o = o + 1
        out[o] = L.undecided or UNDECIDED
        if lending and L.lends then
          o = o + 1
          out[o] = NOTHING
        end
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
        local n, key, left, bound = charged[j], keys[k + L.at], nil, L.till or MAXINT
        if L.size then
          o = o + 1
          out[o] = states[j] or L.fresh
          if L.lends then
            bodies[j], stops[j] = chargeLent(S, j, n)
          elseif not L.record then
            if L.cost == 0 or L.cost < 0 and not states[j] then n = 0 end
            if n > 0 or L.mends and pass3[j] then
              bodies[j], stops[j] = L.apply(L, n, pass1[j], pass2[j], pass3[j], pass4[j])
            end
          end
        else
          local text
          if L.buckets and L.lends then
            text, left = windowsLentFinish(L, key, n, pass1[j])
          elseif L.lends then
            text, left = logLentFinish(L, tight[j], key, admitted[j], n, pass1[j], m)
          else
            text = L.finish(L, key, admitted[j], n, pass1[j], m, ids[j])
            if L.members and n > 0 then noteChange(key) end
          end
          out[o + 1], out[o + 2] = encode('<I4', #text), text
          o = o + 2
        end
        if L.lends then
          local r, got = held[j], 0
          if wanted[j] > 0 and total == m and admitted[j] == m and not L.idle then
            if L.size then
              local raw = bodies[j]
              if raw == nil then raw = states[j] end
              left, bound = leftOf(L, raw)
            end
            if left then got = lend(L, r, left, bound, wanted[j], firsts[j]) end
          end
          if lending then
            o = o + 1
            out[o] = encode('<I4', got)
          end
          local body, stop = writeRecord(L, r)
          if body ~= states[j - 1] then bodies[j - 1], stops[j - 1] = body, stop end
          if L.size and body and L.at ~= S[j - 1].at then
            kept = kept or {}
            kept[#kept + 1], kept[#kept + 2] = key, expiry(stop)
          end
        end
      end
    end
    if ok then
      for j = 1, nch do
        local L = S[j]
        if L.size and L.members then
          local changed = false
          for _, member in ipairs(L.members) do changed = changed or bodies[member] ~= nil end
          if changed then
            local key = keys[k + L.at]
            local v = rewrite(S, j, key, values[j], bodies, stops)
            if cur then cur[key] = v end
          end
        end
      end
      for i = 1, kept and #kept or 0, 2 do call('PEXPIREAT', kept[i], kept[i + 1], 'GT') end
    end
    k = k + stride
  end
  return granted, at
end
