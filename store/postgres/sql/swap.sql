-- now_NAME tells the instant, in microseconds: that of the caller, who is a test, or else the
-- server's.
create or replace function SCHEMA.now_NAME(virtual bigint) returns bigint
language sql volatile parallel safe as $function$
	select coalesce(virtual, (extract(epoch from clock_timestamp()) * 1000000)::bigint)
$function$;

-- tune_NAME sets what holds for the transaction. A table that is small is not read whole, since it
-- may be large before the plan of a statement is made anew. Where a function is declared, such a
-- setting takes ten times as long.
create or replace function SCHEMA.tune_NAME(patience text, durable text) returns text
language sql volatile as $function$
	select set_config('lock_timeout', patience, true) || set_config('synchronous_commit', durable, true)
		|| set_config('enable_seqscan', 'off', true)
$function$;

-- read_NAME returns a row for each key that has a value: its place among keys, from 1. The first
-- row, of place 0, holds the instant. One statement sees all as it was at one instant.
create or replace function SCHEMA.read_NAME(keys bytea[])
returns table (place bigint, version bigint, data bytea)
language plpgsql volatile
as $function$
#variable_conflict use_column
declare
	tuned text := set_config('enable_seqscan', 'off', true);
begin
	return query
		select i.n, s.version, s.data from unnest(keys) with ordinality as i(key, n)
		cross join lateral (select version, data from SCHEMA.states where key = i.key limit 1) s
		where s.version <> 0;
	place := 0; version := SCHEMA.now_NAME(null); data := null;
	return next;
end $function$;

-- one_NAME makes one change, of kind 0 or 3. It returns the instant, whether the change was made,
-- and else the value of now; the latter two are one row, which is read quicker than a table.
create or replace function SCHEMA.one_NAME(
	decided bigint, patience text, durable text, kind int2,
	of bytea, full_name bytea, expected bigint, new_version bigint, new_until bigint, new_data bytea,
	out at bigint, out done boolean, out version bigint, out data bytea
) language plpgsql volatile as $function$
#variable_conflict use_column
declare
	tuned text := SCHEMA.tune_NAME(patience, durable);
begin
	at := SCHEMA.now_NAME(null);
	done := false;
	if kind = 0 and (decided = 0 or abs(at - decided) <= 1000000) then
		if expected = 0 then
			insert into SCHEMA.states as s (key, version, until, name, data)
			values (of, new_version, new_until, full_name, new_data)
			on conflict on constraint states_key
			do update set version = excluded.version, until = excluded.until, data = excluded.data
			where s.version = 0;
		elsif new_version <> 0 then
			update SCHEMA.states s set version = new_version, until = new_until, data = new_data
			where s.key = of and s.version = expected;
		else
			delete from SCHEMA.states s where s.key = of and s.version = expected;
		end if;
		done := found;
	end if;
	if not done then
		select s.version, s.data into version, data from SCHEMA.states s where s.key = of;
		version := coalesce(version, 0);
		done := kind = 3 and version = expected and (decided = 0 or abs(at - decided) <= 1000000);
	end if;
end $function$;

-- swap_NAME makes changes in groups. A change is of a kind: 0 is alone in its group; 1 is one of
-- several; 2 is one of several, and only compared; 3 is of a group that compares only. All keys are
-- locked in the order of the changes, which is the same for all callers, so nobody waits in a
-- circle. It returns the values of the groups that were not as expected, and a row of place 0 with
-- the instant: data is then null if an instant was given that is too far from it.
create or replace function SCHEMA.swap_NAME(
	decided bigint, patience text, durable text,
	keys bytea[], names bytea[], kinds int2[], groups int4[],
	expected bigint[], versions bigint[], untils bigint[], datas bytea[]
) returns table (place bigint, version bigint, data bytea)
language plpgsql volatile
as $function$
#variable_conflict use_column
declare
	at bigint := SCHEMA.now_NAME(null);
	tuned text := SCHEMA.tune_NAME(patience, durable);
	c record;
	held bigint;
	several boolean := false;
	failed int4[] := '{}';
