
-- sweep_NAME deletes states that are over, in the next blocks of the table, unless another node has
-- just done so. It returns how many, or -1. A row that somebody changes is left for the next time:
-- so this waits for nobody.
create or replace function SCHEMA.sweep_NAME(pause bigint, durable text) returns bigint
language plpgsql volatile
set plan_cache_mode = force_generic_plan as $function$
declare
	now bigint := SCHEMA.now_NAME(null);
	first bigint;
	blocks bigint := pg_relation_size('SCHEMA.states') / current_setting('block_size')::bigint;
	step bigint := greatest(128, blocks / 240);
	swept bigint;
begin
	perform set_config('synchronous_commit', durable, true);
	select block into first from SCHEMA.sweep where at <= now - pause or at > now + pause for update skip locked;
	if not found then
		return -1;
	end if;
	if first >= blocks then
		first := 0;
	end if;
	delete from SCHEMA.states where ctid = any (array(
		select ctid from SCHEMA.states
		where ctid >= format('(%s,0)', first)::tid and ctid < format('(%s,0)', first + step)::tid and until < now
		for update skip locked
	));
	get diagnostics swept = row_count;
	delete from SCHEMA.reservations where id = any (array(
		select id from SCHEMA.reservations where id < '\x01' and due < now limit 1000 for update skip locked
	));
	update SCHEMA.sweep set block = first + step, at = now;
	return swept;
end $function$;

-- hold_NAME holds a reservation. It returns 1; 0 if its id is held already; -1 if there are too
-- many.
create or replace function SCHEMA.hold_NAME(virtual bigint, id bytea, note bytea, timeout bigint, most bigint) returns bigint
language plpgsql volatile as $function$
begin
	if (select reltuples from pg_class where oid = 'SCHEMA.reservations'::regclass) >= most then
		return -1;
	end if;
	insert into SCHEMA.reservations values (id, SCHEMA.now_NAME(virtual) + timeout, note) on conflict do nothing;
	return case when found then 1 else 0 end;
end $function$;

-- A reservation that was taken stays for a minute under another id, which begins with a zero and
-- the token of who took it: so whoever asks again with the same token, since the answer was lost,
-- gets it once more. Its note begins with another byte then, so that no node of an older version, which
-- knows nothing of that, takes it for one that has timed out. sweep_NAME deletes it.

-- claim_NAME takes a reservation, unless somebody else has. A call that was sent again waits until
-- the one before has ended; each statement here sees what was committed when it begins.
create or replace function SCHEMA.claim_NAME(virtual bigint, of bytea, token bytea) returns table (note bytea)
language plpgsql volatile as $function$
begin
	perform pg_advisory_xact_lock(hashtextextended(encode(token, 'hex'), 0));
	return query update SCHEMA.reservations r set id = '\x00'::bytea || token || r.id, note = '\xff'::bytea || r.note,
		due = SCHEMA.now_NAME(virtual) + 60000000
	where r.id = of returning substr(r.note, 2);
	if not found then
		return query select substr(r.note, 2) from SCHEMA.reservations r where r.id = '\x00'::bytea || token || of;
	end if;
end $function$;

-- expired_NAME takes some of the reservations that have timed out; those that were taken with the
-- same token before, if there are any. It waits as claim_NAME does.
create or replace function SCHEMA.expired_NAME(virtual bigint, most bigint, token bytea) returns table (note bytea)
language plpgsql volatile as $function$
begin
	perform pg_advisory_xact_lock(hashtextextended(encode(token, 'hex'), 0));
	return query select substr(r.note, 2) from SCHEMA.reservations r
	where r.id > '\x00'::bytea || token and r.id < '\x00'::bytea || token || '\xff'::bytea;
	if found then
		return;
	end if;
	return query update SCHEMA.reservations r set id = '\x00'::bytea || token || r.id, note = '\xff'::bytea || r.note,
		due = SCHEMA.now_NAME(virtual) + 60000000
	where r.id = any (array(
		select o.id from SCHEMA.reservations o where o.due <= SCHEMA.now_NAME(virtual) and o.id >= '\x01'
		order by o.due limit most for update skip locked
	)) returning substr(r.note, 2);
end $function$;