begin
	if decided <> 0 and abs(at - decided) > 1000000 then
		return query select * from SCHEMA.read_NAME(keys);
		return;
	end if;
	if 3 = any(kinds) then
		return query
			with compared as materialized (
				select i.n, i.g, i.v <> coalesce(s.version, 0) as differs, s.version, s.data
				from unnest(keys, kinds, groups, expected) with ordinality as i(key, k, g, v, n)
				left join lateral (select version, data from SCHEMA.states where key = i.key limit 1) s on true
				where i.k = 3
			)
			select n, coalesce(version, 0), data from compared
			where g in (select o.g from compared o where o.differs);
	end if;
	for c in
		select * from unnest(keys, names, kinds, groups, expected, versions, untils, datas)
		with ordinality as i(key, name, kind, g, was, version, until, data, n)
	loop
		if c.kind = 0 then
			if c.was = 0 then
				insert into SCHEMA.states as s (key, version, until, name, data)
				values (c.key, c.version, c.until, c.name, c.data)
				on conflict on constraint states_key
				do update set version = excluded.version, until = excluded.until, data = excluded.data
				where s.version = 0;
			elsif c.version <> 0 then
				update SCHEMA.states s set version = c.version, until = c.until, data = c.data
				where s.key = c.key and s.version = c.was;
			else
				delete from SCHEMA.states s where s.key = c.key and s.version = c.was;
			end if;
			if not found then
				place := c.n; version := 0; data := null;
				select s.version, s.data into version, data from SCHEMA.states s where s.key = c.key;
				version := coalesce(version, 0);
				return next;
			end if;
		elsif c.kind < 3 then
			several := true;
			loop
				select s.version into held from SCHEMA.states s where s.key = c.key for update;
				exit when found;
				insert into SCHEMA.states (key, version, until, name, data)
				values (c.key, 0, at + 60000000, c.name, '')
				on conflict on constraint states_key do nothing;
				held := 0;
				exit when found;
			end loop;
			if held <> c.was then
				failed := failed || c.g;
			end if;
		end if;
	end loop;
	if several then
		for c in
			select * from unnest(keys, kinds, groups, versions, untils, datas)
			with ordinality as i(key, kind, g, version, until, data, n) where kind in (1, 2)
		loop
			if c.g = any(failed) then
				place := c.n;
				select s.version, s.data into version, data from SCHEMA.states s where s.key = c.key;
				return next;
			elsif c.kind = 1 and c.version <> 0 then
				update SCHEMA.states s set version = c.version, until = c.until, data = c.data
				where s.key = c.key;
			elsif c.kind = 1 then
				delete from SCHEMA.states s where s.key = c.key;
			end if;
		end loop;
	end if;
	place := 0; version := SCHEMA.now_NAME(null); data := '';
	return next;
end $function$;

-- lock_NAME locks keys until the transaction ends, and returns their values as read_NAME does.
create or replace function SCHEMA.lock_NAME(
	patience text, durable text, idle text, keys bytea[], names bytea[]
) returns table (place bigint, version bigint, data bytea)
language plpgsql volatile
as $function$
#variable_conflict use_column
declare
	tuned text := SCHEMA.tune_NAME(patience, durable) || set_config('idle_in_transaction_session_timeout', idle, true);
	c record;
begin
	for c in select * from unnest(keys, names) with ordinality as i(key, name, n) loop
		loop
			select s.version, s.data into version, data from SCHEMA.states s where s.key = c.key for update;
			if found then
				if version <> 0 then
					place := c.n;
					return next;
				end if;
				exit;
			end if;
			insert into SCHEMA.states (key, version, until, name, data)
			values (c.key, 0, SCHEMA.now_NAME(null) + 60000000, c.name, '')
			on conflict on constraint states_key do nothing;
			exit when found;
		end loop;
	end loop;
	place := 0; version := SCHEMA.now_NAME(null); data := null;
	return next;
end $function$;

-- write_NAME writes keys that the transaction has locked.
create or replace function SCHEMA.write_NAME(
	keys bytea[], versions bigint[], untils bigint[], datas bytea[]
) returns void
language plpgsql volatile
as $function$
declare
	c record;
begin
	for c in select * from unnest(keys, versions, untils, datas) as i(key, version, until, data) loop
		if c.version <> 0 then
			update SCHEMA.states s set version = c.version, until = c.until, data = c.data where s.key = c.key;
		else
			delete from SCHEMA.states s where s.key = c.key;
		end if;
	end loop;
end $function$;