-- change_NAME begins a change of a kind's facts, and returns its number. Changes of a kind are made
-- one after the other, so that whoever has read up to a number has read all up to it.
create or replace function SCHEMA.change_NAME(now bigint, of text) returns bigint
language plpgsql volatile as $function$
declare
	change bigint;
begin
	insert into SCHEMA.kinds as k values (of, gen_random_uuid()::text, now, 0)
	on conflict (kind) do update set number = greatest(k.number + 1, excluded.number)
	returning k.number into change;
	return change;
end $function$;

-- post_NAME publishes facts, of which a kind holds so many at most: what expires first is dropped.
create or replace function SCHEMA.post_NAME(virtual bigint, of text, most bigint, channel text, ids bytea[], ttls bigint[], datas bytea[])
returns void language plpgsql volatile as $function$
declare
	now bigint := SCHEMA.now_NAME(virtual);
	change bigint := SCHEMA.change_NAME(now, of);
	too_many bigint;
begin
	insert into SCHEMA.facts as f
	select distinct on (i.id) of, i.id, change, now + i.ttl, now, false, i.data
	from unnest(ids, ttls, datas) with ordinality as i(id, ttl, data, n) order by i.id, i.n desc
	on conflict (kind, sha256(id)) do update
	set number = excluded.number, until = excluded.until, at = excluded.at, removed = false, data = excluded.data;
	delete from SCHEMA.facts where kind = of and until <= now;
	-- To count them takes time; so they are counted when so many may have come.
	update SCHEMA.kinds set held = held + cardinality(ids) where kind = of returning held - most into too_many;
	if too_many > 0 then
		select count(*) - most into too_many from SCHEMA.facts where kind = of;
		if too_many > 0 then
			delete from SCHEMA.facts where ctid = any (array(
				select ctid from SCHEMA.facts where kind = of order by until limit too_many
			));
		end if;
		update SCHEMA.kinds set held = most + least(too_many, 0) where kind = of;
	end if;
	perform pg_notify(channel, 'board:' || of);
end $function$;

-- remove_NAME marks facts as removed.
create or replace function SCHEMA.remove_NAME(virtual bigint, of text, channel text, ids bytea[])
returns void language plpgsql volatile as $function$
declare
	now bigint := SCHEMA.now_NAME(virtual);
	change bigint := SCHEMA.change_NAME(now, of);
begin
	update SCHEMA.facts f set number = change, removed = true, at = now, data = ''
	from unnest(ids) as i(id)
	where f.kind = of and sha256(f.id) = sha256(i.id) and f.until > now and not f.removed;
	perform pg_notify(channel, 'board:' || of);
end $function$;

-- facts_NAME returns the facts that were changed after a number, in the order of the changes, about
-- so many. The first row has no id: it names the board, the number of its last change.
create or replace function SCHEMA.facts_NAME(virtual bigint, of text, after bigint, most bigint)
returns table (board text, number bigint, id bytea, ttl bigint, age bigint, removed boolean, data bytea)
language sql volatile as $function$
	with now as materialized (select SCHEMA.now_NAME(virtual) as now),
	k as materialized (select coalesce(max(name), '') as name, coalesce(max(kinds.number), 0) as number from SCHEMA.kinds where kind = of)
	select k.name, k.number, null::bytea, null::bigint, null::bigint, null::boolean, null::bytea from k
	union all (
		select null, f.number, f.id, f.until - now.now, greatest(now.now - f.at, 0), f.removed, f.data
		from SCHEMA.facts f, now where f.kind = of and f.number > after and f.until > now.now
		order by f.number fetch first most rows with ties
	)
$function$;

-- beat_NAME says that a node lives for so long, and returns how many do.
create or replace function SCHEMA.beat_NAME(virtual bigint, node text, lifetime bigint) returns bigint
language plpgsql volatile as $function$
declare
	now bigint := SCHEMA.now_NAME(virtual);
begin
	if lifetime > 0 then
		insert into SCHEMA.nodes values (node, now + lifetime) on conflict (name) do update set until = excluded.until;
	else
		delete from SCHEMA.nodes where name = node;
	end if;
	delete from SCHEMA.nodes where name = any (array(select name from SCHEMA.nodes where until <= now for update skip locked));
	return (select count(*) from SCHEMA.nodes where until > now);
end $function$;

-- last_NAME is there when all functions are.
create or replace function SCHEMA.last_NAME() returns void language sql as 'select';
